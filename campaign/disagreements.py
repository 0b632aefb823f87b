"""Replicas that disagree: in a run of the virtual cluster one bit of one replica is another one from some step on.

Votes go up a tree and reports pass relays. Neither may hide a replica that differs: the run ends with an error that names that
step, by the copies of its line that members report.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import torch

from orchestrator.config.settings import Workers
from orchestrator.errors import Inconsistent
from orchestrator.worker.model.updater import Updater
from tests.virtual_cluster.plans import Plan, calm
from tests.virtual_cluster.runs import Run, Told, check
from tests.worker import pipelines
from tests.worker.runs import ONE, Layout, settings_for

STEPS: Final = 4
_TOPOLOGIES: Final = ("ring", "tree", "peer_to_peer", "hierarchical")
_MANY: Final = (6, 9, 14, 22)  # whose votes have two and three levels
_WORKERS: Final = (2, 3, 5, *_MANY)


def one_differs(seed: int) -> None:
    """Raises AssertionError where it is not found, or is told of another step."""
    dice = Random(f"disagreement {seed}")
    workers = dice.choice(_WORKERS)
    drawn = _quiet(seed, workers, dice.choice(_TOPOLOGIES), apart=dice.random() < 0.5)
    worker, step = dice.randrange(workers), dice.randrange(STEPS)
    where = f"seed {seed}: {workers} workers, worker {worker} differs after step {step}"
    with tempfile.TemporaryDirectory() as folder:
        run = _Differing(drawn, Path(folder))
        with patch.object(Updater, "move", run.moved(worker, step)):
            told = run.live()
    (outcome,) = told.outcomes
    error = None if outcome is None else outcome.error
    assert isinstance(error, Inconsistent), f"{where}; it ends with {error!r}"
    assert error.code == "record.two-ways", f"{where}; it ends with {error!r}"
    assert f"of step {step}:" in error.message, f"{where}; it is told otherwise: {error.message}"


def none_differs(seed: int) -> None:
    """A run with votes of several levels ends as one with a single worker. Raises AssertionError where it does not."""
    dice = Random(f"agreement {seed}")
    workers, topology, apart = dice.choice(_MANY), dice.choice(_TOPOLOGIES), dice.random() < 0.5
    drawn = _quiet(seed, workers, topology, apart=apart)
    with tempfile.TemporaryDirectory() as folder:
        check(Run(drawn, Path(folder)).live(), alone(workers))


def every_alone() -> None:
    """Make the runs that `none_differs` compares with."""
    for workers in _MANY:
        alone(workers)


@functools.cache
def alone(shards: int) -> Told:
    """With one worker that has all shards."""
    (settings,) = _quiet(0, shards, "ring", apart=False).layouts
    cluster = replace(settings.cluster, workers=Workers.parse(1))
    drawn = replace(calm("plain", ONE), layouts=(replace(settings, cluster=cluster),))
    with tempfile.TemporaryDirectory() as folder:
        return Run(drawn, Path(folder)).live()


def _quiet(seed: int, workers: int, topology: str, *, apart: bool) -> Plan:
    settings = settings_for(
        pipelines.Mlp,
        Layout(workers, topology),
        steps=STEPS,
        shards=workers,
        batch_size=2 * workers,
        args={"held_out": None},
    )
    return replace(calm("plain", ONE), seed=seed, layouts=(settings,), apart=apart, lateness_s=0.1 * apart)


class _Differing(Run):
    """A run that may end because replicas disagree."""

    def moved(self, member: int, step: int) -> Callable[..., None]:
        """In place of `Updater.move`: after that step the lowest bit of a parameter of that member is another one."""
        whole = Updater.move

        def instead(updater: Updater, at: int, *more: Any) -> None:
            whole(updater, at, *more)
            if at == step and self._cluster.here().number == member:
                updater._replica.parameters[0].data.view(-1).view(torch.int32)[0] ^= 1

        return instead

    def _is_right(self, error: Exception) -> bool:
        return isinstance(error, Inconsistent)
