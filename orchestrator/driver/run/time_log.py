"""The time of a run by what it goes to, as members report it: kept in a file, told to MLflow, drawn up at the end.

It neither measures (`worker.member.time_account` does) nor draws.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.driver.folders import RunFolder
from orchestrator.provenance.tracking import EXECUTION, Tracker
from orchestrator.records import lines, times
from orchestrator.records.lines import LineFile

_TIME = f"{EXECUTION}time/"
_MOST_WORKERS = 64  # of more, MLflow is told the mean only


class TimeLog:
    """Members' reports of their time, for the run's folder and for MLflow."""

    def __init__(
        self,
        files: RunFolder,  # of the run
        tracker: Tracker,  # of the run in MLflow
        say: Callable[[str], None],  # tells the user once if the timeline ends before the run does
        *,
        timeline: bool = False,  # whether the run keeps one, with what was done before the first step
    ) -> None:
        self._timeline = timeline
        self._files = files
        self._tracker = tracker
        self._say = say
        self._file = LineFile(files.times)
        self._unwritten: list[Mapping[str, Any]] = []
        self._spans: LineFile | None = None
        self._recent: dict[str, Mapping[str, Any]] = {}  # windows that MLflow was not told of, by member
        self._full = False

    def add(self, member: str, window: Mapping[str, Any], rank: int | None = None) -> None:
        """Write down how a member spent its time. member: such as "worker 0"; rank: of a worker that belongs to the
        generation."""
        facts = {key: value for key, value in window.items() if key not in ("event", "spans", "timeline_full")}
        self._unwritten.append({"member": member, **({} if rank is None else {"rank": rank}), **facts})
        if "spans" in window:
            self._keep([{"member": member, "started": window["started"], "spans": window["spans"]}])
        if window.get("timeline_full") and not self._full:
            self._full = True
            self._say(
                f"note: the timeline of {member} ends with step {window['first'] + window['steps']}; it is long enough"
            )
        if not window["steps"]:
            return
        if member in self._recent:  # a round of windows is complete
            self._tell(window["first"])
        self._recent[member] = facts

    def tick(self) -> None:
        """Write the windows of all members that have come, together."""
        if self._unwritten:
            self._file.append(self._unwritten)
            self._unwritten = []

    def begun(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Keep phases of the start for the timeline. told: phases of the start (`records.phases`), of the driver or of a
        member."""
        if self._timeline and told:
            self._keep(told)

    def _keep(self, told: Sequence[Mapping[str, Any]]) -> None:
        self._spans = self._spans or LineFile(self._files.spans)
        self._spans.append(told)

    def shards(self) -> dict[str, tuple[int, int]]:
        """As `records.times.shards_by_member`, after `close`."""
        return times.shards_by_member(lines.read(self._files.times))

    def steps_per_s(self) -> float | None:
        """As `records.times.steps_per_s`, after `close`."""
        return times.steps_per_s(lines.read(self._files.times))

    def close(self) -> Mapping[str, times.Seconds]:
        """Tell the rest, write the timeline; returns the seconds of each kind by member. Raises OSError."""
        for file in filter(None, (self._file, self._spans)):
            if file.is_removed:
                file.restore()
        self.tick()
        self._file.close()
        whole = times.by_member(lines.read(self._files.times))
        shown = [member for member in whole if member.startswith("worker ")]
        last = max((int(each["first"] + each["steps"]) for each in self._recent.values()), default=0)
        self._tell(last)
        ranks = times.by_rank(lines.read(self._files.times))  # more workers than those come and go
        for rank in ranks if len(ranks) <= _MOST_WORKERS else ():
            found = {f"{_TIME}rank_{rank}/{kind}": share for kind, share in times.shares(ranks[rank]).items()}
            self._tracker.metrics(last, found)
        if self._spans is not None:
            self._spans.close()
            self._write_timeline()
        return {member: whole[member] for member in shown}

    def _tell(self, step: int) -> None:
        found = times.shares(times.added(self._recent.values()))
        self._recent.clear()
        if found:
            self._tracker.metrics(max(0, step - 1), {f"{_TIME}{kind}": share for kind, share in found.items()})

    def _write_timeline(self) -> None:
        events = times.chrome(sorted(lines.read(self._files.spans), key=lambda line: line["started"]))
        try:
            with self._files.timeline.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [')
                for number, event in enumerate(events):
                    file.write((",\n" if number else "\n") + json.dumps(event))
                file.write("\n]}\n")
        except OSError as error:
            self._say(
                f"warning: {self._files.timeline} cannot be written: {error.strerror}; the run is whole without it"
            )


def summed(by_worker: Mapping[str, times.Seconds]) -> times.Seconds:
    """The seconds of all workers together, by kind."""
    each: Sequence[times.Seconds] = list(by_worker.values())
    return {kind: sum(seconds[kind] for seconds in each) for kind in times.KINDS}
