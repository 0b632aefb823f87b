"""The command line: one verb key, then settings as key=value. Progress goes to stderr; stdout is for programs.

python -m orchestrator conf=NAME|PATH [key=value ...]      launch
python -m orchestrator resume=RUN_ID [key=value ...]       go on with a run
python -m orchestrator rerun=RUN_ID [key=value ...]        repeat a run exactly, and compare
python -m orchestrator sweep=NAME|PATH [key=value ...]     search for settings
python -m orchestrator compare=RUN_A,RUN_B                 what differs
python -m orchestrator runs                                list them
python -m orchestrator ui                                  show them in a browser
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.driver.report.outcome import Outcome
from orchestrator.driver.terminal import console, signals
from orchestrator.errors import Interrupted, OrchestratorError, UsageError
from orchestrator.numerics import determinism
from orchestrator.settings import load, origins
from orchestrator.tracking import lean

if TYPE_CHECKING:
    from orchestrator.commands.sweep_rerun import SweepRerun
    from orchestrator.driver.sweep.report import SweepReport

USAGE = """\
usage: python -m orchestrator conf=NAME|PATH [key=value ...]
       python -m orchestrator resume=RUN_ID [key=value ...]
       python -m orchestrator rerun=RUN_ID [environment=ignore] [explain=true] [key=value ...]
       python -m orchestrator sweep=NAME|PATH [parallel=K] [search=NAME] [key=value ...]
       python -m orchestrator compare=RUN_A,RUN_B
       python -m orchestrator runs [output=json] [tracking.uri=URI]
       python -m orchestrator ui [port=N] [tracking.uri=URI]

  conf=NAME          launch the run that conf/NAME.yaml describes; a path works too, and several,
                     comma-separated, are merged left to right
  resume=RUN_ID      go on with that run from its last checkpoint, in the same MLflow run; the beginning of an id is
                     enough, and `last` is the newest run; how it is executed may change (cluster.*, topology.*)
  rerun=RUN_ID       repeat that run exactly, in a clean checkout of its code with its data, and compare: exact, diverged
                     (with the first step that differs), or inputs-differ (with what differs); explain=true: where it has
                     diverged, run that step once more, to tell chance within it from other causes
  sweep=NAME         search for settings, as conf/NAME.yaml describes; each trial is a run, parallel=K of them side by
                     side; resume= and rerun= take the id of a sweep, too
  compare=A,B        what differs between two runs: code, data, settings, environment, the first step
  replay=FILE        with conf=: an asynchronous run takes the order of its updates from there, the rests.jsonl of another
                     run; rerun= does so by itself
  key=value          change a setting, such as cluster.workers=2 or optimizer.lr=0.01; topology=ring is
                     short for topology.name=ring
  runs               list the runs of this project, newest first; tracking.uri: those of that MLflow store
  ui                 show them in a browser, with MLflow's pages, until Ctrl-C; on a free port unless port=N
  output=json        the last line of stdout is one JSON object
  --help             this page

examples
  python -m orchestrator conf=digits
  python -m orchestrator conf=digits topology=tree cluster.workers=3 run.seed=7 output=json
  python -m orchestrator sweep=sweep parallel=3
  python -m orchestrator resume=last cluster.workers=2

