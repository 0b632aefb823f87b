"""The fingerprint of a summed gradient: added up chunk by chunk by whoever owns them, and awake to every bit (rule A10)."""

from __future__ import annotations

import itertools
import random
import struct

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.numerics.exact import fingerprint_of, finish, wrap
from orchestrator.numerics.layout import BLOCK, Layout

BLOCKS = 9


def _values(seed: int, blocks: int = BLOCKS) -> torch.Tensor:
    return torch.randn(blocks * BLOCK, generator=torch.Generator().manual_seed(seed))


def test_known_values() -> None:
    """Traces of different versions are compared, so these never change."""
    assert fingerprint_of(torch.zeros(2 * BLOCK), 5) == 0
    assert fingerprint_of(torch.ones(BLOCK), 0) == BLOCK * 0x3F800000
    assert fingerprint_of(torch.ones(2 * BLOCK), 3) == BLOCK * 0x3F800000 * (4 + 5)
    assert fingerprint_of(torch.full((BLOCK,), -0.0), 0) == -BLOCK * 2**31
    assert fingerprint_of(torch.arange(3 * BLOCK).float() / 7, 11) == 182691788863220


def test_the_definition() -> None:
    values = _values(0)
    patterns = struct.unpack(f"<{values.numel()}i", struct.pack(f"<{values.numel()}f", *values.tolist()))
    weighted = sum(bits * (5 + 1 + place // BLOCK) for place, bits in enumerate(patterns))
    assert fingerprint_of(values, 5) == wrap(weighted)


@settings(max_examples=40)
@given(st.integers(0, 100), st.integers(1, 12), st.randoms(use_true_random=False))
def test_chunks_add_up_in_any_order(seed: int, chunks: int, shuffler: random.Random) -> None:
    values = _values(seed)
    borders = Layout((), BLOCKS * BLOCK).borders(chunks)
    parts = [
        fingerprint_of(values[start:end], start // BLOCK) for start, end in itertools.pairwise(borders) if start < end
    ]
    shuffler.shuffle(parts)
    assert wrap(sum(parts)) == fingerprint_of(values, 0)


@settings(max_examples=40)
@given(st.integers(0, BLOCKS * BLOCK - 1), st.integers(0, 31))
def test_a_single_bit_changes_it(place: int, bit: int) -> None:
    values = _values(1)
    before = fingerprint_of(values, 0)
    values.view(torch.int32)[place] ^= -(2**31) if bit == 31 else 2**bit
    assert fingerprint_of(values, 0) != before


@settings(max_examples=30)
@given(st.tuples(st.integers(0, BLOCKS - 1), st.integers(0, BLOCKS - 1)).filter(lambda pair: pair[0] != pair[1]))
def test_swapped_blocks_change_it(pair: tuple[int, int]) -> None:
    values = _values(2).view(BLOCKS, BLOCK)
    before = fingerprint_of(values.view(-1), 0)
    values[list(pair)] = values[list(reversed(pair))]
    assert fingerprint_of(values.view(-1), 0) != before


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 1000), st.integers(1, 7))
def test_finishing_fingerprints_what_it_writes(blocks: int, first_block: int, divisor: int) -> None:
    total = _values(3, blocks).double()
    result = torch.empty(blocks * BLOCK)
    assert finish([total], float(divisor), result, first_block) == fingerprint_of(result, first_block)


@given(st.integers(-(2**70), 2**70))
def test_wrapping_keeps_the_residue(value: int) -> None:
    assert -(2**63) <= wrap(value) < 2**63
    assert (wrap(value) - value) % 2**64 == 0
