"""The command line: one verb key, then settings as key=value. Progress goes to stderr; stdout is for programs.

python -m orchestrator conf=NAME|PATH [key=value ...]      launch
python -m orchestrator resume=RUN_ID [key=value ...]       go on with a run
python -m orchestrator runs                                list them
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from orchestrator.cluster.environment import prepare_environment
from orchestrator.driver.outcome import Outcome
from orchestrator.errors import OrchestratorError, UsageError
from orchestrator.numerics import determinism
from orchestrator.settings import load

USAGE = """\
usage: python -m orchestrator conf=NAME|PATH [key=value ...]
       python -m orchestrator resume=RUN_ID [key=value ...]
       python -m orchestrator runs [output=json] [tracking.uri=URI]

  conf=NAME          launch the run that conf/NAME.yaml describes; a path works too, and several,
                     comma-separated, are merged left to right
  resume=RUN_ID      go on with that run from its last checkpoint, in the same MLflow run; the beginning of an id is
                     enough, and `last` is the newest run; how it is executed may change (cluster.*, topology.*)
  key=value          change a setting, such as cluster.workers=2 or optimizer.lr=0.01; topology=ring is
                     short for topology.name=ring
  runs               list the runs of this project, newest first; tracking.uri: those of that MLflow store
  output=json        the last line of stdout is one JSON object
  --help             this page

examples
  python -m orchestrator conf=digits
  python -m orchestrator conf=digits topology=tree cluster.workers=3 run.seed=7 output=json
  python -m orchestrator resume=last cluster.workers=2

All settings: docs/settings.md. Runs are recorded in .orchestrator/ of the working directory.
Exit codes: 0 fine, 1 the run failed, 2 bad usage or configuration, 4 cannot be rerun exactly (strict), 130 interrupted.
"""
VERBS = ("conf", "resume", "runs")


def main() -> int:
    """The exit code of the command."""
    started = time.monotonic()
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return 0
    determinism.prepare_environment()
    if "" not in sys.path:
        sys.path.insert(0, "")  # the console script starts without the working directory, `python -m` with it
    as_json = "output=json" in arguments
    try:
        verb = _verb(arguments)
        if verb == "runs":
            return _runs(arguments, as_json)
    except OrchestratorError as error:
        return _refused(error, as_json, started)
    rest = [argument for argument in arguments if argument != verb]
    name, _, value = verb.partition("=")
    return (_launch if name == "conf" else _resume)(value, rest, started)


def _verb(arguments: list[str]) -> str:
    """The one argument that says what to do. Raises UsageError."""
    verbs = [argument for argument in arguments if argument.partition("=")[0] in VERBS]
    if len(verbs) != 1:
        found = f"found {' and '.join(verbs)}" if verbs else "there is none"
        raise UsageError(f"exactly one of conf=NAME, resume=RUN_ID and runs is needed; {found}", USAGE.rstrip())
    return verbs[0]


def _launch(conf: str, overrides: list[str], started: float) -> int:
    as_json = "output=json" in overrides
    try:
        with _stdout_for_programs():
            settings = load(conf.split(","), overrides)
            as_json = settings.output == "json"
            prepare_environment(settings.cluster.address)
            from orchestrator.commands.launch import launch  # imports ray, which reads that environment

            run_id, outcome = launch(settings)
    except OrchestratorError as error:
        return _refused(error, as_json, started)
    return _report(run_id, outcome, as_json, started)


def _resume(name: str, overrides: list[str], started: float) -> int:
    as_json = "output=json" in overrides
    try:
        with _stdout_for_programs():
            prepare_environment(_value("cluster.address", overrides))
            from orchestrator.commands.resume import resume

            run_id, outcome = resume(name, overrides, _value("tracking.uri", overrides))
    except OrchestratorError as error:
        return _refused(error, as_json, started)
    return _report(run_id, outcome, as_json, started)


def _stdout_for_programs() -> redirect_stdout[TextIO]:
    """What a pipeline prints while it is imported goes to stderr."""
    return redirect_stdout(sys.stderr)


def _report(run_id: str, outcome: Outcome, as_json: bool, started: float) -> int:
    """Say how the run ended."""
    if outcome.error is not None:
        print(f"error: {outcome.error}\n  run {run_id}, its files in .orchestrator/{run_id}/", file=sys.stderr)
        if outcome.checkpoint is not None:
            print(f"  go on from step {outcome.checkpoint}: python -m orchestrator resume={run_id}", file=sys.stderr)
    if as_json:
        print(json.dumps(outcome.as_dict(run_id, started)))
    return 0 if outcome.error is None else outcome.error.exit_code


def _value(key: str, overrides: list[str]) -> str | None:
    given = [override.partition("=")[2] for override in overrides if override.partition("=")[0] == key]
    return (given[-1] if given else None) or None


def _runs(arguments: list[str], as_json: bool) -> int:
    from orchestrator.commands.runs import runs, table

    known = ("runs", "output=json", "output=text")
    unknown = [argument for argument in arguments if argument not in known and not argument.startswith("tracking.uri=")]
    if unknown:
        raise UsageError(f"runs takes only output=json and tracking.uri=URI, not {' '.join(unknown)}")
    found = runs(Path.cwd(), _value("tracking.uri", arguments))
    print(json.dumps({"runs": [asdict(past) for past in found]}) if as_json else table(found))
    return 0


def _refused(error: OrchestratorError, as_json: bool, started: float) -> int:
    """Nothing was started."""
    print(f"error: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(Outcome(error=error).as_dict(None, started)))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
