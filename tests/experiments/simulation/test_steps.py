"""Steps in virtual time keep to the rules of the modes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.synchronization import build_mode
from orchestrator.experiments.simulation.conditions import Conditions
from orchestrator.experiments.simulation.exchange import Exchanged
from orchestrator.experiments.simulation.steps import Stepped, async_phases, lockstep, paces

NOTHING = Exchanged(0.0, 0.0, 0.0, 0.0)
ALONE = Conditions(update_s=0.0)


def stepped(times: np.ndarray, name: str, **options: int) -> Stepped:
    hosted = np.ones(times.shape[1], int)
    return async_phases(ALONE, times, hosted, NOTHING, build_mode(name, options))


@given(st.integers(1, 6), st.integers(0, 2**20))
def test_the_less_a_mode_waits_the_faster_it_is(workers: int, seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(0, 1, (20, workers))
    together = lockstep(ALONE, times, NOTHING).seconds
    found = [stepped(times, "ssp", staleness=bound).seconds for bound in (0, 1, 3, 19)]
    free = stepped(times, "bap").seconds
    for slower, faster in zip([together, *found], [*found, free], strict=True):
        assert faster <= slower * (1 + 1e-9)
    assert stepped(times, "bap").waiting == pytest.approx(0.0, abs=1e-9)
    assert found[0] == pytest.approx(together)


def test_equal_workers_wait_for_nobody() -> None:
    """The mean of three tenths is larger than a tenth."""
    times = np.full((4, 3), 0.1)
    for found in (lockstep(ALONE, times, NOTHING), stepped(times, "bap"), stepped(times, "ssp", staleness=1)):
        assert f"{found.waiting:.1%}" == "0.0%"


def test_stale_synchrony_does_not_help_against_a_constant_straggler_and_a_barrierless_mode_does() -> None:
    """Ho et al., section 4: the bound only delays the wait."""
    times = np.ones((200, 4))
    times[:, 0] = 3.0
    assert stepped(times, "ssp", staleness=3, rest_every=100).seconds > 2.9
    assert stepped(times, "bap", rest_every=100).seconds == pytest.approx(4 / (3 + 1 / 3), rel=0.02)


def test_stragglers_stalls_and_jitter_are_as_many_as_asked_for_and_the_same_each_time() -> None:
    hosted = np.full(10, 2)
    conditions = Conditions(compute_s=0.5, stragglers=0.2, slower_by=3.0)
    times = paces(conditions, 10, 4).of(hosted)
    assert sorted(times[0]) == [1.0] * 8 + [3.0] * 2
    noisy = Conditions(compute_s=0.5, jitter=0.3, stalls=0.1, stall_s=100.0, seed=3)
    many = paces(noisy, 100, 1000).of(np.ones(100, int))
    assert (many > 50).mean() == pytest.approx(0.1, abs=0.01)
    assert many[many < 50].mean() == pytest.approx(0.5, rel=0.01)
    assert many[many < 50].std() == pytest.approx(0.15, rel=0.03)
    assert np.array_equal(many, paces(noisy, 100, 1000).of(np.ones(100, int)))


def test_workers_that_share_cores_take_all_their_processor_time() -> None:
    times = np.ones((3, 8))
    assert lockstep(Conditions(update_s=0.5, cores=2), times, NOTHING).seconds == pytest.approx(4 + 2)
    assert lockstep(Conditions(update_s=0.5, cores=16), times, NOTHING).seconds == pytest.approx(1.5)
