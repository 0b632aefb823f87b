"""The records of another run that a launch repeats: `rerun` names their files on the command line that it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config.plan import Plan, Segments
from orchestrator.errors import UsageError
from orchestrator.records import barriers, lines, trace


@dataclass(frozen=True)
class Repeated:
    """The records of another run that a run repeats: files, or None where it has no such thing."""

    replay: str | None = None  # the sync barriers of an asynchronous run
    segments: str | None = None  # the steps that an audit repeats, as `rerun=RUN_ID audit=N` writes them
    streams: str | None = None  # the samples that live streams gave
    sat_out: str | None = None  # the trace that tells which shards sat out, since their site was away

    def planned(self, plan: Plan) -> Plan:
        """Raises UsageError."""
        if self.replay is not None:
            plan = replace(plan, replay=_barriers_of(Path(self.replay), plan))
        if self.streams is not None:
            plan = replace(plan, data=replace(plan.data, stream_log=_log_of_streams(Path(self.streams))))
        if self.sat_out is not None:
            # The record says who sat out, so the repetition waits for sites that are away.
            data = replace(plan.data, sat_out=_sat_out_of(Path(self.sat_out), plan), sits_out=False)
            plan = replace(plan, data=data)
        return plan if self.segments is None else replace(plan, segments=_segments_of(Path(self.segments), plan))


NOTHING = Repeated()


def _log_of_streams(file: Path) -> str:
    """Raises UsageError."""
    if not file.is_file():
        raise UsageError(
            f"streams={file}: there is no such file",
            "give the streams.jsonl of a run with live streams, which rerun=RUN_ID does",
            code="replay.no-streams",
        )
    return str(file.resolve())


def _sat_out_of(file: Path, plan: Plan) -> dict[int, tuple[int, ...]]:
    """Raises UsageError."""
    remedy = "give the trace.jsonl of a run with data.sites, which rerun=RUN_ID does"
    try:
        found = trace.sat_out(file)
        known = range(plan.data.shards)
        if not all(shard in known for shards in found.values() for shard in shards):
            raise ValueError(f"it has shards that are none of {plan.data.shards}")
    except OSError as error:
        raise UsageError(
            f"sat_out={file}: it cannot be read: {error.strerror}", remedy, code="replay.sat-out-unreadable"
        ) from error
    except ValueError as error:
        raise UsageError(f"sat_out={file}: {error}", remedy, code="replay.sat-out") from None
    return found


def _segments_of(file: Path, plan: Plan) -> Segments:
    """Raises UsageError."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        ranges = tuple((int(first), int(end)) for first, end in values["ranges"])
        found = Segments(str(values["of"]), str(values["storage"]), ranges)
        if not ranges or any(first >= end for first, end in ranges) or sorted(ranges) != list(ranges):
            raise ValueError("its ranges are not in order")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"segments={file}: it cannot be used: {error}", "rerun=RUN_ID audit=N writes it", code="replay.segments"
        ) from None
    if not plan.lockstep:
        raise UsageError(
            f"segments={file}: a run with sync={plan.sync.name} has none",
            "leave segments out",
            code="replay.no-segments",
        )
    return found


def _barriers_of(file: Path, plan: Plan) -> tuple[Mapping[str, Any], ...]:
    """Raises UsageError."""
    if plan.lockstep:
        raise UsageError(
            f"replay={file}: a run with sync={plan.sync.name} has no rests", "leave replay out", code="replay.no-rests"
        )
    remedy = "give the rests.jsonl of an asynchronous run, which rerun=RUN_ID does"
    try:
        found = tuple(lines.read(file))
        barriers.check(found, plan.data.shards)
    except OSError as error:
        raise UsageError(
            f"replay={file}: it cannot be read: {error.strerror}", remedy, code="replay.rests-unreadable"
        ) from error
    except ValueError as error:
        raise UsageError(f"replay={file}: {error}", remedy, code="replay.rests") from None
    if not found:
        raise UsageError(f"replay={file}: it has no rest", remedy, code="replay.empty")
    return found
