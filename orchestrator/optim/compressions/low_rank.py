"""PowerSGD: the mean gradient of a matrix, seen through a few columns.

    P = mean of M Q                M: a shard's matrix, n x m; Q: m x rank, as left by the step before
    B = orthonormal basis of P     Gram-Schmidt in float64
    R = mean of M' B               the gradient is B R'; the next Q is an orthonormal basis of R
    kept: M - B (M' B)'            what of a shard's own matrix the basis does not show

Both means are exact sums of their own, so the bytes do not grow with the shards. The basis is computed by every worker, with
the same bits. Everything with less than two axes is summed as it is, and so is a matrix that two thin ones would not make
`saving` times smaller. In the first `warmup` steps, and after them in the last of every `reset` steps, all is. Those sums are
of all that shards keep too, which begins anew then (error reset): so nothing waits longer than `reset` steps.

A shard keeps what the basis does not show of *its own* matrix, and not of the mean as in the paper; the sum over the shards
is the same. The rest is then known before the second sum, so a worker that is lost in the middle of it has what it keeps.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed optimization" (2019),
algorithms 1 and 2. Warm-up and saving: PyTorch's `PowerSGDState` (`start_powerSGD_iter`, `min_compression_rate`). Reset: Xie
et al., "CSER: Communication-efficient SGD with error reset" (2020).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from orchestrator.numerics.exact import there
from orchestrator.optim.compressions.codec import Agreement, Held, Means, Model, Phase, Result, Rows
from orchestrator.optim.transforms import State

_ALIGNED: Final = 64  # bytes: the address of an operand can change the bits of a product
_ROUNDING: Final = 2.0  # products are rounded, so a bound on them leaves a bit
_NOTHING: Final = 1e-30  # of a column's length; what is shorter has no direction
_LEFT, _RIGHT, _WHOLE = range(3)  # phases; the last is for exact steps


class LowRank:
    """Implements `codec.Codec`."""

    def __init__(
        self,
        model: Model,  # whose gradients travel
        rank: int,  # columns through which a matrix is seen
        *,
        error_feedback: bool,  # whether a shard keeps what they do not show
        warmup: int = 0,  # the first steps, in which all is summed as it is
        saving: float = 1.0,  # how many times smaller the two thin matrices have to be
        reset: int | None = None,  # in the last of so many steps all is summed as it is; None for never
    ) -> None:
        self._rank = rank
        self._seed = model.seed
        sizes = [(shape[0], math.prod(shape[1:])) if len(shape) > 1 else None for shape in model.shapes]
        self._matrices = {i: size for i, size in enumerate(sizes) if size is not None and _shrinks(*size, rank, saving)}
        first = [
            self._matrices[i][0] * rank if i in self._matrices else math.prod(shape)
            for i, shape in enumerate(model.shapes)
        ]
        second = [columns * rank for _, columns in self._matrices.values()]
        whole = [math.prod(shape) for shape in model.shapes]
        # Those of the last result, for which `encode` and `decode` ask.
        self._bases: tuple[Result, dict[int, torch.Tensor]] | None = None
        self._warmup, self._reset = (warmup, reset) if self._matrices else (0, None)
        phases = [Means(tuple(first), takes_part=self._is_compressed)]
        if self._matrices:
            phases.append(Means(tuple(second), takes_part=self._is_compressed))
        if self._warmup or self._reset:
            phases.append(Means(tuple(whole), takes_part=self._is_exact))
        self.phases: Sequence[Phase] = phases
        self.kept: Sequence[int] = tuple(self._matrices) if error_feedback else ()

    def replicated(self) -> State:
        return {
            str(i): self._basis(torch.zeros(columns, self._rank), i, -1) for i, (_, columns) in self._matrices.items()
        }

    def encode(self, phase: int, agreement: Agreement, held: Sequence[Held], earlier: Sequence[Result]) -> Rows:
        if phase == _WHOLE:
            return self._exact(agreement, held)
        return self._first(agreement, held) if phase == _LEFT else self._second(agreement, held, earlier[_LEFT])

    def decode(self, agreement: Agreement, results: Sequence[Result], mean: Sequence[torch.Tensor]) -> State:
        following = dict(agreement.replicated)
        if self._is_exact(agreement.step):
            for i, out in enumerate(mean):
                results[_WHOLE].write(i, out)
            return following
        for number, (i, (rows, columns)) in enumerate(self._matrices.items()):
            if agreement.largest[i] is None:
                continue
            seen = torch.empty(columns * self._rank)
            results[_RIGHT].write(number, seen)
            right = seen.view(columns, self._rank)
            left = there(self._lefts(results[_LEFT])[i], mean[i])
            mean[i].view(rows, columns).copy_(left @ there(right, mean[i]).t())
            following[str(i)] = self._basis(right, i, agreement.step)
        for i, out in enumerate(mean):
            if i not in self._matrices:
                results[_LEFT].write(i, out)
        return following

    def _is_exact(self, step: int) -> bool:
        """Whether all is summed as it is."""
        since = step - self._warmup
        return since < 0 or (self._reset is not None and since % self._reset == self._reset - 1)

    def _is_compressed(self, step: int) -> bool:
        return not self._is_exact(step)

    def _exact(self, agreement: Agreement, held: Sequence[Held]) -> Rows:
        """All of it, so that a shard keeps nothing."""
        rows = [list(each.tensors) for each in held]
        for each in held:
            for i in self.kept:
                tensor = each.tensors[i]
                each.tensors[i] = None if tensor is None else torch.zeros_like(tensor)
        return Rows(rows, agreement.largest)

    def _first(self, agreement: Agreement, held: Sequence[Held]) -> Rows:
        largest = list(agreement.largest)
        rights = {i: _operand(agreement.replicated[str(i)]) for i in self._matrices}
        for i, right in rights.items():
            largest[i] = _bound(largest[i], right)
        rights = _beside(held, rights)
        rows = []
        for each in held:
            row = list(each.tensors)
            for i, size in self._matrices.items():
                tensor = row[i]
                row[i] = None if tensor is None else (_operand(tensor).view(size) @ rights[i]).reshape(-1)
            rows.append(row)
        return Rows(rows, largest)

    def _second(self, agreement: Agreement, held: Sequence[Held], first: Result) -> Rows:
        lefts = self._lefts(first)
        largest = [_bound(agreement.largest[i], left) for i, left in lefts.items()]
        lefts = _beside(held, lefts)
        rows = []
        for each in held:
            row: list[torch.Tensor | None] = []
            for i, size in self._matrices.items():
                tensor = each.tensors[i]
                if tensor is None:
                    row.append(None)
                    continue
                matrix = _operand(tensor).view(size)
                right = matrix.t() @ lefts[i]
                row.append(right.reshape(-1))
                if self.kept:
                    each.tensors[i] = (matrix - lefts[i] @ right.t()).reshape(-1)
            rows.append(row)
        return Rows(rows, largest)

    def _lefts(self, first: Result) -> dict[int, torch.Tensor]:
        """The orthonormal bases B of all matrices."""
        if self._bases is None or self._bases[0] is not first:
            self._bases = first, {i: self._left(first, i) for i in self._matrices}
        return self._bases[1]

    def _left(self, first: Result, i: int) -> torch.Tensor:
        """The orthonormal basis B of a matrix."""
        rows, _ = self._matrices[i]
        summed = torch.empty(rows * self._rank)
        first.write(i, summed)
        return orthonormal(summed.view(rows, self._rank)).float()

    def _basis(self, right: torch.Tensor, i: int, step: int) -> torch.Tensor:
        """The Q to look through next: columns that say nothing are replaced by random ones, from seed and step."""
        found = orthonormal(right)
        silent = (found == 0).all(0)
        if silent.any():
            named = f"{self._seed} {i} {step}".encode()
            seed = int.from_bytes(hashlib.blake2b(named, digest_size=4).digest())
            drawn = torch.randn(right.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            found = orthonormal(torch.where(silent, drawn, found))
        return found.float()


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis (float64) of the columns, by Gram-Schmidt, each twice; a column that the ones before it make up is
    zero. Plain loops: no library decides about the bits."""
    basis = columns.double().t().clone(memory_format=torch.contiguous_format)
    for j, column in enumerate(basis):
        length = float(column.norm())
        for _ in range(2):
            for earlier in basis[:j]:
                column -= torch.dot(earlier, column) * earlier
        left = float(column.norm())
        if left > max(_NOTHING, 1e-12 * length):
            column /= left
        else:
            column.zero_()
    return basis.t().contiguous()


def _shrinks(rows: int, columns: int, rank: int, saving: float) -> bool:
    """Whether two thin matrices have less than 1 / saving of the elements."""
    return (rows + columns) * rank * saving < rows * columns


def _operand(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as all workers have it in a product, wherever they have it from."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNED == 0 else tensor.clone()


def _beside(held: Sequence[Held], factors: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The thin matrices where those of the shards are."""
    found = next((tensor for each in held for tensor in each.tensors if tensor is not None), None)
    return {i: factor if found is None else there(factor, found) for i, factor in factors.items()}


def _bound(largest: float | None, columns: torch.Tensor) -> float | None:
    """A bound on the products of a matrix, whose elements are at most `largest`, with these columns."""
    if largest is None:
        return None
    return largest * float(columns.double().abs().sum(0).max()) * _ROUNDING
