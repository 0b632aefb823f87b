"""The summary of a finished run for a person, with the command, or the address, that shows it in MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.common.figures import sized
from orchestrator.driver.report import chaos_report, few
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.terminal.progress import three_digits
from orchestrator.provenance.tracking import as_argument, is_server, run_page
from orchestrator.records import redaction, times


def text(outcome: RunOutcome, title: str, layout: str, run_id: str, where_to_look: str) -> str:
    """The summary of a run, for a terminal. layout: what it ran on, such as "4 workers in a ring"; where_to_look: where it
    is shown."""
    samples = f" ({three_digits(outcome.samples_per_s)} samples/s)" if outcome.samples_per_s else ""
    rate = f", {three_digits(outcome.steps_per_s)} steps/s{samples}" if outcome.steps_per_s else ""
    sent = f", {sized(outcome.bytes_per_step)} sent per step" if outcome.bytes_per_step else ""
    results = {"loss": outcome.loss, "epsilon": outcome.epsilon}
    figures = [f"{name} {value:.4g}" for name, value in results.items() if value is not None]
    shown = ", ".join([*figures, *([few.line(outcome.metrics)] if outcome.metrics else [])])
    assigned = (
        f"{', '.join(map(str, outcome.hosted))}, after {outcome.rebalanced} new deal"
        f"{'s' * (outcome.rebalanced > 1)} by speed"
    )
    rows = [
        ("spent", outcome.spent_sentence),
        ("time", times.sentence(outcome.times)),
        ("compute", _compute(outcome)),
        ("memory", _memory(outcome)),
        ("shards", times.sentence_of_shards(outcome.shards)),
        ("dealt", assigned if outcome.rebalanced else ""),
        (
            "model",
            "" if outcome.best is None else f"of step {outcome.best.step}, the best; digest {outcome.best.digest}",
        ),
        ("files", outcome.files_sentence),
        *(("slow", each) for each in outcome.slow),
        *(("wrong", each) for each in outcome.wrong),
        (
            "chaos",
            chaos_report.sentence(outcome.injected, outcome.recoveries, run_id, repeats=outcome.repeats),
        ),
    ]
    return (
        f"{title}: finished {outcome.steps} step{'s' * (outcome.steps != 1)}, {layout}{rate}{sent}\n"
        f"  results  {shown}\n"
        + "".join(f"  {name:8} {each}\n" for name, each in rows if each)
        + f"  digest   {outcome.digest}\n"
        f"  run      {run_id}, its files in .orchestrator/{run_id}/\n"
        f"  look     {where_to_look}"
    )


def _compute(outcome: RunOutcome) -> str:
    """The operations per second on GPUs, in words. Evaluations count as time."""
    if outcome.flops_per_s is None:
        return ""
    names = ", ".join(dict.fromkeys(outcome.cards.values()))
    share = "" if outcome.mfu is None else f", {outcome.mfu:.1%} of their peak in bfloat16 (MFU)"
    return f"{three_digits(outcome.flops_per_s / 1e12)} TFLOP/s on {len(outcome.cards)} x {names}{share}"


def _memory(outcome: RunOutcome) -> str:
    """The memory of the worker that took most on its GPU."""
    if not outcome.gpu_memory:
        return ""
    worker, most = max(outcome.gpu_memory.items(), key=lambda told: told[1]["peak"])
    peak, reserved, free = (sized(most[name]) for name in ("peak", "reserved", "largest_free"))
    graphs = f", {sized(most['graphs'])} of it for graphs" if most.get("graphs") else ""
    return (
        f"tensors took at most {peak} of a GPU ({worker}); {reserved} reserved at the end{graphs}, largest free block {free}"
        f"{_beside_activations(most)}"
    )


def _beside_activations(told: Mapping[str, float]) -> str:
    if "per_parameter" not in told:
        return ""
    names = {"parameters": "parameters", "optimizer": "optimizer's state", "gradients": "gradients", "sums": "sums"}
    if told.get("contributions"):
        names["contributions"] = "contributions that are held"
    parts = ", ".join(f"{words} {sized(told[name])}" for name, words in names.items())
    return f"; beside activations {three_digits(told['per_parameter'])} bytes a parameter: {parts}"


def not_recorded(why: str, run_id: str, uri: str | None, noun: str = "run") -> str:
    """The warning that MLflow lacks something when the process ends. uri: of its store, where it is not the project's."""
    return (
        f"warning: MLflow has not got all of this {noun}: {why}\n"
        f"  what it lacks is in .orchestrator/{run_id}/, and is sent by the next launch that is recorded there,\n"
        f"  by `python -m orchestrator runs`, and by `python -m orchestrator resume={run_id}{as_argument(uri)}`"
    )


def last_words(run_id: str, uri: str | None, noun: str = "run") -> str:
    """The last words of a process that a second Ctrl-C ends at once. uri: as in `not_recorded`."""
    return (
        f"\nended at once: {noun} {run_id}, its files in .orchestrator/{run_id}/\n"
        f"  it goes on from its last checkpoint: python -m orchestrator resume={run_id}{as_argument(uri)}\n"
    )


def where_to_look(run_id: str, experiment_id: str, store_uri: str, own_uri: str) -> str:
    """The run's charts at a server; the command that shows another store. own_uri: the project's, which that command takes."""
    named = redaction.text(store_uri)  # output is kept in logs
    if is_server(store_uri):
        return run_page(named, experiment_id, run_id)
    return f"python -m orchestrator ui{as_argument(None if store_uri == own_uri else named)}"
