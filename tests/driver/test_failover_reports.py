"""Reports that members leave for the next driver go into the files of the run, whole or not at all, and once."""

from __future__ import annotations

import errno
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import LocalFolder
from orchestrator.checkpoint.writer import PartWriter
from orchestrator.cluster.actors.driver_loss import PREFIX, written
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.failover_reports import FailoverReports, take, untold
from orchestrator.records.lines import LineFile, read
from tests.refusals import refused

Entry = dict[str, Any]


class Run:
    """A run with three lines in its trace, and members that leave files."""

    def __init__(self, folder: Path) -> None:
        self.files = RunFolder(folder, "run")
        self.storage = LocalFolder(self.files.checkpoints)
        evaluated = {"event": "evaluated", "step": 2, "metrics": {"validation/loss": 1.0}}
        for path, found in ((self.files.trace, [line(step) for step in range(3)]), (self.files.journal, [evaluated])):
            with closing(LineFile(path)) as file:
                file.append(found)
        self._members = 0

    def leave(self, *entries: Entry) -> None:
        self._members += 1
        self.storage.put(f"{PREFIX}{self._members}.jsonl", [written(entries)])

    def part(self, step: int, part: int, parts: int, generation: int = 0) -> Entry:
        events: list[Entry] = []
        writer = PartWriter(self.storage, events.append)
        state = TrainingState({"steps": step}, {f"weight{part}": torch.full((2,), float(step))})
        writer.begin(state, step=step, generation=generation, part=part, parts=parts)
        writer.wait()
        writer.close()
        (event,) = events
        return event

    def take(self, *, supersedes: bool = False) -> FailoverReports:
        return take(self.storage, Catalog(self.storage, 2), self.files, 0, supersedes=supersedes)

    @property
    def steps(self) -> list[int]:
        return [each["step"] for each in read(self.files.trace)]

    def untold(self, until: int = 9) -> list[Entry]:
        return list(untold(self.files, until))

    @property
    def left(self) -> list[str]:
        return [name for name in self.storage.sizes() if name.startswith(PREFIX)]


def line(step: int, loss: str = "0x1p+0") -> Entry:
    return {"step": step, "loss": loss, "gradient": "00"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def told(*steps: int) -> list[Entry]:
    return [{"trace": line(step)} for step in steps]


def test_nothing_left_changes_nothing(run: Run) -> None:
    assert run.take() == FailoverReports()
    assert run.steps == [0, 1, 2]


def test_lines_evaluations_and_the_checkpoint_of_all_parts_are_taken(run: Run) -> None:
    evaluated = {"event": "evaluated", "step": 4, "metrics": {"validation/loss": 0.5}}
    run.leave(*told(2, 3), {"printed": "hello"}, evaluated, run.part(5, 0, 2))
    run.leave(*told(3, 4), evaluated, run.part(5, 1, 2))
    found = run.take()
    assert found.step == 5
    assert found.sentence == "the members of the last driver saved step 5 when it ended"
    assert run.untold() == [line(3), line(4), evaluated]
    assert run.steps == [0, 1, 2, 3, 4]
    assert [each["step"] for each in read(run.files.journal)] == [2, 4]
    manifest = Catalog(run.storage, 2).latest().manifest
    assert manifest is not None
    assert manifest.step == 5
    assert run.left == []
    assert run.take() == FailoverReports()


def test_calls_of_on_evaluation_that_the_driver_had_not_heard_of_are_told_once(run: Run) -> None:
    called = [{"event": "called_back", "step": step, "metrics": {"worst": 2.0}} for step in (1, 2, 3, 4)]
    with closing(LineFile(run.files.journal)) as file:
        file.append(called[:1])
    run.leave(*called, *told(3), run.part(4, 0, 1))
    assert run.take().step == 4
    assert run.untold(4) == [line(3), *called[1:3]]  # step 4 is done again
    assert run.take() == FailoverReports()
    with closing(LineFile(run.files.journal)) as file:
        file.append(called[1:2])  # by a driver that ended within this
    assert run.untold(4) == [line(3), *called[2:3]]


def test_what_mlflow_is_to_be_told_stays_until_that_is_done(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was known to the process that took it alone; the next one found that the files of the run have it already."""
    run.leave(*told(3), run.part(4, 0, 1))
    with monkeypatch.context() as patched:
        patched.setattr(run.storage, "delete", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.take()
    assert run.left
    assert run.take().step == 4
    assert (run.left, run.untold()) == ([], [line(3)])
    run.leave(*told(4), run.part(5, 0, 1))
    assert run.take().step == 5
    assert (run.steps, run.untold()) == ([0, 1, 2, 3, 4], [line(3), line(4)])
    damaged = run.files.untold.read_bytes().replace(b'"step"', b'"stem"', 1)
    run.files.untold.write_bytes(damaged)
    with refused("resume.untold-damaged", "untold.jsonl is damaged"):
        run.untold()


def test_a_checkpoint_that_lacks_a_part_is_none_and_a_whole_one_before_it_counts(run: Run) -> None:
    """One worker was left by the other, which had committed a step more."""
    run.leave(*told(3), run.part(4, 0, 1))
    run.leave(*told(3, 4), run.part(5, 0, 2))
    assert run.take().step == 4
    run.leave(run.part(6, 1, 2))
    assert run.take().step is None


def test_members_that_disagree_change_nothing(run: Run) -> None:
    run.leave({"trace": line(3)}, run.part(4, 0, 1))
    run.leave({"trace": line(3, "0x1.8p+0")})
    found = run.take()
    assert found.step is None
    assert "replicas disagree about the loss of step 3" in (found.sentence or "")
    assert run.steps == [0, 1, 2]
    assert run.left == []


def test_what_a_full_disk_does_not_take_stays_for_the_next_try(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was removed, with the checkpoint that members had made as they ended."""
    run.leave(*told(3), run.part(4, 0, 1))

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, refused("resume.reports-not-taken", "No space left on device"):
        patched.setattr("orchestrator.records.lines.os.fsync", full)
        run.take()
    assert run.left
    assert run.take().step == 4
    assert (run.steps, run.left) == ([0, 1, 2, 3], [])


def test_a_damaged_report_is_told_and_holds_nothing_up(run: Run) -> None:
    run.storage.put(f"{PREFIX}9.jsonl", [b"\0\0\0\n"])
    assert "cannot be used: " in (run.take().sentence or "")
    assert (run.steps, run.left) == ([0, 1, 2], [])


def test_where_replicas_run_free_a_later_generation_replaces_what_was_written(run: Run) -> None:
    run.leave({"trace": line(2, "0x1.8p+0"), "generation": 3}, {"trace": line(3), "generation": 3})
    run.take(supersedes=True)
    assert [each["loss"] for each in read(run.files.trace)] == ["0x1p+0", "0x1p+0", "0x1.8p+0", "0x1p+0"]


def test_a_torn_line_counts_no_more_than_none(run: Run) -> None:
    whole = written(told(3, 4))
    run.storage.put(f"{PREFIX}9.jsonl", [whole[:-3]])
    run.take()
    assert run.untold() == [line(3)]
    assert json.loads(whole.splitlines()[0]) == told(3)[0]
