"""The laws of partitions over the whole table, and what each of them is for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.data.sampling import partition_laws as laws
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.data.sampling.population import Population, Real, Whole, tried
from tests.products import fewer
from tests.refusals import refused

DIVIDING = [name for name in PARTITIONS if name != "shared"]
CUT = [name for name in DIVIDING if "clients" in PARTITIONS.options(name)]
NEEDED: dict[str, dict[str, Any]] = {"dirichlet": {"least": 0}, "pathological": {"runs": 1}}


def population(labels: list[int], shards: int, seed: int = 3) -> Population:
    """A population of samples with these labels, whatever their name; weights are the labels."""

    def of(_: str) -> Whole:
        return numpy.unique(numpy.array(labels), return_inverse=True)[1].astype(numpy.int64)

    def weights() -> Real:
        return numpy.array(labels, numpy.float64)

    return Population(len(labels), shards, seed, of, weights)


def divided(name: str, given: Population, **options: Any) -> Whole:
    found = PARTITIONS[name](given, **PARTITIONS.resolve(name, options))
    assert found is not None
    return found


populations = st.builds(
    population,
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=60),
    shards=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)


@pytest.mark.parametrize("name", CUT)
@given(given_population=populations)
@fewer(1, most=40)
def test_every_partition_keeps_to_the_laws(name: str, given_population: Population) -> None:
    options = PARTITIONS.resolve(name, NEEDED.get(name, {}))
    assert laws.broken(lambda each: PARTITIONS[name](each, **options), given_population) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
@given(given_population=populations)
@fewer(1, most=40)
def test_parts_are_a_disjoint_cover_among_the_clients(name: str, given_population: Population) -> None:
    owners = divided(name, given_population, **NEEDED.get(name, {}))
    parts = [numpy.flatnonzero(owners == client) for client in range(given_population.shards)]
    assert sorted(itertools.chain.from_iterable(part.tolist() for part in parts)) == list(range(len(owners)))


def test_natural_follows_its_label() -> None:
    writers = [5, 2, 2, 9, 5, 2]
    assert divided("natural", population(writers, 3)).tolist() == [1, 0, 0, 2, 1, 0]
    assert laws.broken(PARTITIONS["natural"], population(writers, 3)) is None
    with refused("data.natural-clients") as caught:
        divided("natural", population(writers, 8))
    assert "set data.shards=3" in str(caught.value)


def test_shared_divides_nothing() -> None:
    assert PARTITIONS["shared"](population([1, 2], 2)) is None


def test_a_seed_has_a_partition_of_its_own_where_it_is_drawn() -> None:
    labels = [number % 5 for number in range(200)]
    one, other = ({name: divided(name, population(labels, 4, seed)).tolist() for name in CUT} for seed in (1, 2))
    assert {name for name in CUT if one[name] == other[name]} == {"contiguous"}


@given(populations)
@fewer(1, most=40)
def test_sizes_are_as_even_as_they_can_be(given_population: Population) -> None:
    for name in ("iid", "contiguous", "stratified"):
        sizes = numpy.bincount(divided(name, given_population), minlength=given_population.shards)
        assert sizes.max() - sizes.min() <= 1


@given(populations)
@fewer(1, most=40)
def test_strata_are_as_even_as_they_can_be(given_population: Population) -> None:
    owners, labels = divided("stratified", given_population), given_population.labels("label")
    for label in set(labels.tolist()):
        sizes = numpy.bincount(owners[labels == label], minlength=given_population.shards)
        assert sizes.max() - sizes.min() <= 1


def test_contiguous_is_the_order_of_the_data() -> None:
    assert divided("contiguous", population([0] * 7, 3)).tolist() == [0, 0, 0, 1, 1, 2, 2]


def labels_of(owners: Whole, labels: Whole) -> list[int]:
    """How many labels each client has."""
    return [len(set(labels[owners == client].tolist())) for client in range(int(owners.max()) + 1)]


def test_a_small_alpha_leaves_a_client_few_labels() -> None:
    given_population = population([number % 10 for number in range(2000)], 8)
    labels = given_population.labels("label")
    spread = [_spread(divided("dirichlet", given_population, alpha=alpha), labels) for alpha in (100.0, 1.0, 0.1)]
    assert spread[0] < 0.2 < spread[1] < 0.8 < spread[2]


def _spread(owners: Whole, labels: Whole) -> float:
    """How far the shares of labels lie from even ones: the mean total variation, from 0 to 1."""
    tables = [numpy.bincount(labels[owners == client], minlength=10) for client in range(8)]
    return float(numpy.mean([numpy.abs(table / table.sum() - 0.1).sum() for table in tables]))


def test_every_client_gets_the_least() -> None:
    given_population = population([number % 3 for number in range(90)], 8)
    for least in (0, 1, 5, 8):
        owners = divided("dirichlet", given_population, alpha=1.0, least=least)
        assert numpy.bincount(owners, minlength=8).min() >= least
    with refused("data.dirichlet", "data.partition.alpha"):
        divided("dirichlet", given_population, alpha=0.01, least=8)


def test_an_alpha_that_is_too_small_for_a_float_is_drawn_again() -> None:
    """Shares of 0 / 0: none of them makes a partition."""
    owners = divided("dirichlet", population([number % 3 for number in range(90)], 4), alpha=1e-3, least=0)
    assert owners.min() >= 0
    assert owners.max() < 4


def test_pathological_clients_know_few_labels() -> None:
    given_population = population([number % 10 for number in range(1000)], 10)
    owners = divided("pathological", given_population)
    assert max(labels_of(owners, given_population.labels("label"))) <= 4
    assert numpy.bincount(owners).tolist() == [100] * 10
    with refused("data.pathological", "data.partition.runs"):
        divided("pathological", given_population, runs=101)


@pytest.mark.parametrize("name", CUT)
def test_more_clients_than_samples_are_refused(name: str) -> None:
    with refused("data.more-clients", "data.shards"):
        divided(name, population([0, 1, 2], 4))
    with refused("data.more-clients", "data.partition.clients"):
        divided(name, population([0, 1, 2], 2), clients=5)


KNOWN = {
    "iid": [1, 1, 0, 2, 2, 0, 2, 0, 1, 2, 0, 1],
    "stratified": [0, 0, 2, 1, 1, 0, 2, 1, 2, 0, 2, 1],
    "dirichlet": [1, 1, 2, 1, 1, 0, 0, 2, 1, 2, 1, 2],
    "pathological": [1, 0, 0, 1, 0, 0, 2, 1, 2, 2, 1, 2],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_partitions(name: str) -> None:
    """They belong to every recorded run: numpy's RandomState is frozen, and so are these."""
    assert divided(name, population([number % 3 for number in range(12)], 3, seed=7)).tolist() == KNOWN[name]


WRONG: dict[str, Callable[[Population], Any]] = {
    "gives list; expected a numpy array of whole numbers": lambda each: [0] * each.samples,
    "gives ndarray; expected a numpy array of whole numbers": lambda each: numpy.zeros(each.samples),
    "gives NoneType": lambda _: None,
    r"gives owners of shape \(3,\) for 80 samples": lambda _: numpy.zeros(3, int),
    "gives the owner -1; clients are numbered from 0 on": lambda each: numpy.full(each.samples, -1),
    "is not pure: asked again it gave other owners": lambda each: numpy.random.randint(2, size=each.samples),
    "changes the labels that it was given": lambda each: each.labels("label").__imul__(0),
}


@pytest.mark.parametrize(("problem", "partition"), WRONG.items())
def test_a_law_that_is_broken_is_told(problem: str, partition: Callable[[Population], Any]) -> None:
    found = laws.broken(partition, tried(2))
    assert found is not None
    assert re.match(problem, found), found
