"""Laws of packing: the sequences of a file are its documents one behind the other, in any order of access."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import Packed
from tests.refusals import refused


class Documents:
    def __init__(self, files: list[list[int]]) -> None:
        self.file_lengths = [len(counts) for counts in files]
        self.counts = [count for counts in files for count in counts]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, number: int) -> list[int]:
        return [1000 * number + place for place in range(self.counts[number])]


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=5), st.integers(1, 12), st.integers(0, 99)
)
def test_sequences_are_the_documents_of_their_file_one_behind_the_other(
    files: list[list[int]], length: int, seed: int
) -> None:
    documents = Documents(files)
    packed = Packed(documents, length, numpy.array(documents.counts, numpy.int32))
    order = list(range(len(packed)))
    Random(seed).shuffle(order)
    found: dict[int, dict[str, Any]] = {index: packed[index] for index in order}
    at = number = 0
    for counts, sequences in zip(files, packed.file_lengths, strict=True):
        flat = [token for each in range(number, number + len(counts)) for token in documents[each]]
        assert sequences == len(flat) // length
        for nth in range(sequences):
            sample = found[at + nth]
            tokens = sample["tokens"].tolist()
            assert tokens == flat[nth * length : (nth + 1) * length]
            assert sample["position"].tolist() == [token % 1000 for token in tokens]
            owners = list(dict.fromkeys(token // 1000 for token in tokens))
            assert sample["document"].tolist() == [owners.index(token // 1000) for token in tokens]
        at, number = at + sequences, number + len(counts)
    assert at == len(packed)


def test_documents_are_counted_once(tmp_path: Path) -> None:
    documents = Documents([[3, 0], [5]])
    assert Packed.counted(documents, tmp_path / "counts.npy").tolist() == [3, 0, 5]
    assert Packed.counted(None, tmp_path / "counts.npy").tolist() == [3, 0, 5]


def test_documents_may_come_in_memory_that_the_next_one_is_put_in() -> None:
    memory, documents = numpy.zeros(9, numpy.int64), Documents([[3, 4, 2, 9]])

    def refilled(document: list[int]) -> Any:
        memory[: len(document)] = document
        return memory[: len(document)]

    counts = numpy.array(documents.counts)
    found, expected = Packed(documents, 6, counts, refilled), Packed(documents, 6, counts)
    assert [found[number]["tokens"].tolist() for number in range(3)] == [
        expected[number]["tokens"].tolist() for number in range(3)
    ]


def test_wrong_counts_are_refused() -> None:
    documents = Documents([[3, 4]])
    with refused("data.packed-counts"):
        Packed(documents, 2, numpy.array([3]))
    with refused("data.packed-shape"):
        Packed(documents, 2, numpy.array([3, 5]))[2]
