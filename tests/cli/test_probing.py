"""A measurement tells three apart: this process and what it has started, the members among these, and all others."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.settings import ChaosSettings, Every, Settings, Workers
from orchestrator.experiments.simulation.calibration import Layout
from orchestrator.experiments.simulation.candidates import ALONE
from orchestrator.experiments.tuning.probing import Prober, machine_s, processor_s
from tests.worker.pipelines import Mlp
from tests.worker.runs import settings_for


def _process(proc: Path, pid: int, parent: int, seconds: float, name: str = "a process") -> None:
    (proc / str(pid)).mkdir()
    half = round(seconds * os.sysconf("SC_CLK_TCK") / 2)
    fields = ["S", str(parent), *["0"] * 9, str(half), str(half), *["0"] * 30]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """10 has started 11, which has started the members 12 and 13; 14 is of member 13, 20 of somebody else."""
    for pid, parent, seconds in (
        (1, 0, 1.0),
        (10, 1, 2.0),
        (11, 10, 4.0),
        (12, 11, 8.0),
        (13, 11, 16.0),
        (14, 13, 32.0),
    ):
        _process(tmp_path, pid, parent, seconds)
    _process(tmp_path, 20, 1, 64.0, ") S 10 (")
    (tmp_path / "15").mkdir()  # it has ended in between
    return tmp_path


def test_processor_time_is_of_a_process_and_all_below_it_but_the_members(proc: Path) -> None:
    assert processor_s(10, proc=proc) == 62.0
    assert processor_s(10, {12, 13}, proc) == 6.0
    assert processor_s(1, proc=proc) == 127.0
    assert processor_s(99, proc=proc) == 0.0


def test_the_machines_is_what_is_not_idle(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(
        f"cpu  {tick} {2 * tick} {4 * tick} 999 999 {8 * tick} {16 * tick} 0 0 0\ncpu0 1 2\n"
    )
    assert machine_s(tmp_path) == 31.0
    assert 0 < processor_s(os.getpid()) <= machine_s()


def _piece(settings: Settings) -> Settings:
    nobody: Any = None
    return Prober(settings, nobody, nobody, Path(), cpus=2)._piece(Layout(ALONE, 1, 0))


def test_a_piece_of_a_run_that_is_disturbed_is_not_and_may_have_one_worker() -> None:
    plain = settings_for(Mlp)
    cluster = replace(plain.cluster, workers=Workers.parse(2))
    piece = _piece(replace(plain, cluster=cluster, chaos=ChaosSettings(every=Every(seconds=2))))
    assert (piece.chaos.every, piece.cluster.workers.start) == (None, 1)


def test_a_piece_of_a_run_that_is_supervised_is_launched_beside_others_and_so_is_not() -> None:
    plain = settings_for(Mlp)
    assert _piece(replace(plain, run=replace(plain.run, supervised=True))).run.supervised is None
