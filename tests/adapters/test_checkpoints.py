"""Checkpoints of Lightning: their weights, tied tensors once, and what is no such file."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.adapters.lightning import checkpoints
from orchestrator.numerics.digests import distinct_state
from tests.refusals import refused


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight


def test_weights_come_back_with_tied_tensors_once(tmp_path: Path) -> None:
    model = Tied()
    checkpoints.write(tmp_path / "a.ckpt", model.state_dict(), {"width": 3}, 20, "2.6.6")
    found = checkpoints.weights_of(tmp_path / "a.ckpt")
    own = distinct_state(model)
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], own[name]) for name in own)
    held = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert (held["hyper_parameters"], held["global_step"], held["pytorch-lightning_version"]) == (
        {"width": 3},
        20,
        "2.6.6",
    )


def test_a_disk_without_room_is_told_and_leaves_no_part_of_the_file(tmp_path: Path) -> None:
    """torch tells of the place in its own archive."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            checkpoints.write(tmp_path / "a.ckpt", {"a": torch.zeros(100_000)}, {}, 20, "2.6.6")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "held"),
    [
        ("absent", None),
        ("form", b"not a file of torch"),
        ("form", {"state_dict": Tied}),
        ("lacks", {"weights": 1}),
        ("no-weights", {"state_dict": {"a": torch.ones(1), "metric._extra_state": {"seen": 1}}}),
        ("no-weights", {"state_dict": {"a": torch.eye(2).to_sparse()}}),
        ("no-weights", {"state_dict": {"a": torch.ones(1), 5: torch.ones(1)}}),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, code: str, held: Any) -> None:
    file = tmp_path / "a.ckpt"
    if isinstance(held, bytes):
        file.write_bytes(held)
    elif held is not None:
        torch.save(held, file)
    with refused(f"initial.checkpoint-{code}"):
        checkpoints.weights_of(file)
