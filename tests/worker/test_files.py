"""Files as training data: the digest of map-style data in the same order, whatever the layout, the loaders and the cache."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import IterableDataset

from orchestrator import Files, Pipeline
from orchestrator.data.files import cache
from orchestrator.data.files.index import index
from tests.products import thinned
from tests.refusals import refused
from tests.worker.runs import Layout, Run, assert_same_run, rotating, train

pytestmark = pytest.mark.threads

COUNTS = (7, 3, 11, 5, 8, 2, 9, 6, 4, 10)
BLOCKS = {"name": "blocks", "files": 2}


def row(number: int) -> dict[str, Any]:
    return {"x": [((number * 7 + place) % 11) / 11 for place in range(4)], "y": number % 3}


class InMemory:
    """The same samples, of the same files."""

    file_lengths: Sequence[int] = COUNTS

    def __len__(self) -> int:
        return sum(COUNTS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return row(number)


class Addressed(InMemory, IterableDataset[Any]):
    """As MosaicML's StreamingDataset is: an IterableDataset that has a length and is read by number."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("it is read by number")


class OfRows(Pipeline):
    """place: of Files; None: the same samples in memory; "addressed": of a class that also says it is a stream."""

    def __init__(self, place: str | None = None) -> None:
        self._place = place

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def datasets(self) -> tuple[Any, Any]:
        kinds = {None: InMemory, "addressed": Addressed}
        return (kinds[self._place]() if self._place in kinds else Files(str(self._place))), None

    def collate(self, items: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([each["x"] for each in items]), torch.tensor([each["y"] for each in items])

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


def written(folder: Path | str) -> None:
    files, root = fsspec.core.url_to_fs(str(folder))
    files.makedirs(root, exist_ok=True)
    number = 0
    for file, count in enumerate(COUNTS):
        rows = [row(number + each) for each in range(count)]
        files.pipe_file(f"{root}/{file}.jsonl", "".join(f"{json.dumps(each)}\n" for each in rows).encode())
        number += count
    index(str(folder), None, {})


def _run(place: Path | str | None, layout: Layout = Layout(1), **more: Any) -> Run:  # noqa: B008
    args = {"place": None if place is None else str(place)}
    return train(
        OfRows,
        layout,
        args=args,
        order=BLOCKS,
        optimizer={"name": "adam", "lr": 0.01},
        shards=4,
        batch_size=12,
        epochs=2,
        **more,
    )


@functools.cache
def _reference() -> Run:
    return _run(None)


def test_files_are_the_samples_in_memory(tmp_path: Path) -> None:
    written(tmp_path)
    for layout in (Layout(1), *rotating(1, 5)):
        assert_same_run(_run(tmp_path, layout), _reference())


def _elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> tuple[str, Path]:
    """The place of the files by a protocol that is fetched from, and the folder of a cache of so many bytes."""
    (folder / "store").mkdir()
    written(folder / "store")
    monkeypatch.setattr(cache, "use", lambda *_: None)
    monkeypatch.setattr(cache, "_used", {"limit": limit, "folder": str(folder / "cache"), "patience_s": 60.0})
    return f"local://{folder}/store", folder / "cache"


def _kept(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("workers", thinned([1, 4, 2], 3, 2))
@pytest.mark.parametrize("blocks", thinned([1, 3], 2))
def test_a_cache_of_one_block_changes_no_bit(
    blocks: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers share it, and wait for each other while one of them waits for room."""
    limit = blocks * _block(tmp_path)
    place, folder = _elsewhere(tmp_path, monkeypatch, limit)
    assert_same_run(_run(place, Layout(workers)), _reference())
    assert 0 < _kept(folder) <= limit


def _block(folder: Path) -> int:
    """The bytes of the two largest files."""
    (folder / "sizes").mkdir()
    written(folder / "sizes")
    return sum(sorted(path.stat().st_size for path in (folder / "sizes").glob("*.jsonl"))[-2:])


def test_a_cache_without_room_for_a_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = _block(tmp_path) - 1
    place, _ = _elsewhere(tmp_path, monkeypatch, limit)
    with refused("data.cache-group", "data.cache_gb") as caught:
        _run(place)
    assert "or lower data.order.files" in str(caught.value)


def test_what_a_data_set_inherits_from_does_not_count() -> None:
    assert_same_run(_run("addressed"), _reference())


@pytest.mark.long
@pytest.mark.slow
def test_loaders_read_the_same(tmp_path: Path) -> None:
    written(tmp_path)
    assert_same_run(_run(tmp_path, Layout(2), loaders=1), _reference())
