"""`warm [idle=TIME] [stop=true]`: the pool of processes in which the next commands begin
(`orchestrator.cluster.forkserver`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.answer import Answer, reported
from orchestrator.cli.arguments import Arguments
from orchestrator.cluster.forkserver import places
from orchestrator.errors import RunFailed, UsageError

_IDLE = "10min"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_LONGEST_S = 24 * 3600.0


@dataclass(frozen=True)
class Pool:
    """servers: what each says of itself; ended: how many were."""

    servers: Sequence[Mapping[str, Any]]
    ended: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"servers": [{**each, "bytes": _bytes(each["pid"])} for each in self.servers], "ended": self.ended}

    def as_text(self) -> str:
        if not self.servers:
            return "the warm pool has ended" if self.ended else "there is no warm pool"
        lines = [
            f"{each['role']:<8}process {each['pid']}, {_bytes(each['pid']) / 2**20:.0f} MB" for each in self.servers
        ]
        idle_s = max(float(each["idle_s"]) for each in self.servers)
        return "\n".join([*lines, f"they end {idle_s:g} s after their last use; warm stop=true ends them now"])


def run(given: Arguments) -> Answer:
    """Raises UsageError, RunFailed."""
    idle_s = _seconds(given.get("idle") or _IDLE)
    if (why := places.untried()) is not None:
        raise UsageError(f"warm: {why}", "launch without it, which takes the time of the imports")
    if given.flag("stop"):
        return reported(Pool([], places.stop()), given)
    places.stop()  # what is there may be of another time, and of code that has changed
    servers = [places.start(role, idle_s, environ) for role, environ in (("driver", _typed()), ("worker", os.environ))]
    failed = [each["failed"] for each in servers if "failed" in each]
    if failed:
        places.stop()
        raise RunFailed(
            f"the warm pool could not be started: {(failed[0].splitlines() or ['it ended'])[-1]}", details=failed[0]
        )
    return reported(Pool(servers), given)


def _typed() -> dict[str, str]:
    """The variables with which this command was typed: with them the next ones begin, too."""
    found = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {
        os.fsdecode(name): os.fsdecode(value) for name, _, value in (each.partition(b"=") for each in found) if name
    }


def _seconds(text: str) -> float:
    """Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"idle={text}: expected a time up to 24h, such as 90s, 10min or 2h")
    return seconds


def _bytes(process: int) -> int:
    """What it holds of the machine's memory; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
