"""The table of subsets: which of the training samples a run has at all. Members of an ensemble are trained on subsets of their
own (`docs/sweeps.md`); everything else of a run (shards, partitions, epochs, labels) sees the subset as its training set.

A subset is a function `name(samples: int, *, option, ...)` of the number of training samples that returns the numbers of those
that are used, int64, in any order, with repetitions where a sample counts more than once. It depends on its arguments alone;
`stream` is where randomness comes from. The option `shared_seed`, where it has one, also seeds `datasets()` of the pipeline, so
that runs with seeds of their own have the same samples under the same numbers.

Source of bagging: Breiman, "Bagging Predictors" (1996).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from orchestrator.common.import_string import raised
from orchestrator.common.registry import Table
from orchestrator.data.sampling.population import Whole
from orchestrator.errors import ConfigurationError, coded

_SEED = Field(
    ge=0, lt=2**63, description="The seed that all members have in common: of the division, and of datasets()."
)
Member = Annotated[int, Field(ge=0, description="Which member of an ensemble this is, from 0 on.")]
Members = Annotated[int, Field(ge=1, description="Among how many members the samples are divided.")]


def every(samples: int, *, shared_seed: Annotated[int | None, _SEED] = None) -> None:
    """Every training sample once."""


def bagging(samples: int, *, member: Member, shared_seed: Annotated[int, _SEED] = 0) -> Whole:
    """As many samples as there are, drawn with replacement: about 63 % of them, some more than once."""
    import numpy

    return numpy.sort(stream(shared_seed, "bagging", member).randint(0, samples, samples, dtype=numpy.int64))


def disjoint(samples: int, *, member: Member, members: Members, shared_seed: Annotated[int, _SEED] = 0) -> Whole:
    """One of `members` parts of the samples in random order; sizes differ by at most one.

    Raises ConfigurationError if there are too few members, or too few samples for them.
    """
    import numpy

    if member >= members:
        raise ConfigurationError(
            [f"data.subset.member: {member}, but members are numbered from 0 to {members - 1}"],
            code="data.subset-member",
        )
    if members > samples:
        raise ConfigurationError(
            [f"data.subset.members: {members} members for {samples} training samples; each needs at least one"],
            "take fewer members, or data.subset=bagging",
            code="data.subset-members",
        )
    order = stream(shared_seed, "disjoint").permutation(samples)
    part = order[samples * member // members : samples * (member + 1) // members]
    return numpy.sort(part).astype(numpy.int64)


SUBSETS: Table[Callable[..., Whole | None]] = Table(
    "data.subset", {"all": every, "bagging": bagging, "disjoint": disjoint}
)


def stream(seed: int, purpose: str, number: int = 0) -> Any:
    """numpy's RandomState, whose sequences are frozen (NEP 19): a function of the arguments."""
    import numpy

    words = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=32).digest()
    return numpy.random.RandomState(numpy.frombuffer(words, "<u4"))


def chosen(name: str, options: Mapping[str, Any], samples: int) -> Whole | None:
    """The numbers of the samples that are used, checked; None for all. Raises ConfigurationError, also for what a subset of the
    user's own raises."""
    try:
        found = SUBSETS.build(name, options)(samples)
    except ConfigurationError:
        raise
    except MemoryError as error:
        raise ConfigurationError(
            [
                f"data.subset: {name} holds a number for each of {samples:,} training samples, and memory is short: {error}"
            ],
            "leave it out, or give the run fewer samples",
            code="data.subset-memory",
        ) from error
    except Exception as error:
        raise ConfigurationError([f"data.subset: {name} {raised(error)}"], code="data.subset-raised") from error
    problem = None if found is None else misfit(found, samples)
    if problem is not None:
        raise ConfigurationError([f"data.subset: {name} gives {problem}"], code="data.subset-gives")
    return found


def misfit(found: Any, samples: int) -> str | None:
    """The fault of an object as a subset of so many samples; None if it is one."""
    import numpy

    if not isinstance(found, numpy.ndarray) or found.dtype.kind not in "iu" or found.ndim != 1:
        return f"a {type(found).__name__}; expected a numpy array of whole numbers, one for each sample that is used"
    if not len(found):
        return "no sample; a run needs one at least"
    if found.min() < 0 or found.max() >= samples:
        wrong = found[(found < 0) | (found >= samples)][0]
        return f"the sample {wrong}; they are numbered from 0 to {samples - 1}"
    return None


_TRIED = 120  # samples


def problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """The fault of a subset of the user's project, tried on a few samples; at most one sentence."""
    import numpy

    try:
        found = chosen(name, options, _TRIED)
        kept = None if found is None else found.copy()
        state = numpy.random.get_state()
        try:
            numpy.random.seed(1)
            again = chosen(name, options, _TRIED)
        finally:
            numpy.random.set_state(state)
    except ConfigurationError as error:
        return list(error.problems)
    same = kept is again if kept is None or again is None else numpy.array_equal(again, kept)
    return (
        []
        if same
        else [coded("data.subset-not-pure", f"data.subset: {name} is not pure: asked again it gave other samples")]
    )
