"""The facts that are known of a Ray that has ended by itself. Nobody is accused without evidence."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import NamedTuple

from orchestrator.common.control_groups import killer_in_words

_LOGS = ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")
_GRAVE = re.compile(r"^\[[^]]* [WEFC] |SIGTERM|shutdown|marked|dead")
_LINES = 12  # of each log
_MOST_BYTES = 2**20  # that are read of a log, from its end
_CROWDED = 2.0  # processes for each core: a machine with more is called busy


class Diagnosis(NamedTuple):
    """The end of a Ray, as far as it is known."""

    remedy: str = "look at the logs of that Ray (on its nodes, by default /tmp/ray/session_latest/logs)"
    details: str = ""  # the last grave lines of its logs, for the folder of the run
    # how many processes the kernel's out-of-memory killer has ended since Ray was started here; None where that is not known
    oom_kills: int | None = None


def how(code: int) -> str:
    """How a process ended. code: as `subprocess` gives it."""
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"


def diagnose(code: int | None, oom_kills: int | None, load: float, cores: int, logs: Path | None) -> Diagnosis:
    """Gather all that is known of the end of a Ray. code: of the process that has ended, None where that is not known; logs:
    the folder of Ray's logs."""
    found = [killer_in_words(oom_kills)] if oom_kills or code in (None, -signal.SIGKILL) else []
    details = "" if logs is None else last_words(logs)
    if details:
        found.append("error.txt of the run has the last lines of its logs")
    if load > _CROWDED * cores:
        found.append(
            f"this machine is busy (load {load:.0f} on {cores} cores): use fewer workers, or end what else runs on it"
        )
    return Diagnosis("; ".join(found) or "start it again", details, oom_kills)


def last_words(logs: Path) -> str:
    """The last lines that tell of trouble, of each log."""
    return "\n\n".join(f"{name}:\n{found}" for name in _LOGS if (found := _grave(logs / name)))


def _grave(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _MOST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = lines if log.suffix == ".err" else [line for line in lines if _GRAVE.search(line)]
    return "\n".join(said[-_LINES:])
