"""The events of a run: what each writes into the journal, tells MLflow, says on the terminal, and makes of the outcome.

A new event is one row of `EVENTS`. A row is pure: it is given facts and returns values, which `EventSink` writes. Facts are
what the caller tells of an event; `step` is the number of steps that are done, where the caller tells no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.driver.recording.trained_model import when_served
from orchestrator.driver.report import few
from orchestrator.driver.report.outcome import RunOutcome, recovery_in_words
from orchestrator.provenance.tracking import EXECUTION
from orchestrator.records.files_read import FilesRead

Facts = Mapping[str, Any]
_OPTIONAL = "?"
_NOTHING: tuple[Any, ...] = (None, "")
_INTERRUPT = (
    "warning: this launch runs there and ends with it\n"
    "  interrupt it (Ctrl-C), which saves a checkpoint, and resume it on another node"
)
_CLAIMS = (
    "note: worker {worker} cannot reach the memory in which the workers of its host claim shards ({why}); there they compute "
    "those that are dealt to them"
)


def only(*names: str) -> Callable[[Facts], dict[str, Any]]:
    """The facts of these names, in this order: "seconds:3" rounds to three decimals, "why?" leaves out None and an
    empty text."""
    columns = []
    for name in names:
        key, _, decimals = name.removesuffix(_OPTIONAL).partition(":")
        columns.append((key, int(decimals) if decimals else None, name.endswith(_OPTIONAL)))

    def fields(facts: Facts) -> dict[str, Any]:
        return {
            key: facts[key] if decimals is None else round(facts[key], decimals)
            for key, decimals, is_optional in columns
            if not (is_optional and facts.get(key) in _NOTHING)
        }

    return fields


def _finite(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no NaN."""
    return {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()}


@dataclass(frozen=True)
class EventType:
    """A row of the table."""

    fields: Callable[[Facts], Mapping[str, Any]] | None  # of its line in the journal; None: it has no line there
    sentences: Callable[[Facts], Sequence[str]] = lambda _facts: ()  # for the terminal
    metrics: Callable[[Facts], Mapping[str, float]] = lambda _facts: {}  # for MLflow, at the step of the event
    outcome: Callable[[RunOutcome, Facts], RunOutcome] = lambda outcome, _facts: outcome  # the outcome after the event


def say(template: str) -> Callable[[Facts], Sequence[str]]:
    """One sentence, with facts in braces."""
    return lambda facts: (template.format_map(facts),)


def _generation_fields(facts: Facts) -> dict[str, Any]:
    return {**facts["generation"].as_event(), **only("members", "steps")(facts)}


def _with_generation(outcome: RunOutcome, facts: Facts) -> RunOutcome:
    generation, known = facts["generation"], outcome.schedule
    is_larger = known is None or generation.workers > known.workers
    return replace(
        outcome,
        generations=outcome.generations + 1,
        workers=generation.workers,
        hosted=tuple(map(len, generation.begin.shards)),
        schedule=generation.schedule if is_larger else known,
    )


def _absent(facts: Facts) -> Sequence[str]:
    """It changes what is trained, so the journal alone is not enough."""
    shards = ", ".join(map(str, facts["generation"].begin.absent))
    return (f"{', '.join(facts['away'])} away: shards {shards} sit out until they are back",) if shards else ()


def _lost(role: str) -> EventType:
    def sentences(facts: Facts) -> Sequence[str]:
        at = "" if facts["where"] is None else f" on {facts['where']}"
        return (f"{role} {facts[role]}{at} was lost after step {facts['step']}: {facts['why']}",)

    return EventType(only(role, "step", "why"), sentences)


def _ray_gone(facts: Facts) -> Sequence[str]:
    """A run that is not being stopped ends over it, and says so then."""
    return (
        () if facts["stopping"] is None else (f"note: {facts['why']}, while the run is stopped ({facts['stopping']})",)
    )


def _drained(facts: Facts) -> Sequence[str]:
    members, seconds = facts["members"], facts["seconds"]
    when = "" if seconds is None else f" in {seconds:.0f} s"
    who = f"; {', '.join(members)} leave{'s' * (len(members) == 1)} when others have come" if members else ""
    told = f"{facts['node']} goes away{when} (Ray drains it){who}"
    return (told, _INTERRUPT) if facts["is_ours"] else (told,)


_recovery = only("kind", "seconds:3", "steps_lost", "why?")


def _recovered(facts: Facts) -> Sequence[str]:
    workers = facts["workers"]
    now = "" if facts["kind"] == "driver" else f"; {workers} worker{'s' * (workers != 1)} now"
    return (f"{recovery_in_words(_recovery(facts))}{now}",)


def _redealt_fields(facts: Facts) -> dict[str, Any]:
    by_member = [[member, round(each, 6)] for member, each in facts["micro_batch_s"].items()]
    return {
        "step": facts["step"],
        "micro_batch_s": by_member,
        **only("step_s:6", "expected_s:6", "moving")(facts),
    }


