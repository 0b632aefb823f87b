"""on_evaluation is called in a process of its own, from which nothing comes back but numbers and words."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator import Pipeline
from orchestrator.adapters.adapted import Adapted, Course
from orchestrator.cluster.forkserver.children import child
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.worker.between_steps import callbacks
from orchestrator.worker.between_steps.boundary import Whole
from orchestrator.worker.between_steps.callbacks import Callbacks
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica

pytestmark = pytest.mark.slow
DATA = torch.utils.data.TensorDataset(torch.zeros(4, 2))


class Called(Pipeline):
    """Spoils what it is given, and fails at some steps."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))

    def datasets(self) -> tuple[Any, None]:
        return DATA, None

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).sum()

    def on_evaluation(self, step: int, metrics: Mapping[str, float], model: nn.Module) -> Any:
        weight = model[0].weight  # type: ignore[index]
        found = {
            "sum": float(weight.sum()),
            "loss": metrics["loss"],
            "training": model.training,
            "random": torch.rand(()),
        }
        print("called at", step)
        weight.zero_()
        model.train()
        if step == 6:
            mlflow = SimpleNamespace(active_run=lambda: SimpleNamespace(info=SimpleNamespace(run_name="calm-duck-141")))
            sys.modules["mlflow"] = mlflow  # type: ignore[assignment]
        if step == 1:
            raise ValueError("no")
        if step == 2:
            os._exit(7)
        if step == 3:
            return 5
        if step == 4:
            time.sleep(600)  # until its process is ended
        return found


class Told:
    """The entries that come of the calls, in order."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._came = threading.Condition()

    def __call__(self, entry: dict[str, Any]) -> None:
        with self._came:
            self.entries.append(entry)
            self._came.notify_all()

    def wait_for(self, enough: Callable[[list[dict[str, Any]]], bool]) -> None:
        with self._came:
            assert self._came.wait_for(lambda: enough(self.entries), 200)

    @property
    def calls(self) -> dict[int, dict[str, Any]]:
        return {entry["step"]: entry for entry in self.entries if "step" in entry}


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def calls(told: Told, forked: None) -> Iterator[Callbacks]:  # noqa: ARG001
    settings = {"run": {"steps": 9}, "pipeline": {"target": f"{__name__}:Called"}, "optimizer": "sgd"}
    found = Callbacks(resolve(load([settings], [])), told, child)
    yield found
    found.close()


def state(value: float) -> dict[str, torch.Tensor]:
    made = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)).state_dict()
    return {**made, "0.weight": torch.full((1, 2), value)}


def nothing() -> None:
    pass


def test_each_call_has_a_copy_of_its_own_and_what_fails_is_told(calls: Callbacks, told: Told) -> None:
    given = state(1.5)
    before = {name: tensor.clone() for name, tensor in given.items()}
    random = torch.get_rng_state()
    for step in (0, 1, 2, 3, 0, 5):
        calls.call(step, {"loss": 0.25}, given)
    calls.finish(nothing, 200)
    assert {name: tensor.equal(before[name]) for name, tensor in given.items()} == dict.fromkeys(given, True)
    assert torch.get_rng_state().equal(random)
    found = [entry for entry in told.entries if "step" in entry]
    assert [entry["step"] for entry in found] == [0, 1, 2, 3, 0, 5]
    assert [entry.get("failed", "").splitlines()[:1] for entry in found[1:4]] == [
        ["on_evaluation() raised ValueError: no"],
        ["its process ended with code 7"],
        ["on_evaluation() returned 5: 'int' object has no attribute 'items'"],
    ]
    assert found[0]["metrics"] == found[4]["metrics"]  # its random numbers, too, follow from seed and step
    assert (found[5]["metrics"]["sum"], found[5]["metrics"]["training"]) == (3.0, 0.0)
    assert {"printed": "called at 5"} in told.entries
    for _ in range(2):
        calls.call(6, {"loss": 0.0}, given)
    calls.finish(nothing, 200)
    [note] = [entry["why"] for entry in told.entries if entry.get("event") == "device"]
    assert "calm-duck-141; leave mlflow.start_run() and mlflow.log_... out" in note
    _ends_a_call_that_does_not_return(calls, told)


def _ends_a_call_that_does_not_return(calls: Callbacks, told: Told) -> None:
    """Closing does, as a worker does that ends."""
    calls.call(4, {"loss": 0.0}, state(0.0))
    process = calls._child
    assert process is not None
    calls.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert 4 not in told.calls


def _what_a_stop_leaves_is_told(calls: Callbacks, told: Told) -> None:
    """One call is under way, and one waits."""
    calls.leave()
    assert told.calls[4]["failed"] == "it had not returned when the run was stopped, nor had 1 after it"
    told.entries[:] = [entry for entry in told.entries if entry.get("step") != 4]


def test_training_waits_for_no_call_and_what_is_too_much_is_left_out(
    calls: Callbacks, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_WAITING_BYTES", 1)
    calls.call(0, {"loss": 0.0}, state(0.0))
    told.wait_for(lambda entries: any("step" in entry for entry in entries))
    calls.call(4, {"loss": 0.0}, state(0.0))
    with calls._changed:
        assert calls._changed.wait_for(lambda: calls._calling == 4, 200)
    for step in (5, 6, 7):
        calls.call(step, {"loss": 0.0}, state(0.0))
    _what_a_stop_leaves_is_told(calls, told)
    beats: list[None] = []
    calls.finish(lambda: beats.append(None), 0.5)
    left_out = {step: entry["failed"].partition(":")[0] for step, entry in told.calls.items() if "failed" in entry}
    assert beats
    assert left_out[7] == "it had not returned after 0.5 s (cluster.step_timeout_s)"
    assert left_out[5] == left_out[6] == "it was left out"
    assert "failed" not in told.calls[0]


class Unsaved(Called):
    """Its centre moves, and no state_dict holds it."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
        model.register_buffer("centre", torch.zeros(2), persistent=False)
        model.register_buffer("mask", torch.ones(2), persistent=False)
        return model

    def buffers(self) -> dict[str, str]:
        return {"centre": "mean"}

    def on_evaluation(self, step: int, metrics: Mapping[str, float], model: nn.Module) -> Any:  # noqa: ARG002
        return {"centre": model.get_buffer("centre").sum(), "mask": model.get_buffer("mask").sum()}