All settings: docs/settings.md. Runs are recorded in .orchestrator/ of the working directory.
Exit codes: 0 fine, 1 the run failed, 2 bad usage or configuration, 3 a rerun diverged, 4 it cannot be rerun exactly,
130 interrupted.
"""
# New objects until the next search for garbage: among the million of them that imports make, there is none to be found.
_COLLECTED_AFTER = 100_000
VERBS = ("conf", "sweep", "resume", "rerun", "compare", "runs", "ui")


def main() -> int:
    """The exit code of the command."""
    started = time.monotonic()
    gc.set_threshold(_COLLECTED_AFTER)
    lean.prefer()
    console.prepare()
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        return console.answer(USAGE.rstrip(), 0)
    signals.interrupt()
    determinism.prepare_environment()
    if "" not in sys.path:
        sys.path.insert(0, "")  # the console script starts without the working directory, `python -m` with it
    as_json = "output=json" in arguments
    try:
        verb = _verb(arguments)
        if verb == "runs":
            with _interruptible():
                return _runs(arguments, as_json)
        if verb == "ui":
            with _interruptible():
                return _ui([argument for argument in arguments if argument != "ui"])
    except OrchestratorError as error:
        return _refused(error, as_json, Outcome(error=error).as_dict(None, started))
    rest = [argument for argument in arguments if argument != verb]
    name, _, value = verb.partition("=")
    if name == "compare":
        return _compare(value, rest, as_json=as_json)
    if name == "rerun":
        return _rerun(value, rest)
    return {"conf": _launch, "sweep": _sweep, "resume": _resume}[name](value, rest, started)


def _verb(arguments: list[str]) -> str:
    """The one argument that says what to do. Raises UsageError."""
    verbs = [argument for argument in arguments if argument.partition("=")[0] in VERBS]
    if len(verbs) != 1:
        found = f"found {' and '.join(verbs)}" if verbs else "there is none"
        known = "conf=NAME, sweep=NAME, resume=RUN_ID, rerun=RUN_ID, compare=RUN_A,RUN_B, runs and ui"
        raise UsageError(f"exactly one of {known} is needed; {found}", USAGE.rstrip())
    return verbs[0]


def _launch(conf: str, overrides: list[str], started: float) -> int:
    as_json = "output=json" in overrides
    try:
        with _stdout_for_programs(), _interruptible():
            given, replay = conf.split(","), _value("replay", overrides)
            overrides = [override for override in overrides if not override.startswith("replay=")]
            settings = load(given, overrides)
            as_json = settings.output == "json"
            prepare_environment(settings.cluster.address)
            from orchestrator.commands.launch import launch  # imports ray, which reads that environment

            run_id, outcome = launch(settings, origins(given, overrides), replay=replay)
    except OrchestratorError as error:
        return _refused(error, as_json, Outcome(error=error).as_dict(None, started))
    return _report(run_id, outcome, as_json, started)


def _sweep(entry: str, overrides: list[str], started: float) -> int:  # noqa: ARG001
    as_json = "output=json" in overrides
    try:
        with _stdout_for_programs(), _interruptible():
            prepare_environment(_value("cluster.address", overrides))
            from orchestrator.commands.sweep import sweep

            report = sweep(entry, overrides)
    except OrchestratorError as error:
        return _refused(error, as_json, {"sweep_id": None, "status": "failed", "trials": [], "best": None})
    return _report_sweep(report, as_json)


def _report_sweep(report: SweepReport, as_json: bool) -> int:
    """Say how the sweep ended."""
    if report.error is not None:
        print(f"error: {report.error}\n  sweep {report.sweep_id}", file=sys.stderr)
        print(f"  go on: python -m orchestrator resume={report.sweep_id}", file=sys.stderr)
    code = 0 if report.error is None else report.error.exit_code
    return console.answer(json.dumps(report.as_dict()), code) if as_json else code


def _resume(name: str, overrides: list[str], started: float) -> int:
    as_json = "output=json" in overrides
    try:
        with _stdout_for_programs(), _interruptible():
            prepare_environment(_value("cluster.address", overrides))
            from orchestrator.commands.resume import resume
            from orchestrator.commands.sweep import resume_sweep
            from orchestrator.driver.sweep.record import find_sweep

            uri = _value("tracking.uri", overrides)
            past = find_sweep(name, uri)
            swept = None if past is None else resume_sweep(past, overrides, uri)
            run_id, outcome = resume(name, overrides, uri) if swept is None else ("", Outcome())
    except OrchestratorError as error:
        return _refused(error, as_json, Outcome(error=error).as_dict(None, started))
    return _report(run_id, outcome, as_json, started) if swept is None else _report_sweep(swept, as_json)


def _rerun(name: str, overrides: list[str]) -> int:
    as_json = "output=json" in overrides
    try:
        with _stdout_for_programs(), _interruptible():
            check = _choice("environment", overrides, "check", "ignore") == "check"
            explaining = _choice("explain", overrides, "false", "true") == "true"
            from orchestrator.commands.rerun import rerun
            from orchestrator.commands.sweep_rerun import rerun_sweep
            from orchestrator.driver.sweep.record import find_sweep

            uri = _value("tracking.uri", overrides)
            past = find_sweep(name, uri)
            if past is not None and explaining:
                raise UsageError("explain=true: a sweep has many runs", "name the one of its trials that has diverged")
            if past is not None:
                swept = rerun_sweep(past, overrides, uri, check_environment=check)
            else:
                swept = None
                done = rerun(name, overrides, uri, check_environment=check, explaining=explaining)
    except OrchestratorError as error:
        from orchestrator.commands.rerun import Rerun

        return _refused(error, as_json, Rerun(None, name, None, error=error).as_dict())
    if swept is not None:
        return _report_sweep_rerun(swept, as_json)
    if done.verdict is not None:
        print(f"run {done.run_id} repeats run {done.rerun_of}\n{done.text}", file=sys.stderr)
    if done.error is not None:
        whose = "" if done.verdict is not None else f"the repetition of run {done.rerun_of} failed: "
        print(f"error: {whose}{done.error}", file=sys.stderr)
    return console.answer(json.dumps(done.as_dict()), done.exit_code) if as_json else done.exit_code


def _report_sweep_rerun(done: SweepRerun, as_json: bool) -> int:
    if done.verdict is not None:
        print(f"sweep {done.sweep_id} repeats sweep {done.rerun_of}\n{done.text}", file=sys.stderr)
    if done.error is not None:
        print(f"error: the repetition of sweep {done.rerun_of} failed: {done.error}", file=sys.stderr)
    return console.answer(json.dumps(done.as_dict()), done.exit_code) if as_json else done.exit_code


def _compare(names: str, rest: list[str], *, as_json: bool) -> int:
    from orchestrator.commands.compare import compare

    try:
        _only("compare", rest)
        with _interruptible():
            compared = compare(names, _value("tracking.uri", rest))
    except OrchestratorError as error:
        nothing = {"runs": names.split(","), "differences": [], "first_divergence": None, "files": []}
        return _refused(error, as_json, nothing)
    return console.answer(json.dumps(compared.as_dict()) if as_json else compared.as_text(), 0)


def _only(verb: str, arguments: list[str]) -> None:
    """Raises UsageError for what a verb that changes no settings does not take."""
    known = ("output=json", "output=text")
    unknown = [argument for argument in arguments if argument not in known and not argument.startswith("tracking.uri=")]
    if unknown:
        raise UsageError(f"{verb} takes only output=json and tracking.uri=URI, not {' '.join(unknown)}")


def _stdout_for_programs() -> redirect_stdout[TextIO]:
    """What a pipeline prints while it is imported goes to stderr."""
    return redirect_stdout(sys.stderr)


@contextmanager
def _interruptible() -> Iterator[None]:
    """A signal that comes before the driver of a run listens to them is an error like others. Raises Interrupted."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"interrupted by {interrupt}") from None


