"""A profile by a process of its own is the one that a worker computes, and the process ends when nobody wants it any more."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from orchestrator.config.plan import Compute, Run, Source
from orchestrator.data.drift import compare
from orchestrator.data.profile import profile
from orchestrator.data.profiling import Profiling
from orchestrator.driver.recording.comparisons import Predecessor
from orchestrator.driver.run import drift_watch
from orchestrator.driver.run.drift_watch import DriftWatch

pytestmark = pytest.mark.slow
MODULE = """
import os, time, torch
from pathlib import Path
from torch.utils.data import TensorDataset
from orchestrator import Pipeline

class Noise(Pipeline):
    def __init__(self, shift=0.0, waits=False):
        self.shift, self.waits = shift, waits
    def model(self): ...
    def datasets(self):
        print("said by the pipeline")
        if self.waits:
            Path("pid.new").write_text(str(os.getpid()))
            Path("pid.new").rename("pid")
            time.sleep(600)
        return TensorDataset(torch.randn(300, 2) + self.shift, torch.arange(300) % 3), None
    def loss(self, model, batch): ...
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "noise.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def before(inputs: dict[str, str]) -> Predecessor:
    torch.manual_seed(1)
    return Predecessor("before", profile(TensorDataset(torch.randn(300, 2), torch.arange(300) % 3)), inputs)


def plan(shift: float, *, waits: bool = False) -> Run:
    return Run(Source("noise:Noise", {"shift": shift, "waits": waits}), Compute("cpu", 1, "float32", False), 7, 1, None)


def test_what_changed_is_profiled_and_compared() -> None:
    watch = DriftWatch(plan(2.0), {"data": "new"}, lambda: before({"data": "old"}))
    assert watch.take() is None
    watch.begin()
    assert watch._thread is not None
    watch._thread.join()
    found = watch.take()
    watch.close()
    assert found is not None
    assert (found.run_id, {shift.column for shift in found.drift.drifted}) == ("before", {"0[0]", "0[1]"})
    assert watch.take() is None, "it is said once"


@pytest.mark.parametrize("known", [{"data": "same"}, {}])
def test_where_no_declared_input_changed_nothing_is_started(known: dict[str, str]) -> None:
    watch = DriftWatch(plan(2.0), {"data": "same"}, lambda: before(known))
    watch.begin()
    assert watch._thread is not None
    watch._thread.join()
    assert watch._profiling is None
    assert watch.take() is None


@pytest.mark.long
def test_it_is_the_profile_that_is_computed_here() -> None:
    first = Profiling(Source("noise:Noise", {}), 7).result()
    assert first is not None
    assert (first["length"], first["sampled"], first["classes"]) == (300, 300, {"0": 100, "1": 100, "2": 100})
    assert compare(first, before({}).profile) is not None


@pytest.mark.long
def test_what_cannot_be_read_is_no_profile() -> None:
    assert Profiling(Source("noise:Missing", {}), 7).result() is None


def wait_for(path: Path) -> int:
    while not path.exists():
        os.sched_yield()
    return int(path.read_text())


@pytest.mark.long
def test_a_run_that_ends_does_not_wait_for_it(project: Path) -> None:
    watch = DriftWatch(plan(2.0, waits=True), {"data": "new"}, lambda: before({"data": "old"}))
    watch.begin()
    pid = wait_for(project / "pid")
    watch.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert watch.take() is None


@pytest.mark.long
def test_it_ends_with_whoever_asked(project: Path) -> None:
    """As when a driver is killed: the other end of its input is closed."""
    profiling = Profiling(Source("noise:Noise", {"waits": True}), 7)
    wait_for(project / "pid")
    profiling._child.messages.end()
    assert profiling._child.wait() == 1
    profiling.close()


def test_a_store_that_hangs_holds_no_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_watch, "_LAST_S", 0.05)
    answers = threading.Event()

    def hangs() -> None:
        answers.wait()

    watch = DriftWatch(plan(2.0), {"data": "new"}, hangs)
    watch.begin()
    try:
        watch.close()
        assert watch.take() is None
    finally:
        answers.set()
