"""The account of what a worker has read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.files_read import FilesRead, from_dict
from orchestrator.worker.model.read_account import ReadAccount


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=8).filter(any),
    batches=st.lists(st.lists(st.integers(0, 31), min_size=1, max_size=5), max_size=8),
    listening_from=st.integers(0, 8),
)
def test_each_file_that_was_read_is_told_once(
    lengths: list[int], batches: list[list[int]], listening_from: int
) -> None:
    """Also those that were read before anybody listened."""
    owners = [file for file, length in enumerate(lengths) for _ in range(length)]
    batches = [[index % len(owners) for index in batch] for batch in batches]
    heard: list[dict[str, Any]] = []
    account = ReadAccount(lengths)
    for number, batch in enumerate(batches):
        if number == listening_from:
            account.emit = heard.append
        account.add(batch, 0)
    account.emit = heard.append
    account.tell()
    heard = [event for event in heard if event["event"] == "files_read"]  # bytes are what tests before this one read
    told = [number for event in heard for number in event["numbers"]]
    assert sorted(told) == sorted({owners[index] for batch in batches for index in batch})
    assert all(event["of"] == len(lengths) for event in heard)


@given(st.frozensets(st.integers(0, 40)), st.frozensets(st.integers(0, 40)))
def test_what_was_read_is_kept_and_added_up(one: frozenset[int], other: frozenset[int]) -> None:
    read = from_dict(FilesRead(one, 41).as_dict())
    assert read == FilesRead(one, 41)
    assert (read | FilesRead(other, 41)).numbers == one | other
    assert FilesRead().sentence == ""
