"""A seal is of the lines of so many steps, however the file grew and whatever stands behind them."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.hash_seal import Seal, of_barriers, of_trace
from orchestrator.records.lines import LineFile


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_it_is_of_the_first_lines_however_often_it_was_asked(batches: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, done = Path(folder) / "trace.jsonl", 0
        file = LineFile(path)
        grown = Seal(file, of_trace)
        for count in batches:
            file.append({"step": step} for step in range(done, done + count + 1))  # one more than is sealed
            done += count
            lines = "".join(json.dumps({"step": step}) + "\n" for step in range(done))
            expected = f"{done}:{hashlib.sha256(lines.encode()).hexdigest()}"
            assert grown.of(done) == Seal(file, of_trace).of(done) == expected
            file.keep(done)
        file.close()


def test_rests_are_of_the_steps_that_they_end(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "rests.jsonl")
    file.append({"rest": number, "steps": 4 * (number + 1)} for number in range(3))
    assert Seal(file, of_barriers).of(8).startswith("2:")
    assert Seal(file, of_barriers).of(7).startswith("1:")
    file.close()


def test_lines_that_are_replaced_are_read_again(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "trace.jsonl")
    file.append({"step": step, "loss": "a"} for step in range(4))
    seal = Seal(file, of_trace)
    before = seal.of(4)
    file.keep(2)
    file.append({"step": step, "loss": "b"} for step in range(2, 4))
    assert seal.of(4) != before
    assert seal.of(4) == Seal(file, of_trace).of(4)
    file.close()
