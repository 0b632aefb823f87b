"""`make demo-kill`: kill a worker in the middle of a run, and see that the result is the one of a run that nobody disturbed.

    python -m benchmarks.demo_kill

Trains the digits with four workers, kills one with SIGKILL after 200 steps, lets the run end, and trains again undisturbed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.records.lines import read

COMMAND = (sys.executable, "-m", "orchestrator", "conf=digits", "run.steps=1500", "output=json")
KILL_AFTER = 200
VICTIM = 2
T = TypeVar("T")


def main() -> int:
    before = _runs()
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    folder = _wait(process, lambda: next(iter(_runs() - before), None))
    pid = _wait(process, lambda: _pid(folder))
    _wait(process, lambda: _steps(folder) >= KILL_AFTER or None)
    print(f"--- kill -9 {pid}   (worker {VICTIM}, after {_steps(folder)} steps)", file=sys.stderr)
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate()
    disturbed = json.loads(out.splitlines()[-1])
    print("--- the same again, undisturbed", file=sys.stderr)
    undisturbed = json.loads(
        subprocess.run(COMMAND, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
    )
    for recovery in disturbed["recoveries"]:
        print(f"{recovery['kind']}: went on after {recovery['seconds']} s, {recovery['steps_lost']} steps lost")
    print(f"killed       {disturbed['digest']}\nundisturbed  {undisturbed['digest']}")
    equal = disturbed["digest"] == undisturbed["digest"] is not None
    print("equal to the last bit" if equal else "DIFFERENT")
    return 0 if equal else 1


def _runs() -> set[Path]:
    return {path.parent for path in Path(".orchestrator").glob("*/journal.jsonl")}


def _pid(folder: Path) -> int | None:
    started = (event for event in read(folder / "journal.jsonl") if event["event"] == "worker_started")
    return next((event["pid"] for event in started if event["worker"] == VICTIM), None)


def _steps(folder: Path) -> int:
    trace = folder / "trace.jsonl"
    return sum(1 for _ in read(trace)) if trace.exists() else 0


def _wait(process: subprocess.Popen[Any], look: Callable[[], T | None]) -> T:
    """The thing that `look` sees at last. Exits when the run ends before."""
    while (seen := look()) is None:
        if process.poll() is not None:
            sys.exit("the run ended before it could be disturbed")
        time.sleep(0.02)
    return seen


if __name__ == "__main__":
    sys.exit(main())
