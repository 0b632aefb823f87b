"""`rerun=RUN_ID|CRATE [key=value ...]`: repeat a run or a sweep exactly, and compare."""

from __future__ import annotations

from orchestrator.cli.answer import Answer, ended
from orchestrator.cli.arguments import Arguments
from orchestrator.driver.terminal import console
from orchestrator.errors import UsageError
from orchestrator.experiments.rerun.audit import Asked, Audited
from orchestrator.experiments.rerun.run import Rerun, Wanted, rerun
from orchestrator.experiments.rerun.sweep import SweepRerun, rerun_sweep
from orchestrator.experiments.sweep.record import find_sweep
from orchestrator.provenance.crates import crate

# Settings of this command, not of the repeated run.
_OWN = ("audit", "audit.seed", "environment", "explain", "key", "output", "stages", "tracking.uri", "trust", "wheels")


def run(arguments: Arguments) -> Answer:
    environment = arguments.choice("environment", "check", "ignore", "rebuild")
    wanted = Wanted(
        check_environment=environment != "ignore",
        explaining=arguments.flag("explain"),
        trusted=arguments.flag("trust"),
        key=arguments.path("key"),
        rebuilding=environment == "rebuild",
        wheels=arguments.path("wheels"),
        preparing=arguments.flag("stages"),
        auditing=_asked(arguments),
    )
    if wanted.auditing is not None and (wanted.explaining or wanted.preparing):
        what = "explain" if wanted.explaining else "stages"
        raise UsageError(
            f"{what}=true goes with the repetition of a whole run, and audit= repeats parts",
            f"leave {what} out",
            code="rerun.audit-repeats-parts",
        )
    if wanted.wheels is not None and not wanted.rebuilding:
        raise UsageError(
            "wheels= names a folder of wheels for environment=rebuild, which is not asked for",
            "add it",
            code="rerun.wheels-unused",
        )
    passed = arguments.without(*_OWN)
    past = (
        None
        if crate.is_crate(arguments.value) or wanted.key is not None
        else find_sweep(arguments.value, arguments.uri)
    )
    if past is None:
        done = rerun(arguments.value, passed, arguments.uri, wanted)
        who = "the preparation of" if done.run_id is None else f"run {done.run_id} repeats"
        who = f"{who} segments of" if wanted.auditing is not None else who
        return _said(done, f"{who} run", arguments)
    if wanted.auditing is not None:
        raise UsageError("audit: a sweep has many runs", "name one of its trials", code="rerun.audit-of-sweep")
    if wanted.explaining:
        raise UsageError(
            "explain=true: a sweep has many runs",
            "name the one of its trials that has diverged",
            code="rerun.explain-of-sweep",
        )
    if wanted.rebuilding:
        raise UsageError(
            "environment=rebuild: a sweep has many runs", "name one of its trials", code="rerun.rebuild-of-sweep"
        )
    if wanted.preparing:
        raise UsageError("stages=true: a sweep has many runs", "name one of its trials", code="rerun.stages-of-sweep")
    all_done = rerun_sweep(
        past, passed, arguments.uri, check_environment=wanted.check_environment, trusted=wanted.trusted
    )
    return _said(all_done, f"{past.kind} {all_done.sweep_id} repeats {past.kind}", arguments)


def _asked(arguments: Arguments) -> Asked | None:
    """Raises UsageError."""
    count, seed = arguments.number("audit", 1), arguments.get("audit.seed")
    if count is None and seed is not None:
        raise UsageError(
            "audit.seed= draws the segments of an audit, which is not asked for", "add audit=N", code="rerun.audit-seed"
        )
    return None if count is None else Asked(count, seed)


def _said(done: Rerun | Audited | SweepRerun, who: str, arguments: Arguments) -> Answer:
    """The finding of the repetition, or the reason why it came to nothing. who: repeats what, "run a repeats run"."""
    if done.text:
        console.tell(f"{who} {done.rerun_of}\n{done.text}")
    if done.error is not None:
        whose = "" if done.text else f"the repetition of {who.split()[-1]} {done.rerun_of} failed: "
        console.tell(f"error: {whose}{done.error}")
    return ended(done.exit_code, done.as_dict(), arguments)
