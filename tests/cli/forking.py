"""Many command lines in a row, each in a process of its own that was forked with all that commands import: a tenth of the time.

    python -m tests.cli.forking < argument-lists.json > answers.json        # in the folder of a project

For commands that end before anything is started: a forked process must not start Ray.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

from orchestrator.__main__ import main
from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.provenance.tracking import lean

prepare_environment(None)

LOADED = (  # what commands import once they need it
    "ray",
    "orchestrator.provenance.tracking.store",
    "orchestrator.driver.launch.launch",
    "orchestrator.worker.worker",
    "orchestrator.provenance.crates",
    "orchestrator.driver.preflight.checks",
)


def answer(arguments: list[str]) -> dict[str, object]:
    """`{"code", "out", "err"}` of one command line."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        pid = os.fork()
        if pid == 0:
            _become(arguments, files)
        _, status = os.waitpid(pid, 0)
        out, err = (file.read_text() for file in files)
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err}


def _become(arguments: list[str], files: list[Path]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["orchestrator", *arguments]
    code = 99
    try:
        code = main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    lean.prefer()
    for name in LOADED:
        with lean.importing():
            importlib.import_module(name)
    json.dump([answer(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