def _slow(facts: Facts) -> str:
    own, others = (f"{1e3 * facts[name]:.3g} ms" for name in ("micro_batch_s", "others_s"))
    return f"worker {facts['worker']} on {facts['where']}: {own} for a micro-batch, others {others} in the median"


def _slow_sentences(facts: Facts) -> Sequence[str]:
    return (
        f"warning: a worker has been far slower than the others for {facts['seconds']:.0f} s; {_slow(facts)}\n"
        "  look at its machine: other jobs (uptime), its clock rate (heat), a part that fails",
    )


def _differing(facts: Facts) -> tuple[str, ...]:
    """A sentence for each worker that computed wrongly; or one for those whose answers differ."""
    verdict, wrong, between = facts["verdict"], facts["wrong"], facts["between"]
    if verdict.copied:
        return (f"what {between[0]} sent to {between[1]} in step {verdict.step} arrived otherwise",)
    what = f"shard {verdict.shard}" if verdict.shard is not None else "the memory of its sum"
    spread = f"; it may have done so since step {verdict.since}" if verdict.since < verdict.step else ""
    told = tuple(f"{each} computed {what} of step {verdict.step} wrongly{spread}" for each in wrong)
    return told or (f"{' and '.join(between)}: two answers in {what} of step {verdict.step}{spread}",)


def _differing_sentences(facts: Facts) -> Sequence[str]:
    verdict, wrong = facts["verdict"], facts["wrong"]
    again = "" if verdict.shard is not None and not wrong else "; the step is repeated"
    left = " without its machine" * facts["machines"] or " in another process" * bool(wrong)
    remedy = "\n  steps before it are in the parameters: rerun=ID on another machine shows whether they are right"
    spread = remedy * (verdict.since < verdict.step)
    return [f"warning: {each}{again}{left}{spread}" for each in _differing(facts)]


def _differing_fields(facts: Facts) -> dict[str, Any]:
    return {
        **asdict(facts["verdict"]),
        "workers": facts["workers"],
        "names": facts["wrong"] or facts["between"],
    }


def _saved_fields(facts: Facts) -> dict[str, Any]:
    return {
        **only("step", "parts", "bytes", "state")(facts),
        **({} if facts["without_streams"] is None else only("without_streams")(facts)),
        **facts["seals"],
        **only("stall_s:6", "seconds:3")(facts),
    }


def _disturbed(facts: Facts) -> Sequence[str]:
    pause_s = facts["seconds"]
    how = "is killed" if pause_s is None else f"is stopped for {pause_s:.1f} s"
    return (f"chaos: worker {facts['worker']} on {facts['where']} {how}, disturbance {facts['number'] + 1}",)


def _with_disturbed(outcome: RunOutcome, facts: Facts) -> RunOutcome:
    kind = facts["kind"]
    return replace(outcome, injected={**outcome.injected, kind: outcome.injected.get(kind, 0) + 1})


def _with_bytes(outcome: RunOutcome, facts: Facts) -> RunOutcome:
    fetched, cached = outcome.bytes_read.get(facts["where"], (0, 0))
    read = {facts["where"]: (fetched + facts["fetched"], cached + facts["cached"])}
    return replace(outcome, bytes_read={**outcome.bytes_read, **read})


def _with_flops(outcome: RunOutcome, facts: Facts) -> RunOutcome:
    cards = {**outcome.cards, facts["uuid"]: facts["card"]}
    told = facts["per_sample"]  # None but of one worker, where a model is in stages
    return replace(outcome, flops_per_sample=outcome.flops_per_sample if told is None else told, cards=cards)


_memory_fields = only(
    *("worker", "peak", "reserved", "largest_free", "graphs?", "parameters?", "optimizer?", "gradients?", "sums?"),
    *("contributions?", "per_parameter?"),
)


def _with_memory(outcome: RunOutcome, facts: Facts) -> RunOutcome:
    told = {name: value for name, value in _memory_fields(facts).items() if name != "worker"}
    return replace(outcome, gpu_memory={**outcome.gpu_memory, f"worker {facts['worker']}": told})


def _with_files(outcome: RunOutcome, facts: Facts) -> RunOutcome:
    return replace(outcome, files_read=outcome.files_read | FilesRead(frozenset(facts["numbers"]), facts["of"]))


def _called_back_sentences(facts: Facts) -> Sequence[str]:
    if "failed" not in facts:
        return ()
    goes_on = "" if facts.get("stopped") else ", the run goes on"
    return (f"warning: on_evaluation after step {facts['step'] + 1}{goes_on}: {facts['failed']}",)


def _compared_sentences(facts: Facts) -> Sequence[str]:
    drift = facts["drift"]
    return (f"note: since run {facts['run']} of this experiment {drift.text}",) if drift.is_any else ()


