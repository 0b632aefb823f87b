"""The profile of a data set: right figures for ordinary items, a word and no exception for odd ones."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from orchestrator import Files, Stream
from orchestrator.data.files.index import index
from orchestrator.data.mixture import Sources
from orchestrator.data.profile import LIMIT, profile


def test_pairs_of_images_and_classes() -> None:
    images = torch.arange(24.0).reshape(6, 2, 2)
    found = profile(TensorDataset(images, torch.tensor([0, 1, 1, 2, 2, 2])))
    assert found["length"] == found["sampled"] == found["counted"] == 6
    assert found["classes"] == {"0": 1, "1": 2, "2": 3}
    assert found["fields"]["0"] == {
        "dtype": "float32",
        "shape": [2, 2],
        "min": 0.0,
        "max": 23.0,
        "mean": 11.5,
        "std": pytest.approx(float(images.double().std(correction=0)), rel=1e-8),
    }
    assert found["fields"]["1"]["shape"] == []
    assert "unreadable" not in found


def test_a_sample_is_evenly_spaced_and_labels_at_hand_are_all_counted() -> None:
    read: list[int] = []

    class Watched(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return tuple(tensor[index] for tensor in self.tensors)

    found = profile(Watched(torch.zeros(100, 3), torch.arange(100) % 2), limit=4)
    assert read == [0, 25, 50, 75]
    assert found["classes"] == {"0": 50, "1": 50}
    assert (found["sampled"], found["counted"]) == (4, 100)


class Point(NamedTuple):
    x: torch.Tensor
    y: float


ODD: list[Any] = [
    {"image": torch.ones(2), "meta": {"text": "a", "size": 3}},
    Point(torch.ones(1), 2.0),
    torch.tensor([1 + 2j]),
    torch.tensor([math.nan, math.inf, 1.0]),
    torch.tensor([], dtype=torch.float64),
    torch.ones(3, dtype=torch.bfloat16),
    torch.eye(3).to_sparse(),
    torch.ones(2, requires_grad=True),
    np.array(["a"]),
    np.float32(2),
    [1, 2, 3],
    [],
    (),
    "text",
    b"bytes",
    None,
    True,
    object(),
    (torch.ones(1), 3),
    (torch.ones(1), torch.tensor([1, 2])),
    (1, 2.5),
    np.array([1e300, -1e300]),
    2**80,
]


@given(st.lists(st.sampled_from(range(len(ODD))), max_size=6))
def test_no_item_is_too_odd(chosen: list[int]) -> None:
    found = profile([ODD[index] for index in chosen])
    json.dumps(found, allow_nan=False)
    assert found["length"] == len(chosen)


@pytest.mark.parametrize("index", range(len(ODD)))
def test_an_odd_item_is_read_or_named(index: int) -> None:
    found = profile([ODD[index]])
    assert found["sampled"] == 1
    assert "unreadable" not in found


def test_names_of_parts() -> None:
    assert list(profile(ODD[:1])["fields"]) == ["image", "meta.text", "meta.size"]
    assert list(profile(ODD[1:2])["fields"]) == ["x", "y"]
    assert profile([ODD[3]])["fields"]["item"]["not_finite"] == 2
    assert profile([torch.ones(2), torch.ones(3)])["fields"]["item"]["shape"] == "2 different, such as [2] and [3]"


class Broken:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> float:
        if index % 2:
            raise OSError(f"no file {index}")
        return float(index)


def test_what_cannot_be_read_is_said() -> None:
    found = profile(Broken())
    assert (found["length"], found["sampled"], found["fields"]["item"]["max"]) == (10, 5, 8.0)
    assert found["unreadable"] == [f"item {index}: OSError: no file {index}" for index in (1, 3, 5)]
    assert profile(iter([]))["length"] is None


class Slow(TensorDataset):
    """Each reading takes as long as it wants; on a loaded machine, any."""

    def __init__(self, clock: list[float], *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self._clock = clock

    def __getitem__(self, index: int) -> Any:
        self._clock[0] += 10.0
        return tuple(tensor[index] for tensor in self.tensors)


@pytest.mark.slow
def test_a_profile_depends_on_the_data_and_on_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = torch.arange(3000.0).reshape(1000, 3), torch.arange(1000) % 7
    quick = profile(TensorDataset(*tensors))
    clock = [0.0]
    for name in ("monotonic", "perf_counter", "time", "process_time"):
        monkeypatch.setattr(f"time.{name}", lambda: clock[0])
    assert profile(Slow(clock, *tensors)) == quick
    assert clock[0] == 10.0 * quick["sampled"]
    assert quick["sampled"] == 512, "they are small"
    assert profile(TensorDataset(torch.zeros(100, 400, 400)))["sampled"] == LIMIT


def test_of_as_many_samples_as_can_be_numbered_few_are_read() -> None:
    class Numbers:
        def __len__(self) -> int:
            return 2**63 - 1

        def __getitem__(self, index: int) -> float:
            assert 0 <= index < len(self)
            return float(index)

    found = profile(Numbers())
    assert (found["length"], found["sampled"], found.get("unreadable")) == (2**63 - 1, 512, None)
    assert found["fields"]["item"]["max"] > 2.0**62


def test_of_large_items_evenly_spaced_elements_are_looked_at() -> None:
    image = torch.zeros(20, 50)
    image[::2, ::10] = 1.0
    for item in (image, image.T.contiguous().T, image.numpy()):
        field = profile([item], elements=100)["fields"]["item"]
        assert (field["shape"], field["min"], field["max"], field["mean"]) == ([20, 50], 0.0, 1.0, 0.5)
    assert profile([image], elements=1)["fields"]["item"]["max"] == 1.0, "the first element"
    wide = profile([{str(number): number for number in range(10_000)}])
    assert (wide["sampled"], len(wide["fields"])) == (1, 256)


def test_of_very_many_labels_evenly_spaced_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.data.profile._MOST_LABELS", 10)
    found = profile(TensorDataset(torch.zeros(100, 1), torch.arange(100) // 50))
    assert (found["classes"], found["counted"]) == ({"0": 5, "1": 5}, 10)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), min_size=1, max_size=8))
def test_moments_are_those_of_all_values(rows: list[list[float]]) -> None:
    values = np.concatenate([np.array(row) for row in rows])
    found = profile([np.array(row) for row in rows])["fields"]["item"]
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-6, abs=1e-3)
    assert found["std"] == pytest.approx(values.std(), rel=1e-5, abs=1e-2)
    assert (found["min"], found["max"]) == pytest.approx((values.min(), values.max()), rel=1e-8)


def test_no_stream_is_touched() -> None:
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state(legacy=False)["state"])
    profile(TensorDataset(torch.zeros(300, 4), torch.zeros(300, dtype=torch.long)))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), str(np.random.get_state(legacy=False)["state"]))


def test_of_many_files_few_are_looked_into(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.jsonl").write_text("".join(f'{{"x": {number}}}\n' for _ in range(50)))
    index(str(tmp_path), None, {})
    files, opened = Files(tmp_path), []
    hold = files._hold
    files._hold = lambda file: opened.append(file.path) or hold(file)  # type: ignore[method-assign,func-returns-value]
    found = profile(files)
    assert opened == ["0.jsonl", "2.jsonl", "5.jsonl", "8.jsonl"]
    assert (found["length"], found["of_files"]) == (450, [4, 9])
    assert found["fields"]["x"]["max"] == 8
    assert profile(Sources({"files": files, "rows": [{"x": 9}]}))["of_files"] == [4, 10]


def test_sources_without_files_have_none() -> None:
    sources = Sources({"a": [1.0, 2.0], "b": [3.0]})
    assert sources.file_lengths is None
    assert "of_files" not in profile(sources)


def test_nothing_is_taken_of_a_stream() -> None:
    class Untouched(Stream):
        live = True

        def stream(self, *_: object) -> NoReturn:
            raise AssertionError("it is not opened")

    assert profile(Untouched())["stream"] == "live"
