"""`rerun=RUN_ID|CRATE [key=value ...]`: repeat a run or a sweep exactly, and compare."""

from __future__ import annotations

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, ended
from orchestrator.driver.terminal import console
from orchestrator.experiments.rerun.audit import Audited
from orchestrator.experiments.rerun.repetition import asked, repeat
from orchestrator.experiments.rerun.run import Rerun, RerunRequest
from orchestrator.experiments.rerun.sweep import SweepRerun

# Settings of this command, not of the repeated run.
_OWN = ("audit", "audit.seed", "environment", "explain", "key", "output", "stages", "tracking.uri", "trust", "wheels")


def run(arguments: Arguments) -> CommandResult:
    environment = arguments.choice("environment", "check", "ignore", "rebuild")
    wanted = RerunRequest(
        check_environment=environment != "ignore",
        explaining=arguments.flag("explain"),
        trusted=arguments.flag("trust"),
        key=arguments.path("key"),
        rebuilding=environment == "rebuild",
        wheels=arguments.path("wheels"),
        preparing=arguments.flag("stages"),
        auditing=asked(arguments.number("audit", 1), arguments.get("audit.seed")),
    )
    done = repeat(arguments.value, arguments.without(*_OWN), arguments.uri, wanted)
    return _said(done, _who(done), arguments)


def _who(done: Rerun | Audited | SweepRerun) -> str:
    """Say which repeats which: "run a repeats run"."""
    if isinstance(done, SweepRerun):
        return f"{done.kind} {done.sweep_id} repeats {done.kind}"
    who = "the preparation of" if done.run_id is None else f"run {done.run_id} repeats"
    return f"{who} segments of run" if isinstance(done, Audited) else f"{who} run"


def _said(done: Rerun | Audited | SweepRerun, who: str, arguments: Arguments) -> CommandResult:
    """The finding of the repetition, or the reason why it came to nothing. who: repeats what, "run a repeats run"."""
    if done.text:
        console.tell(f"{who} {done.rerun_of}\n{done.text}")
    if done.error is not None:
        console.tell(f"error: {done.error if done.text else _failed(done, who)}")
    return ended(done.exit_code, done.as_dict(), arguments)


def _failed(done: Rerun | Audited | SweepRerun, who: str) -> str:
    """The end of a repetition that came to nothing. One that had begun has told its error itself."""
    repetition = f"the repetition of {who.split()[-1]} {done.rerun_of} failed"
    begun = done.sweep_id if isinstance(done, SweepRerun) else done.run_id
    return (
        f"{repetition}, so nothing is compared; its error stands above"
        if begun is not None
        else f"{repetition}: {done.error}"
    )
