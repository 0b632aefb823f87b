"""A file of weights that is written tensor by tensor has the bytes of one that is written at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.checkpoints import weights
from orchestrator.checkpoints.weights import write_weights

KINDS = sorted(weights._KINDS, key=str)


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    made = {f"{i}.\N{GREEK SMALL LETTER PI}{'.w' * (i % 2)}": torch.arange(i).to(kind) for i, kind in enumerate(KINDS)}
    tensors = {**made, "scalar": torch.tensor(2.5), "matrix": torch.randn(3, 5), 'tied "b"': torch.zeros(2, 0)}
    order: list[str] = []

    def read(name: str) -> torch.Tensor:
        order.append(name)
        return tensors[name]

    write_weights(tmp_path / "ours", tensors, read)
    save_file(tensors, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sorted(order) == sorted(tensors), "each is read once"


def test_a_type_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weights of type torch.complex128 cannot be written"):
        write_weights(tmp_path / "ours", {"a": torch.zeros(1, dtype=torch.complex128)}, lambda _: torch.zeros(1))
    assert not (tmp_path / "ours").exists()
