"""The interface of a compression method: the sums it needs in each step, what shards put into them, and what comes of them.

    phases    what is summed or gathered, one after the other; each may depend on the results of those before
    encode    what the held contributions are in a phase; called after the vote, so it knows what all shards have together
    decode    the mean gradient, from the results of all phases, equal at every worker

One rule keeps every method exact: contributions are held until the vote and encoded after it. Each result is free of the
order and grouping of shards (an exact sum, a sum of integers, or payloads that are decoded in the order of shards), so no bit
depends on who hosts what. A method keeps nothing between steps: what it needs from step to step are `replicated` tensors,
equal at all workers, and what a shard keeps (error feedback): what is left in `Held.tensors` after the last phase is encoded.
Both are saved, and move with workers and shards.

Tensors are flat here, in the order in which they lie in memory; shapes are in that order too. They are on the device of the
gradients; `replicated` is in host memory, and a result is written wherever it is wanted.
Legend: P = parameters of the model that are trained, S = shards that this worker holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from orchestrator.optim.transforms import State


@dataclass(frozen=True)
class Model:
    """The facts about model and run that a compression is built from. shapes: of the P parameters; seed: of this run's
    compression; shards: of a step."""

    shapes: tuple[tuple[int, ...], ...]
    shards: int
    seed: int


@dataclass(frozen=True)
class Agreement:
    """The facts that all members share after the vote. largest: for each parameter the largest |weight * element| of all
    shards' held tensors, None where no shard has any; replicated: as of the last committed step."""

    step: int
    total_weight: float
    largest: Sequence[float | None]
    replicated: State


@dataclass
class Held:
    """The contribution of one shard. tensors: P float32 vectors, None for a parameter without gradient; with error feedback
    they hold what the shard kept, and are this step's own: to be changed in place."""

    shard: int
    weight: float
    tensors: list[torch.Tensor | None]


def every_step(step: int) -> bool:  # noqa: ARG001
    return True


@dataclass(frozen=True)
class Phase:
    """Vectors of so many elements. takes_part: in a step, by its number alone."""

    elements: tuple[int, ...]
    takes_part: Callable[[int], bool] = field(default=every_step, kw_only=True)


@dataclass(frozen=True)
class Levels(Phase):
    """A phase: vectors that are summed as integers of so many bits (`numerics.levels`)."""

    bits: int


@dataclass(frozen=True)
class Means(Phase):
    """A phase: vectors whose weighted mean is exact (`numerics.exact`)."""


@dataclass(frozen=True)
class Largest(Phase):
    """A phase: of vectors each shard sends a few elements, the largest, which are gathered (`numerics.chosen`)."""


@dataclass(frozen=True)
class Rows:
    """The input of a phase. rows: S x vectors of the phase, float32. largest: for each vector a bound on |weight * element|
    over *all* shards, None or zero where no shard has any; under `Levels` it is the span of the levels.

    keeps: `Levels` leaves in the rows what rounding dropped, and `Largest` what is not sent. counts: for `Largest`, how many
    elements of each vector are sent.
    """

    rows: Sequence[Sequence[torch.Tensor | None]]
    largest: Sequence[float | None]
    keeps: bool = False
    counts: Sequence[int] = ()


class Result(Protocol):
    """The weighted mean of each vector of a phase."""

    def write(self, i: int, out: torch.Tensor) -> None:
        """Vector i, into a float32 vector of its size; zeros where no shard has any."""


class Nothing:
    """Implements `Result`: of a phase that takes no part in a step."""

    def write(self, i: int, out: torch.Tensor) -> None:  # noqa: ARG002
        out.zero_()


class Codec(Protocol):
    """A compression method at work. phases: at least one vector with elements in each; some take part in each step, by its
    number alone, which servers know too. kept: the parameters of which a shard keeps something."""

    phases: Sequence[Phase]
    kept: Sequence[int]

    def replicated(self) -> State:
        """Before the first step; {} for a method that needs nothing."""

    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:
        """The held contributions as this phase sums them; the phase takes part in the step. earlier: results of the phases
        before, `Nothing` for those that do not."""

    def decode(self, agreement: Agreement, results: Sequence[Result], mean: Sequence[torch.Tensor]) -> State:
        """Write the mean gradient into P vectors; of one that no shard has, anything. Returns what is replicated after
        it."""
