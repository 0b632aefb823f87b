"""The secret's file, keys and streams: who has them has all of it, and who has not has nothing."""

from __future__ import annotations

import math
import os
import pickle
import statistics
from pathlib import Path

import numpy
import pytest
import torch
from numpy.typing import NDArray

from orchestrator.data import poisson
from orchestrator.optim.privacy import noise
from orchestrator.optim.privacy.accounting import Accountant
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.privacy.secret import Secret, place, read, read_or_create
from tests.refusals import refused

pytestmark = pytest.mark.slow

KEYS = Keys(bytes(range(32)))
DEVIATION = 2.0**40  # of noise of one clipping norm, on the lattice


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    first, second = read_or_create(path), read_or_create(path)
    assert (first.new, second.new) == (True, False)
    assert first.value == second.value
    assert len(first.value) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert read_or_create(tmp_path / "other").value != first.value


@pytest.mark.parametrize("text", ["", "0" * 63, "g" * 64, "0" * 65, "é" * 64])
def test_a_file_with_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    (tmp_path / "s").chmod(0o600)
    with refused("privacy.secret-unusable", "privacy.secret"):
        read(tmp_path / "s")


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = read_or_create(tmp_path / "s").path
    path.chmod(0o640)
    with refused("privacy.secret-unusable"):
        read(path)


def test_a_file_that_is_not_there_is_refused_where_it_has_to_be(tmp_path: Path) -> None:
    with refused("privacy.secret-unusable"):
        read(tmp_path / "s")
    (tmp_path / "file").touch()
    with refused("privacy.secret-unusable"):
        read_or_create(tmp_path / "file" / "s")


def test_the_file_is_in_the_users_folder_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert place(None) == Path("/x/orchestrator/privacy.secret")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert place(None) == Path.home() / ".config/orchestrator/privacy.secret"
    assert place("~/mine") == Path.home() / "mine"


def test_no_text_shows_a_secret_or_a_key() -> None:
    secret = Secret(os.urandom(32), Path("p"))
    keys = secret.keys("a run")
    for text in (repr(secret), str(secret), repr(keys), f"{keys}", str(vars(secret).keys())):
        assert secret.value.hex() not in text
        assert repr(secret.value) not in text
    assert secret.commitment not in (secret.value.hex(), "")
    assert pickle.loads(pickle.dumps(keys)).key("x") == keys.key("x")


def test_other_data_other_secrets_and_other_steps_never_meet_the_same_noise() -> None:
    secrets = [Secret(bytes([i] * 32), Path("p")) for i in range(2)]
    streams = {
        tuple(secret.keys(about).stream(purpose, step).take(4).tolist())
        for secret in secrets
        for about in ("data a", "data b")
        for purpose in ("noise", "clients")
        for step in range(5)
    }
    assert len(streams) == 2 * 2 * 2 * 5


def test_the_same_ones_have_the_same_bits_in_pieces_too() -> None:
    whole = KEYS.stream("noise", 3).take(300_000)
    pieces = KEYS.stream("noise", 3)
    again = numpy.concatenate([bits for _, bits in pieces.pieces(300_000)])
    assert numpy.array_equal(whole, again)
    assert numpy.bincount(whole.view(numpy.uint8), minlength=256).std() < 200


def test_a_keyed_hash_is_the_keys_own() -> None:
    assert KEYS.hash("losses", b"1") == KEYS.hash("losses", b"1")
    assert len({KEYS.hash("losses", b"1"), KEYS.hash("losses", b"2"), Keys(bytes(32)).hash("losses", b"1")}) == 3


# --- noise


def test_numbers_are_the_quantiles_of_the_normal_distribution() -> None:
    normal = statistics.NormalDist()
    probabilities = numpy.concatenate([numpy.linspace(0.001, 0.999, 4001), 2.0 ** -numpy.arange(2, 53)])
    expected = [normal.inv_cdf(p) for p in probabilities]
    assert numpy.allclose(noise.quantiles(probabilities), expected, rtol=1e-12, atol=1e-15)
    ends = noise.quantiles(numpy.array([2.0**-53, 0.5, 1 - 2.0**-53]))
    assert ends.tolist() == [-ends[2], 0.0, ends[2]]
    assert 8.2 < ends[2] < 8.3


def drawn(elements: int) -> NDArray[numpy.float64]:
    """Standard normal numbers."""
    made = noise.normal(KEYS.stream("noise", 1), elements, DEVIATION, torch.device("cpu"))
    return torch.cat([*made]).numpy() / DEVIATION