@pytest.mark.usefixtures("forked")
def test_buffers_that_move_and_are_not_saved_are_given(told: Told) -> None:
    """They had their first values there, and in metrics() those of the step."""
    settings = {"run": {"steps": 9}, "pipeline": {"target": f"{__name__}:Unsaved"}, "optimizer": "sgd"}
    plan = resolve(load([settings], []))
    workload = PipelineAdapter(Unsaved, plan.run, plan.data)
    whole = Whole(workload, Replica(workload.model, rules=workload.buffer_rules), 1, workload.evaluate)
    workload.model.get_buffer("centre").add_(2)
    assert list(whole.unsaved()) == ["centre"]
    calls = Callbacks(plan, told, child)
    calls.call(5, {}, {**whole.state(), **whole.unsaved()})
    calls.finish(nothing, 200)
    calls.close()
    assert told.calls[5]["metrics"] == {"centre": 4.0, "mask": 2.0}


class OfARun(Adapted):
    """It is told of its run, as what an adapter has made, and asks for its data."""

    epoch = rows = 0
    looks_at_data = True

    def begin(self, course: Course) -> list[str]:
        self.epoch = course.epoch
        return []

    def model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def datasets(self) -> tuple[Any, None]:
        self.rows = len(DATA)
        return DATA, None

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).sum()

    def on_evaluation(self, step: int, metrics: Mapping[str, float], model: nn.Module) -> Any:  # noqa: ARG002
        return {"epoch": (step + 1) // self.epoch, "rows": self.rows}


@pytest.mark.usefixtures("forked")
def test_a_pipeline_of_another_framework_is_told_of_the_run_there_too(told: Told) -> None:
    """A module asked in on_validation_epoch_end for its epoch, which was 0 at each evaluation, and for its data module, which
    was None."""
    settings = {"run": {"steps": 9}, "pipeline": {"target": f"{__name__}:OfARun"}, "optimizer": "sgd"}
    calls = Callbacks(resolve(load([settings], [])), told, child)
    calls.begin(Course(9, 3, 10, "constant"))
    calls.call(5, {}, nn.Linear(2, 1).state_dict())
    calls.finish(nothing, 200)
    calls.close()
    assert [entry.get("metrics") for entry in told.entries if "step" in entry] == [{"epoch": 2.0, "rows": 4.0}]
