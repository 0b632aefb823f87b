"""The command line: one verb key, then settings as key=value. Progress goes to stderr; stdout is for programs.

python -m orchestrator conf=NAME|PATH [key=value ...]      launch
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import redirect_stdout

from orchestrator.cluster import local
from orchestrator.driver.outcome import Outcome
from orchestrator.errors import OrchestratorError, UsageError
from orchestrator.numerics import determinism
from orchestrator.settings import Settings, load

USAGE = """\
usage: python -m orchestrator conf=NAME|PATH [key=value ...]

  conf=NAME          launch the run that conf/NAME.yaml describes; a path works too, and several,
                     comma-separated, are merged left to right
  key=value          change a setting, such as cluster.workers=2 or optimizer.lr=0.01; topology=ring is
                     short for topology.name=ring
  output=json        the last line of stdout is one JSON object
  --help             this page

examples
  python -m orchestrator conf=digits
  python -m orchestrator conf=digits topology=tree cluster.workers=3 run.seed=7 output=json

All settings: docs/settings.md. Runs are recorded in .orchestrator/ of the working directory.
Exit codes: 0 fine, 1 the run failed, 2 bad usage or configuration, 4 cannot be rerun exactly (strict), 130 interrupted.
"""
VERBS = ("conf",)


def main() -> int:
    """The exit code of the command."""
    started = time.monotonic()
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
        return 0
    determinism.prepare_environment()
    local.prepare_environment()
    if "" not in sys.path:
        sys.path.insert(0, "")  # the console script starts without the working directory, `python -m` with it
    as_json = "output=json" in arguments
    run_id, outcome = None, Outcome()
    try:
        with redirect_stdout(sys.stderr):  # what a pipeline prints while it is imported is not for programs
            settings = _settings(arguments)
            as_json = settings.output == "json"
            from orchestrator.commands.launch import launch

            run_id, outcome = launch(settings)
    except OrchestratorError as error:
        outcome.error = error
    if outcome.error is not None:
        print(f"error: {outcome.error}", file=sys.stderr)
        if run_id is not None:
            print(f"  run {run_id}, its files in .orchestrator/{run_id}/", file=sys.stderr)
    if as_json:
        print(json.dumps(outcome.as_dict(run_id, started)))
    return 0 if outcome.error is None else outcome.error.exit_code


def _settings(arguments: list[str]) -> Settings:
    """The settings that the command line asks for. Raises UsageError, ConfigurationError."""
    verbs = [argument for argument in arguments if argument.partition("=")[0] in VERBS]
    if len(verbs) != 1:
        found = f"found {' and '.join(verbs)}" if verbs else "there is none"
        raise UsageError(f"exactly one of {', '.join(f'{verb}=' for verb in VERBS)} is needed; {found}", USAGE.rstrip())
    conf = verbs[0].partition("=")[2]
    return load(conf.split(","), [argument for argument in arguments if argument is not verbs[0]])


if __name__ == "__main__":
    sys.exit(main())
