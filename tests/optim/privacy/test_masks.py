"""Masks hide each sum and cancel in the sum of all; none is used twice."""

from __future__ import annotations

import numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.optim.privacy.masks import PUBLIC_BYTES, KeyPair, Masks
from tests.refusals import refused

ELEMENTS = 3000


def agreed(workers: int, generation: int = 0) -> list[Masks]:
    pairs = [KeyPair() for _ in range(workers)]
    publics = [pair.public for pair in pairs]
    assert all(len(public) == PUBLIC_BYTES for public in publics)
    return [pair.agree(rank, publics, generation) for rank, pair in enumerate(pairs)]


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_masked_sums_add_up_to_the_plain_sum_modulo_2_to_the_64(workers: int, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    plain = [torch.randint(-(2**63), 2**63 - 1, (50,), generator=stream) for _ in range(workers)]
    masked = [each.clone() for each in plain]
    for masks, vector in zip(agreed(workers), masked, strict=True):
        masks.add(7, 0, vector)
    assert torch.equal(sum(masked, torch.zeros(50, dtype=torch.int64)), sum(plain, torch.zeros(50, dtype=torch.int64)))


def test_a_masked_vector_and_any_sum_without_one_worker_look_like_chance() -> None:
    plain = [torch.arange(ELEMENTS) * (rank + 1) for rank in range(4)]
    masked = [each.clone() for each in plain]
    for masks, vector in zip(agreed(4), masked, strict=True):
        masks.add(0, 0, vector)
    for seen in (masked[0], masked[1] + masked[2], masked[0] + masked[1] + masked[3]):
        counts = numpy.bincount(seen.numpy().view(numpy.uint8), minlength=256)
        expected = 8 * ELEMENTS / 256
        assert ((counts - expected) ** 2 / expected).sum() < 400  # chi-squared with 255 degrees of freedom


def test_no_mask_is_used_twice() -> None:
    masks = agreed(2)[0]
    vector = torch.zeros(10, dtype=torch.int64)
    masks.add(3, 0, vector)
    masks.add(3, 1, vector)
    for step, attempt in ((3, 1), (3, 0), (2, 5)):
        with refused("privacy.mask-again"):
            masks.add(step, attempt, vector)


def test_each_step_attempt_and_generation_has_other_masks() -> None:
    pairs = [KeyPair(), KeyPair()]
    publics = [pair.public for pair in pairs]
    seen = set()
    for generation in (0, 1):
        masks = pairs[0].agree(0, publics, generation)
        for step, attempt in ((0, 0), (0, 1), (1, 0)):
            vector = torch.zeros(4, dtype=torch.int64)
            masks.add(step, attempt, vector)
            seen.add(tuple(vector.tolist()))
    assert len(seen) == 6


def test_a_public_key_that_is_none_is_told() -> None:
    own = KeyPair()
    with refused("privacy.public-key"):
        own.agree(0, [own.public, bytes(PUBLIC_BYTES)], 0)


def test_no_text_shows_a_key() -> None:
    assert repr(KeyPair()) == "KeyPair(...)"
    assert repr(agreed(2)[0]) == "Masks(...)"