def test_operations_of_torch_have_the_bits_of_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU rounds square roots, and torch on a processor does not."""
    monkeypatch.setattr(torch, "sqrt", lambda x: torch.from_numpy(numpy.sqrt(x.numpy())))
    ends = numpy.array([2.0**-53, 0.075, 0.5, 0.925, 1 - 2.0**-53])
    p = numpy.concatenate([ends, numpy.random.default_rng(1).random(100_000), 2.0 ** -numpy.arange(2, 53)])
    assert noise.quantiles(torch.from_numpy(p)).numpy().tobytes() == noise.quantiles(p).tobytes()
    words = numpy.concatenate(
        [KEYS.stream("words").take(100_000).view(numpy.int64), numpy.array([0, 0, -1, -1, 0, -1, -1, 0])]
    )
    assert noise.rounded(torch.from_numpy(words), 3.7e9).numpy().tobytes() == noise.rounded(words, 3.7e9).tobytes()


def test_bits_that_are_written_are_those_that_are_taken() -> None:
    whole = numpy.empty(300_000, numpy.int64)
    stream = KEYS.stream("noise", 3)
    stream.fill(whole[:7])
    stream.fill(whole[7:])
    assert whole.tobytes() == KEYS.stream("noise", 3).take(300_000).tobytes()


def test_noise_is_normal() -> None:
    numbers = drawn(400_000)
    assert abs(numbers.mean()) < 0.01
    assert numbers.std() == pytest.approx(1, abs=0.01)
    assert (numpy.abs(numbers) > 2).mean() == pytest.approx(0.0455, abs=0.002)
    assert abs(numpy.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 1000.0])
@pytest.mark.parametrize("exponent", [*range(2, 50, 3), 50])
def test_noise_can_be_every_integer(multiplier: float, exponent: int) -> None:
    """Else an observer of a sum, who knows all other contributions, sees whether a client took part: of 27 numbers beyond 4.2
    deviations that 52 bits made, only 3 were still such numbers with something added. exponent: of their probability."""
    high = 2 ** (64 - exponent) + 12_345
    unused = high.bit_length() - 53  # of its last bits, or of the first of the second word
    steps = numpy.arange(64, dtype=numpy.int64)
    first = high + (steps << unused if unused > 0 else 0 * steps)
    second = (0 * steps if unused > 0 else steps << 48 + unused) << 16
    reached: set[float] = set()
    for rounding in (0, 0xFFFF):
        words = numpy.stack([first, second | rounding], axis=1).ravel()
        reached |= {*noise.rounded(words, multiplier * DEVIATION).tolist()}
    assert {*numpy.diff(sorted(reached))} <= {1.0}


def test_the_last_bits_round_and_the_first_is_the_sign() -> None:
    word = 0x2AAAAAAAAAAAAAAB
    first = numpy.array([word, word, word - 2**63, word - 2**63], dtype=numpy.int64)
    words = numpy.stack([first, numpy.array([0, 0xFFFF] * 2)], axis=1).ravel()
    down, up, other_down, other_up = noise.rounded(words, 7.0).tolist()
    size = 7 * statistics.NormalDist().inv_cdf(word / 2**64)
    assert (down, up) == (math.floor(size), math.ceil(size))
    assert (other_down, other_up) == (math.floor(-size), math.ceil(-size))
    draws = torch.cat([*noise.normal(KEYS.stream("noise", 5), 400_000, 0.3, torch.device("cpu"))]).double()
    assert abs(draws.mean()) < 0.005
    assert (draws == 0).double().mean() == pytest.approx(CHANCE_OF_ZERO, abs=0.005)


CHANCE_OF_ZERO = 0.7608  # the mean of 1 - |x| where that is positive, of x with a deviation of 0.3


def test_noise_has_these_bits_on_every_machine() -> None:
    """They are made of operations that IEEE 754 rounds alike."""
    import hashlib

    digest = hashlib.sha256(drawn(10_000).astype("<f8").tobytes()).hexdigest()
    assert digest.startswith("6550d379ad87170c2f0e17e154f717af")


# --- sampling


def test_each_client_plays_with_its_chance_independent_of_the_others() -> None:
    rounds = [poisson.sampled_clients(KEYS, round_, 10, 50) for round_ in range(2000)]
    counts = numpy.bincount(numpy.concatenate(rounds), minlength=50)
    assert counts.mean() / 2000 == pytest.approx(0.2, abs=0.005)
    assert (numpy.abs(counts / 2000 - 0.2) < 0.05).all()
    sizes = numpy.array([len(each) for each in rounds])
    assert sizes.var() == pytest.approx(50 * 0.2 * 0.8, rel=0.15)  # a number of clients, and not always as many


def test_whether_a_client_plays_does_not_depend_on_how_many_there_are() -> None:
    """As far as the rate is the same: 10 of 50 and 20 of 100."""
    for round_ in range(50):
        few, many = poisson.sampled_clients(KEYS, round_, 10, 50), poisson.sampled_clients(KEYS, round_, 20, 100)
        assert few == [client for client in many if client < 50]


def test_all_play_where_as_many_are_expected() -> None:
    assert poisson.sampled_clients(KEYS, 3, 5, 5) == [0, 1, 2, 3, 4]


def test_players_are_dealt_evenly_and_each_once() -> None:
    dealt = poisson.assign_to_slots([2, 3, 5, 7, 11], 3)
    assert dealt == [(2, 7), (3, 11), (5,)]
    assert poisson.assign_to_slots([], 2) == [(), ()]


# --- epsilon


def test_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    """Renyi: alpha / (2 noise**2) each round, turned into epsilon by the best whole order."""
    import math

    def bound(rounds: int, noise: float, delta: float) -> float:
        return min(
            rounds * a / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in range(2, 64)
        )

    assert Accountant(2.0, 1.0, 1e-4).epsilon(10) == pytest.approx(bound(10, 2.0, 1e-4), rel=1e-6)


def test_epsilon_grows_with_rounds_and_sampling_amplifies() -> None:
    account = Accountant(1.0, 0.1, 1e-4)
    found = [account.epsilon(rounds) for rounds in (0, 1, 10, 60)]
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] == pytest.approx(5.55, abs=0.01)
    assert Accountant(1.0, 1.0, 1e-4).epsilon(60) > 10 * found[-1]
    assert Accountant(2.0, 0.1, 1e-4).epsilon(60) < found[-1]
