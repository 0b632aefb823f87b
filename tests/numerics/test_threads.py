"""Several threads compute the same bits in each process (docs/training.md); the study of 1,000 is `benchmarks.threads`."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.threads import differing, study


def test_a_case_with_two_hashes_is_named() -> None:
    assert list(differing({"sin": Counter(a=3), "sum": Counter(a=2, b=1)})) == ["sum: 2 hashes, 2 1"]


@pytest.mark.long
@pytest.mark.slow
def test_four_threads_compute_the_same_in_each_process() -> None:
    assert list(differing(study(4, 4, {}, 2))) == []