# Events by their name in the journal, or in the report of a member.
EVENTS: Mapping[str, EventType] = {
    # the run as a whole
    "signal": EventType(only("name")),
    "stop_waits": EventType(
        only("signal", "what"), say("{signal}: waiting for {what}; a second one ends the run at once")
    ),
    "decided": EventType(only("from", "to", "reason")),
    "ray_gone": EventType(only("why", "details?"), _ray_gone),
    "driver_lost": EventType(only("pid", "steps_lost")),
    "generation_started": EventType(
        _generation_fields,
        _absent,
        metrics=lambda facts: {f"{EXECUTION}cluster/workers": facts["generation"].workers},
        outcome=_with_generation,
    ),
    "recovered": EventType(
        _recovery,
        _recovered,
        metrics=lambda facts: {f"{EXECUTION}recovery/{facts['kind']}_s": facts["seconds"]},
        outcome=lambda outcome, facts: replace(outcome, recoveries=(*outcome.recoveries, _recovery(facts))),
    ),
    "shards_redealt": EventType(
        _redealt_fields, outcome=lambda outcome, _: replace(outcome, rebalanced=outcome.rebalanced + 1)
    ),
    "data_compared": EventType(lambda facts: {"run": facts["run"], **facts["drift"].as_dict()}, _compared_sentences),
    # its members
    "worker_started": EventType(only("worker", "rank", "pid", "node", "shards", "card?")),
    "server_started": EventType(only("server", "rank", "pid", "node", "card?")),
    "worker_lost": _lost("worker"),
    "server_lost": _lost("server"),
    "worker_left": EventType(
        only("worker", "step"), say("worker {worker} left after step {step}, since its node goes away")
    ),
    "server_left": EventType(
        only("server", "step"), say("server {server} left after step {step}, since its node goes away")
    ),
    "node_drained": EventType(only("node", "members", "step", "seconds:1?"), _drained),
    "disturbed": EventType(only("number", "kind", "worker", "step", "seconds:3?"), _disturbed, outcome=_with_disturbed),
    "stacks": EventType(lambda facts: {**only("worker?", "server?", "stuck")(facts), **facts["stand"].as_dict()}),
    "worker_slow": EventType(
        only("worker", "where", "step", "micro_batch_s:6", "others_s:6", "seconds:1"),
        _slow_sentences,
        outcome=lambda outcome, facts: replace(outcome, slow=(*outcome.slow, _slow(facts))),
    ),
    "answers_differ": EventType(
        _differing_fields,
        _differing_sentences,
        outcome=lambda outcome, facts: replace(outcome, wrong=(*outcome.wrong, *_differing(facts))),
    ),
    "shard_state_unprotected": EventType(only("worker", "why")),
    # checkpoints
    "checkpoint_saved": EventType(
        _saved_fields,
        metrics=lambda facts: {f"{EXECUTION}checkpoint/{name}": facts[name] for name in ("stall_s", "seconds")},
        outcome=lambda outcome, facts: replace(outcome, checkpoint=facts["step"]),
    ),
    "checkpoint_failed": EventType(
        only("step", "why"),
        say("warning: the checkpoint of step {step} could not be written, the run goes on without it: {why}"),
    ),
    "checkpoint_passed_over": EventType(only("why"), say("warning: {why}")),
    # what a member reports
    "evaluated": EventType(
        lambda facts: {"step": facts["step"], "metrics": _finite(facts["metrics"])},
        lambda facts: (f"after step {facts['step'] + 1}: {few.line(facts['metrics'])}",),
        metrics=lambda facts: facts["metrics"],
        outcome=lambda outcome, facts: replace(outcome, metrics=facts["metrics"]),
    ),
    "called_back": EventType(
        lambda facts: {
            **only("step", "seconds?", "failed?", "stopped?")(facts),
            "metrics": _finite(facts.get("metrics", {})),
        },
        _called_back_sentences,
        metrics=lambda facts: {f"callback/{name}": value for name, value in facts.get("metrics", {}).items()},
    ),
    "sent": EventType(
        None,
        metrics=lambda facts: {f"{EXECUTION}exchange/bytes_per_step": facts["bytes"]},
        outcome=lambda outcome, facts: replace(outcome, bytes_per_step=facts["bytes"]),
    ),
    "bytes_read": EventType(None, outcome=_with_bytes),
    "files_read": EventType(None, outcome=_with_files),
    "card_measured": EventType(
        None,
        metrics=lambda facts: {
            f"{EXECUTION}{facts['card']}/{name}": value for name, value in facts["measured"].items()
        },
    ),
    "segment_begun": EventType(only("step", "digest")),
    "caller_refused": EventType(only("member", "why"), say("member {member} {why}")),
    "waiting": EventType(only("worker", "what"), say("worker {worker}: {what}")),
    "device": EventType(
        only("worker", "role?", "why"),
        lambda facts: (f"note: {facts.get('role', 'worker')} {facts['worker']}: {facts['why']}",),
    ),
    "flops": EventType(only("worker", "per_sample", "card", "uuid"), outcome=_with_flops),
    "memory": EventType(_memory_fields, outcome=_with_memory),
    "unserved": EventType(
        only("why", "detail?"), lambda facts: (f"note: {when_served({'rows': None, 'detail': None, **facts})}",)
    ),
    "loader_lost": EventType(only("worker", "why"), say("worker {worker}: {why}")),
    "stages_proved": EventType(only("worker", "seconds")),
    "board_out_of_reach": EventType(only("worker", "why"), say(_CLAIMS)),
}
