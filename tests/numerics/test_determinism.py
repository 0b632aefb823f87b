"""The settings of a compute thread, and what is recorded of them (rule B3)."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

from orchestrator.numerics.determinism import ENVIRONMENT, FILL, filled, prepare_environment, prepare_thread

deterministic: Any = torch.utils.deterministic


def test_the_environment_of_these_tests_is_prepared() -> None:
    """conftest.py does it before torch is imported; without it, equal bits would be luck."""
    assert all(os.environ.get(name) for name in ENVIRONMENT)


def test_a_users_own_value_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.delenv("OMP_DYNAMIC")
    found = prepare_environment()
    assert found == {**ENVIRONMENT, "MKL_CBWR": "COMPATIBLE"}
    assert os.environ["OMP_DYNAMIC"] == "FALSE"


@pytest.mark.parametrize("theirs", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_of_a_gpu_is_as_the_user_has_set_it(monkeypatch: pytest.MonkeyPatch, theirs: str) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    with monkeypatch.context() as one:
        one.setenv(theirs, "max_split_size_mb:64")
        prepare_environment()
        assert os.environ[theirs] == "max_split_size_mb:64"
        assert (theirs == "PYTORCH_ALLOC_CONF") == ("PYTORCH_ALLOC_CONF" in os.environ)
    prepare_environment()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_a_thread_is_set_up_and_says_how() -> None:
    denormal = torch.tensor([2.0**-149])
    found = {}

    def work() -> None:
        torch.set_flush_denormal(True)
        found.update(prepare_thread(1))
        found["product"] = float(denormal * 1.0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found["threads"] == 1
    assert found["deterministic_algorithms"] is True
    assert found["flush_denormal"] is False
    assert found["product"] == 2.0**-149
    assert set(found["environment"]) == set(ENVIRONMENT)


def test_memory_is_filled_in_tests_and_where_a_block_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_thread(1)
    assert deterministic.fill_uninitialized_memory
    assert torch.empty(3).isnan().all()
    with monkeypatch.context() as loop:
        loop.delenv(FILL)
        prepare_thread(1)
    assert not deterministic.fill_uninitialized_memory
    with filled():
        assert deterministic.fill_uninitialized_memory
    assert not deterministic.fill_uninitialized_memory
    prepare_thread(1)


def test_least_squares_read_no_memory_that_nobody_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK's gelsy, which torch has by default, takes its first columns from there."""
    prepare_thread(1)
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
    left, right = torch.rand(8, 6, generator=torch.Generator().manual_seed(0)), torch.eye(8)
    found = set()
    for number in range(8):
        left_behind = [torch.full((6,), number % 3, dtype=torch.int32) for _ in range(100)]
        del left_behind
        found |= {torch.linalg.lstsq(left, right).solution.numpy().tobytes() for _ in range(5)}
    assert len(found) == 1
    exact = torch.linalg.lstsq(left, right, driver="gels").solution  # the user's own choice
    assert found != {exact.numpy().tobytes()}
    assert torch.allclose(torch.linalg.lstsq(left, right).solution, exact, atol=1e-4)