def _report(run_id: str, outcome: Outcome, as_json: bool, started: float) -> int:
    """Say how the run ended."""
    if outcome.error is not None:
        print(f"error: {outcome.error}\n  run {run_id}, its files in .orchestrator/{run_id}/", file=sys.stderr)
        if outcome.checkpoint is not None:
            print(f"  go on from step {outcome.checkpoint}: python -m orchestrator resume={run_id}", file=sys.stderr)
    code = 0 if outcome.error is None else outcome.error.exit_code
    return console.answer(json.dumps(outcome.as_dict(run_id, started)), code) if as_json else code


def _value(key: str, overrides: list[str]) -> str | None:
    given = [override.partition("=")[2] for override in overrides if override.partition("=")[0] == key]
    return (given[-1] if given else None) or None


def _choice(key: str, overrides: list[str], first: str, other: str) -> str:
    """The value of a key of the verb, `first` where it is not given. Raises UsageError."""
    found = _value(key, overrides) or first
    if found not in (first, other):
        raise UsageError(f"{key}={found}: it is {first} or {other}")
    return found


def _runs(arguments: list[str], as_json: bool) -> int:
    from orchestrator.commands.runs import runs, table

    _only("runs", [argument for argument in arguments if argument != "runs"])
    found = runs(Path.cwd(), _value("tracking.uri", arguments))
    return console.answer(json.dumps({"runs": [asdict(past) for past in found]}) if as_json else table(found), 0)


def _ui(arguments: list[str]) -> int:
    unknown = [argument for argument in arguments if not argument.startswith(("port=", "tracking.uri="))]
    if unknown:
        raise UsageError(f"ui takes only port=N and tracking.uri=URI, not {' '.join(unknown)}")
    port = _value("port", arguments)
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UsageError(f"port={port}: expected a number from 1 to 65535")
    from orchestrator.commands.ui import ui

    return ui(Path.cwd(), None if port is None else int(port), _value("tracking.uri", arguments))


def _refused(error: OrchestratorError, as_json: bool, report: dict[str, Any]) -> int:
    """Nothing was started. report: the object of the verb."""
    print(f"error: {error}", file=sys.stderr)
    if not as_json:
        return error.exit_code
    told = error.as_dict()
    kept = {key: told[key] for key in ("kind", "message", "remedy")}
    status = "killed" if isinstance(error, Interrupted) else "failed"
    return console.answer(json.dumps({**report, "status": status, "error": kept}), error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
