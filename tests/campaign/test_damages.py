"""A damaged file differs by one bit, or is shorter; what a resume has to say of it, and when what it does is a finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign import damages
from campaign.kinds import storage

PLACES = st.floats(0, 1, exclude_max=True)


@given(content=st.binary(min_size=1), place=PLACES, bit=st.integers(0, storage.BITS - 1))
def test_one_bit_is_flipped(content: bytes, place: float, bit: int) -> None:
    made = storage.damaged(content, "bit", place, bit)
    assert len(made) == len(content)
    assert sum((one ^ other).bit_count() for one, other in zip(made, content, strict=True)) == 1


@given(content=st.binary(min_size=1), place=PLACES)
def test_the_end_is_cut_off(content: bytes, place: float) -> None:
    made = storage.damaged(content, "end", place, 0)
    assert content.startswith(made)
    assert len(made) < len(content)


def test_the_file_is_of_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in (5, 10):
        blobs = [{"name": f"{step}-{part}"} for part in range(2)]
        (folder / f"checkpoint-{step:012d}.json").write_text(json.dumps({"blobs": blobs}))
    assert storage.find(tmp_path, storage.MANIFEST, 0.0).name == "checkpoint-000000000010.json"
    assert [storage.find(tmp_path, storage.PART, place).name for place in (0.0, 0.49, 0.5, 0.99)] == [
        *("10-0", "10-0", "10-1", "10-1")
    ]
    assert storage.find(tmp_path, "trace.jsonl", 0.9) == tmp_path / "trace.jsonl"


@pytest.mark.parametrize(
    ("what", "code", "said", "last", "found"),
    [
        ("trace.jsonl", 0, "", 0, []),
        ("trace.jsonl", 1, "error: /a/file is damaged", 0, []),
        ("trace.jsonl", 1, "error: something is damaged", 0, ["not named"]),
        ("trace.jsonl", 1, "error: /a/file is damaged", 1, ["with the file as it was"]),
        (storage.PART, 0, "warning: checkpoint 10 is not used: a file was altered", 0, []),
        (storage.PART, 0, "", 0, ["does not tell"]),
        (storage.MANIFEST, 1, "file: checkpoint 10 is not used", 0, ["the checkpoint before"]),
    ],
)
def test_what_a_resume_may_do(what: str, code: int, said: str, last: int, found: list[str]) -> None:
    told: dict[str, Any] = {"what": what, "how": "bit", "place": 0.5, "file": "file", "code": code, "said": said}
    got = list(damages.findings({"damage": told}, last))
    assert len(got) == len(found)
    assert all(part in one for part, one in zip(found, got, strict=True))
