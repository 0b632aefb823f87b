"""Architectures that people train: one trace and one digest, whole and in stages, on every mesh and every wire."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.products import thinned
from tests.worker.pipeline_parallel.sockets import Sockets
from tests.worker.pipeline_parallel.zoo import ZOO
from tests.worker.pipelines import has_lstm_of_bfloat16
from tests.worker.runs import ONE, Layout, Run, train

SETTINGS: dict[str, Any] = {
    "steps": 3,
    "shards": 4,
    "batch_size": 8,
    "clip": 0.5,
    "optimizer": {"name": "adamw", "lr": 0.01},
    "tensors_every": 3,
}
RAGGED = Layout(5, "tree", stages=2)  # three columns, of which one lacks its second stage
MESHES = [(2, 2), (4, 4), (4, 2), (5, 2)]  # workers, stages


@functools.cache
def unsplit(kind: Any, precision: str) -> Run:
    return train(kind, ONE, precision=precision, **SETTINGS)


def assert_same(split: Run, kind: Any, precision: str) -> None:
    expected = unsplit(kind, precision)
    assert split.trace == expected.trace
    assert split.digest == expected.digest
    assert str(split.metrics) == str(expected.metrics)
    assert split.parameters.keys() == expected.parameters.keys()
    assert all(torch.equal(tensor, expected.parameters[name]) for name, tensor in split.parameters.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(ZOO, len(ZOO)), ids=lambda kind: kind.__name__)
def test_a_ragged_mesh_gives_the_trace_and_the_digest_of_the_unsplit_model(kind: Any) -> None:
    assert_same(train(kind, RAGGED, precision="float32", **SETTINGS), kind, "float32")


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ring", "tree"])
@pytest.mark.parametrize(("workers", "stages"), MESHES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_every_mesh_gives_the_same(kind: Any, precision: str, workers: int, stages: int, topology: str) -> None:
    if precision == "bfloat16" and kind.__name__ == "Lstm" and not has_lstm_of_bfloat16():
        pytest.skip("torch has no LSTM of bfloat16 for this processor")
    layout = Layout(workers, topology, stages=stages)
    assert_same(train(kind, layout, precision=precision, **SETTINGS), kind, precision)


@pytest.mark.long
@pytest.mark.parametrize("wire", ["unix", "tcp"])
@pytest.mark.parametrize(("workers", "stages"), MESHES)
@pytest.mark.parametrize("kind", ZOO, ids=lambda kind: kind.__name__)
def test_every_wire_gives_the_same(kind: Any, workers: int, stages: int, wire: Any) -> None:
    """Shared memory of one host, and TCP."""
    layout = Layout(workers, "tree" if wire == "unix" else "ring", stages=stages)
    with Sockets(wire, workers) as sockets:
        split = train(kind, layout, wire=sockets.transport, regions=sockets.regions, precision="float32", **SETTINGS)
    assert_same(split, kind, "float32")
