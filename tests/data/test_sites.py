"""Samples are read at their site only: the list of files is known to all, and no other file is opened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from orchestrator import Files, Pipeline
from orchestrator.common.values import Steps
from orchestrator.config.plan import Compute, Data, Declared, Run, Source, Variant
from orchestrator.data import input_auditing
from orchestrator.data.files.index import index
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from tests.refusals import refused

CLINICS = ("a", "b", "c")
SITES = {"here": (0, 1), "there": (2,)}


class Clinics(Pipeline):
    """how: from where the labels are known; "by rows": clients that own samples of every file."""

    def __init__(self, place: str, how: str = "list") -> None:
        self._place, self._how = place, how

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def datasets(self) -> tuple[Any, Any]:
        return Files(self._place), None

    def labels(self, train: Any, by: str) -> Any:  # noqa: ARG002
        if self._how == "samples":
            return [train[number]["clinic"] for number in range(len(train))]
        if self._how == "by rows":
            return [number % 3 for number in range(len(train))]
        if self._how == "many":
            return list(range(len(train)))
        return numpy.repeat([file.path[0] for file in train.manifest.files], train.file_lengths)

    def collate(self, items: Sequence[Any]) -> Any:
        return torch.tensor([[float(item["x"])] for item in items])

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch).mean()
        return loss


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for clinic in CLINICS:
        rows = [json.dumps({"x": number, "clinic": clinic}) for number in range(4)]
        (tmp_path / f"{clinic}.jsonl").write_text("\n".join(rows) + "\n")
    index(str(tmp_path), "jsonl", {})
    for clinic in CLINICS[:2]:  # whoever is "there" has not got them
        (tmp_path / f"{clinic}.jsonl").unlink()
    return tmp_path


def workload(place: Path, how: str = "list", offered: Sequence[str] = ("there",), **changes: Any) -> PipelineAdapter:
    run = Run(Source("-", {"place": str(place), "how": how}), Compute("cpu", 1, "float32", tf32=False), 1, 5, None)
    data = Data(3, Steps.constant(6), 0, partition=Variant("natural"), sites=SITES, **changes)
    return PipelineAdapter(Clinics, run, data, sites=offered)


def test_a_worker_reads_the_files_of_its_site_and_needs_no_others(place: Path) -> None:
    work = workload(place)
    assert work.samples.attendance.own == (2,)
    assert work.loss(0, 2) is not None
    with refused("site.wrong-node"):
        work.loss(0, 0)
    assert len(work.first_batch(3)) == 2


def test_the_labels_may_not_be_read_from_the_samples(place: Path) -> None:
    with refused("data.other-site", "data.sites"):
        workload(place, "samples")


def test_a_file_of_two_sites_is_refused(place: Path) -> None:
    with refused("site.mixed-file"):
        workload(place, "by rows")


def test_clients_that_are_drawn_anew_have_no_site(place: Path) -> None:
    with refused("site.clients"):
        workload(place, "many")


def test_who_sat_out_then_has_nothing_to_compute(place: Path) -> None:
    """Nobody opens a file of theirs either, also where the repetition is told of no sites."""
    work = workload(place, offered=("here", "there"), sat_out={1: (0, 1)})
    assert [work.batches.rows(1, shard) for shard in range(3)] == [0, 0, 2]
    assert work.loss(1, 0) is None
    assert [work.batches.rows(2, shard) for shard in range(3)] == [2, 2, 2]
    work.samples.attendance.goes_on_without((2,))
    assert work.batches.rows(2, 2) == 0


@pytest.mark.parametrize(("elsewhere", "noted"), [(True, []), (False, ["a.jsonl", "b.jsonl", "c.jsonl"])])
def test_files_of_a_list_that_lies_elsewhere_need_not_be_declared(
    tmp_path: Path, elsewhere: bool, noted: list[str]
) -> None:
    """The list is, and each of them is compared with it: they lie where no driver could look for them."""
    folder = tmp_path / "clinics"
    folder.mkdir()
    for clinic in CLINICS:
        (folder / f"{clinic}.jsonl").write_text('{"x": 1}\n')
    listed = str(tmp_path / "list.json") if elsewhere else None
    index(str(folder), "jsonl", {}, to=listed)
    with input_auditing.window(Declared((str(tmp_path / "list.json"), str(folder / "files.json")))) as window:
        files = Files(listed or str(folder))
        assert [files[number]["x"] for number in range(3)] == [1, 1, 1]
    assert sorted(Path(name).name for name in window.audit.files) == noted
