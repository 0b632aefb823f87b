"""The one way from the settings to the class of a pipeline: ours as it is, one of another framework by its adapter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.adapters import table
from orchestrator.adapters.source import Source
from orchestrator.pipeline import Pipeline
from tests.refusals import refused


class Module:
    """The base of a framework."""


class Mine(Module):
    """A class of the user."""

    def __init__(self, width: int) -> None:
        self.width = width


class Ours(Pipeline):
    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def datasets(self) -> Any:
        return torch.utils.data.TensorDataset(torch.zeros(4, 2)), None

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(*batch).sum()


def adapt(found: type, source: Source) -> type[Pipeline]:
    class Adapted(Ours):
        def __init__(self, **args: Any) -> None:
            self.module, self.source = found(**args), source

    return Adapted


def _nothing_amiss(*_asked: Any) -> list[str]:
    return []


@pytest.fixture
def _adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = table.Adapter("Module", ("tests.adapters",), adapt, _nothing_amiss, "Data")
    monkeypatch.setattr(table, "ADAPTERS", (adapter,))


@pytest.mark.usefixtures("_adapter")
def test_a_class_is_taken_by_the_name_of_its_base() -> None:
    source = Source(f"{__name__}:Mine", {"width": 3}, f"{__name__}:Module", {"rows": 5})
    kind: Any = table.find(source)
    pipeline = kind(**source.args)
    assert issubclass(kind, Pipeline)
    assert (pipeline.module.width, pipeline.source.data_args) == (3, {"rows": 5})


@pytest.mark.usefixtures("_adapter")
def test_a_pipeline_is_itself() -> None:
    assert table.find(Source(f"{__name__}:Ours", {})) is Ours


def test_a_class_that_no_adapter_takes_is_refused() -> None:
    with refused("pipeline.not-a-pipeline"):
        table.find(Source(f"{__name__}:Mine", {"width": 3}))


class Trainer:
    """It stands for that of transformers, whose import takes seconds."""


Trainer.__module__ = "transformers.trainer"


class Overriding(Trainer):
    def compute_loss(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Overriding", "transformers:Trainable"),
        ("Net", "whose model() returns it"),
        ("_nothing_amiss", "a loop of one's own"),
    ],
)
def test_the_way_to_a_pipeline_is_told_from_what_was_named(name: str, remedy: str) -> None:
    with refused("pipeline.not-a-pipeline") as caught:
        table.find(Source(f"{__name__}:{name}", {}))
    assert remedy in caught.value.remedy


class Net(nn.Linear): ...


def test_data_beside_a_pipeline_are_refused() -> None:
    with refused("pipeline.data-twice"):
        table.find(Source(f"{__name__}:Ours", {}, f"{__name__}:Module"))


def test_a_base_is_known_by_its_package_too() -> None:
    adapter = table.Adapter("Module", ("tests.adapt", "torch"), adapt, _nothing_amiss, "Data")
    assert not adapter.takes(Mine)
    assert adapter.takes(nn.Linear)


@pytest.mark.parametrize("source", [Source("a:B", {"c": 1}), Source("a:B", {}, "a:D", {"e": [2]})])
def test_a_source_travels_as_plain_values(source: Source) -> None:
    assert Source.of(source.as_dict()) == source
