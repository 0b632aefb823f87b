"""A file of weights that is made piece by piece has the bytes of one that is written at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.checkpoint import weights
from orchestrator.checkpoint.weights import Weights, merge

KINDS = sorted(weights._KINDS, key=str)


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    made = {f"{i}.\N{GREEK SMALL LETTER PI}{'.w' * (i % 2)}": torch.arange(i).to(kind) for i, kind in enumerate(KINDS)}
    transposed = torch.randn(3, 5).t()
    return {**made, "scalar": torch.tensor(2.5), "matrix": transposed, 'tied "b"': torch.zeros(2, 0)}


@pytest.fixture
def theirs(tensors: dict[str, torch.Tensor], tmp_path: Path) -> bytes:
    file = tmp_path / "theirs"
    save_file({name: each.contiguous() for name, each in tensors.items()}, file)
    return file.read_bytes()


def test_the_bytes_are_those_of_safetensors(
    tensors: dict[str, torch.Tensor], theirs: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_PIECE_BYTES", 7)
    Weights(tensors).write(tmp_path / "ours")
    assert (tmp_path / "ours").read_bytes() == theirs


@pytest.mark.parametrize("limit", [1, 7, 1000, 1 << 20])
def test_it_can_be_read_in_pieces(tensors: dict[str, torch.Tensor], theirs: bytes, limit: int) -> None:
    file, found = Weights(tensors), b""
    while piece := file.read(len(found), limit):
        assert len(piece) == min(limit, len(theirs) - len(found))
        found += piece
    assert found == theirs


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_are_made_one_file(
    tensors: dict[str, torch.Tensor], theirs: bytes, tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_PIECE_BYTES", 5)
    files = [tmp_path / str(number) for number in range(parts)]
    for number, file in enumerate(files):
        Weights({name: tensors[name] for name in sorted(tensors)[number::parts]}).write(file)
    merge(files, tmp_path / "ours")
    assert (tmp_path / "ours").read_bytes() == theirs


def test_a_part_that_is_cut_short_is_told(tmp_path: Path) -> None:
    Weights({"a": torch.ones(9)}).write(tmp_path / "part")
    whole = (tmp_path / "part").read_bytes()
    (tmp_path / "part").write_bytes(whole[:-1])
    with pytest.raises(OSError, match="part ends too early"):
        merge([tmp_path / "part"], tmp_path / "ours")


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights of type torch.complex128 cannot be written"):
        Weights({"a": torch.zeros(1, dtype=torch.complex128)})
