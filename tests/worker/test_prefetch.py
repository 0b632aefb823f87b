"""Files are fetched ahead in the order of reading, within the share of the cache, and anew if a run turns back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.data.files.manifest import File
from orchestrator.data.files.places import place_of
from orchestrator.data.files.prefetch import FilePrefetcher
from orchestrator.data.loaders import Key
from orchestrator.worker.model.prefetch import PrefetchWindow

SIZE, STEPS, SHARDS = 10, 12, (0, 2)


class Told:
    """In the place of the process that fetches."""

    def __init__(self, _place: str) -> None:
        self.messages: list[list[int]] = []

    def send(self, files: list[list[Any]]) -> None:
        self.messages.append([int(path) for path, *_ in files])

    def fetched(self) -> int:
        return 0

    def close(self) -> None:
        pass


def _indices(step: int, shard: int) -> list[int]:
    """Each shard reads a file for three steps, and then the next one."""
    file = shard * 10 + step // 3
    return [file * SIZE, file * SIZE + 1]


def _ahead(share: int) -> FilePrefetcher:
    files = [File(str(number), SIZE, 100, str(number)) for number in range(40)]

    return FilePrefetcher(place_of(Path("/nowhere")), files, lambda index: index // SIZE, share, lambda _: None)


@given(share=st.integers(200, 1000))
def test_what_is_read_is_expected_within_the_share(share: int) -> None:
    ahead, told = _ahead(share), Told("")
    ahead._fetcher = told  # type: ignore[assignment]
    window = PrefetchWindow(ahead, SHARDS, range(STEPS + 1), _indices)
    for step in range(STEPS):
        for shard in SHARDS:
            window.reaches(Key(step, shard, tuple(_indices(step, shard))))
            assert window.known(step, shard) == _indices(step, shard)
            wanted = told.messages[-1]
            assert shard * 10 + step // 3 in wanted
            assert 100 * len(wanted) <= share


@pytest.mark.parametrize("rows", [16, 400])
def test_of_many_small_files_few_are_told_and_those_of_each_shard_always(rows: int) -> None:
    """Each step goes through all that are told."""
    files = [File(str(number), 1, 1, str(number)) for number in range(20_000)]
    told = Told("")
    ahead = FilePrefetcher(place_of(Path("/nowhere")), files, lambda index: index, 10**9, lambda _: None)
    ahead._fetcher = told  # type: ignore[assignment]

    def indices(step: int, shard: int) -> list[int]:
        first = (step * len(SHARDS) + SHARDS.index(shard)) * rows
        return list(range(first, first + rows))

    window = PrefetchWindow(ahead, SHARDS, range(STEPS + 1), indices)
    for step in range(STEPS):
        for shard in SHARDS:
            window.reaches(Key(step, shard, tuple(indices(step, shard))))
            assert len(told.messages[-1]) <= max(256, len(SHARDS) * rows)
            assert {*indices(step, shard)} <= {*told.messages[-1]}


def test_a_share_without_room_for_a_micro_batch_of_each_shard_fetches_nothing_ahead() -> None:
    ahead, told = _ahead(100), Told("")
    ahead._fetcher = told  # type: ignore[assignment]
    window = PrefetchWindow(ahead, SHARDS, range(STEPS + 1), _indices)
    for shard in SHARDS:
        window.reaches(Key(0, shard, tuple(_indices(0, shard))))
    assert not any(told.messages)


def test_a_step_that_is_repeated_is_a_new_beginning() -> None:
    ahead, told = _ahead(1000), Told("")
    ahead._fetcher = told  # type: ignore[assignment]
    window = PrefetchWindow(ahead, SHARDS, range(STEPS + 1), _indices)
    for step in (0, 1, 2, 3, 4, 3):
        for shard in SHARDS:
            window.reaches(Key(step, shard, tuple(_indices(step, shard))))
            assert shard * 10 + step // 3 in told.messages[-1]
