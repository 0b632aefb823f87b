"""A state is divided the same way by everyone, copied once, written as safetensors, and read back to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint import parts
from orchestrator.checkpoint.manifest import Blob, TensorEntry
from orchestrator.checkpoint.parts import Copier, divide, read_part, read_some, share_of, write_part
from tests.checkpoint.stores import InMemory, raw
from tests.refusals import refused

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip
SHAPES: Sequence[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 0, 3), (2, 3, 4)]


def zoo() -> dict[str, torch.Tensor]:
    """Every dtype in every shape, odd sizes so that nothing is aligned by luck; and tensors that are not in row-major order."""
    tensors = {
        f"{dtype}/{shape}": torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(i)).to(dtype)
        for i, dtype in enumerate(DTYPES)
        for shape in SHAPES
    }
    tensors["transposed"] = torch.arange(6.0).view(2, 3).t()
    tensors["expanded"] = torch.ones(1).expand(5)
    tensors['name with "quotes" and \u00fcml\u00e4uts'] = torch.tensor([float("nan"), -0.0, float("inf")])
    return tensors


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100)), st.integers(1, 9))
def test_each_tensor_has_one_writer_and_loads_are_balanced(sizes: dict[str, int], writers: int) -> None:
    shares = divide(sizes, writers)
    assert len(shares) == writers
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)
    assert divide(dict(reversed(sizes.items())), writers) == shares


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_dtype_and_shape_comes_back(count: int) -> None:
    storage, tensors = InMemory(), zoo()
    back: dict[str, torch.Tensor] = {}
    for part in range(count):
        blob = write_part(storage, Copier().copy(share_of(tensors, part, count)))
        back.update(read_part(storage, Blob.from_dict(blob.as_dict())))
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].dtype, back[name].shape, raw(back[name])) == (tensor.dtype, tensor.shape, raw(tensor)), name


def test_others_can_read_a_blob() -> None:
    storage = InMemory()
    tensors = {name: tensor for name, tensor in zoo().items() if tensor.dtype in parts._DTYPES}
    blob = write_part(storage, Copier().copy(tensors))
    read = safetensors.torch.load(storage.files[blob.name])
    assert {name: raw(tensor) for name, tensor in read.items()} == {name: raw(t) for name, t in tensors.items()}


def test_a_part_without_tensors_is_a_blob_too() -> None:
    storage = InMemory()
    blob = write_part(storage, Copier().copy({}))
    assert (read_part(storage, blob), blob.size_bytes) == ({}, len(storage.files[blob.name]))


def test_a_copy_is_not_changed_by_training_and_its_memory_is_used_again() -> None:
    copier, tensors = Copier(), {"a": torch.zeros(1000), "b": torch.zeros(3, dtype=torch.int64)}
    first = copier.copy(tensors)
    tensors["a"] += 1
    assert first.tensors["a"].tolist() == [0.0] * 1000
    address = first.body.data_ptr()
    second = copier.copy(tensors)
    assert second.tensors["a"].tolist() == [1.0] * 1000
    fewer = copier.copy({"b": torch.ones(3, dtype=torch.int64)})
    assert second.body.data_ptr() == fewer.body.data_ptr() == address
    assert (fewer.tensors["b"].tolist(), len(fewer.body)) == ([1, 1, 1], 24)


def test_what_comes_later_has_its_place() -> None:
    tensors = {"a": torch.arange(5.0), "b": torch.arange(3), "c": torch.ones(2)}
    part = Copier().copy(tensors, later={"a", "c"})
    tensors["b"].zero_()
    part.fill({"c": torch.full((2,), 2.0)})
    part.fill({"a": tensors["a"]})
    assert {name: tensor.tolist() for name, tensor in part.tensors.items()} == {
        "a": [0.0, 1.0, 2.0, 3.0, 4.0],
        "b": [0, 1, 2],
        "c": [2.0, 2.0],
    }


def test_too_large_a_copy_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="no memory for a copy of"):
        Copier().copy({"a": torch.ones(1).expand(1 << 50)})


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({}, "checkpoint.other-tensors"),
        ({"a": TensorEntry("float32", (3,), "0" * 64)}, "checkpoint.tensor-form"),
        ({"a": TensorEntry("Tensor", (2,), "0" * 64)}, "checkpoint.tensor-form"),
        ({"a": TensorEntry("float32", (2,), "0" * 64)}, "checkpoint.tensor-altered"),
    ],
)
def test_a_manifest_that_says_something_else_is_not_believed(entries: dict[str, TensorEntry], code: str) -> None:
    storage = InMemory()
    blob = write_part(storage, Copier().copy({"a": torch.ones(2)}))
    with refused(code):
        read_part(storage, Blob(blob.name, blob.size_bytes, entries))


def test_some_tensors_are_read_without_the_others() -> None:
    class Counting(InMemory):
        read_bytes = 0

        def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
            found = super().get(name, start, stop)
            self.read_bytes += len(found)
            return found

    storage, tensors = Counting(), {**zoo(), "large": torch.ones(100_000)}
    blob = write_part(storage, Copier().copy(tensors))
    for wanted in (set[str](), {"large"}, tensors.keys() - {"large"}):
        storage.read_bytes = 0
        found = read_some(storage, blob, wanted.__contains__)
        assert found.keys() == wanted
        assert all(raw(found[name]) == raw(tensors[name]) for name in wanted)
        assert (storage.read_bytes > 400_000) == ("large" in wanted)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: data[:4], "checkpoint.header-altered"),
        (lambda data: data[:20] + b"?" + data[21:], "checkpoint.header-altered"),
        (lambda data: data[:-1] + b"!", "checkpoint.tensor-altered"),
        (lambda data: data[:-1], "checkpoint.tensor-form"),
    ],
)
def test_what_is_read_of_a_blob_is_verified(damage: Any, code: str) -> None:
    storage = InMemory()
    blob = write_part(storage, Copier().copy({"a": torch.ones(2)}))
    storage.files[blob.name] = damage(storage.files[blob.name])
    with refused(code):
        read_some(storage, blob, lambda _: True)
    del storage.files[blob.name]
    with refused("checkpoint.file-missing"):
        read_some(storage, blob, lambda _: True)


def test_a_large_part_that_several_threads_hash_is_the_same_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, tensors = InMemory(), zoo()
    blob = write_part(storage, Copier().copy(tensors))
    monkeypatch.setattr(parts, "_LARGE_BYTES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3))
    assert write_part(storage, Copier().copy(tensors)) == blob
    assert {name: raw(each) for name, each in read_part(storage, blob).items()} == {
        name: raw(each) for name, each in tensors.items()
    }
    end = max(name for name in blob.tensors if tensors[name].numel())
    other = {
        name: entry if name != end else TensorEntry(entry.dtype, entry.shape, "0" * 64)
        for name, entry in blob.tensors.items()
    }
    with refused("checkpoint.tensor-altered"):
        read_part(storage, Blob(blob.name, blob.size_bytes, other))
