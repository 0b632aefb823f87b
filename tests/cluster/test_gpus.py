"""How many GPUs a Ray is told of: names of cards, which it counts itself, and of MIG devices."""

from __future__ import annotations

import pytest

from orchestrator.cluster.sessions import gpus

COUNTED = {
    "MIG-1,MIG-2": 2,
    "MIG-2": 1,
    "MIG-GPU-aa/1/0,MIG-GPU-aa/2/0,MIG-GPU-bb/1/0": 3,  # as drivers before 470 name them
    "0,1": None,
    "GPU-6b2a": None,
    "": None,
    "NoDevFiles": None,
    "0,MIG-1": None,
}


@pytest.mark.parametrize("named", COUNTED)
def test_ray_is_told_how_many_devices_of_mig_there_are(named: str) -> None:
    """It counts cards itself, of which there may be fewer."""
    assert gpus.for_ray({"CUDA_VISIBLE_DEVICES": named}) == COUNTED[named]
    assert gpus.for_ray({}) is None
