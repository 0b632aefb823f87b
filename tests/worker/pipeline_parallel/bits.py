"""A micro-batch of a model, unsplit and in stages, compared to the bit."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, NamedTuple

import torch

from orchestrator.numerics import streams
from orchestrator.worker.pipeline_parallel import border_values
from orchestrator.worker.pipeline_parallel.all_stages import WholeModel
from orchestrator.worker.pipeline_parallel.cuts import Cuts, Way, choose, cut
from orchestrator.worker.pipeline_parallel.survey import Survey, survey
from tests.worker.pipeline_parallel.models import Case

SEED = 77


class Bits(NamedTuple):
    """All that a micro-batch leaves."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    generators: border_values.Generators

    def differing(self, other: Bits) -> list[str]:
        found = [] if _same(self.loss, other.loss) else ["loss"]
        found += [name for name, one in self.gradients.items() if not _same(one, other.gradients[name])]
        found += [name for name, one in self.buffers.items() if not _same(one, other.buffers[name])]
        generators = [str(self.generators[1:]) == str(other.generators[1:])]
        generators.append(_same(self.generators.of_torch[0], other.generators.of_torch[0]))
        return found if all(generators) else [*found, "generators"]


def _same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    left, right = (each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (left, right))
    return torch.equal(left, right)


def made(case: Case) -> torch.nn.Module:
    with streams.seeded_with(5):
        model = case.make()
    return model.train()


def precision(mixed: bool) -> Any:
    if not mixed:
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)


def surveyed(case: Case, *, mixed: bool = False) -> Survey:
    readers: frozenset[str] = frozenset()
    while True:
        model = made(case)
        with streams.seeded_with(SEED), precision(mixed):
            found = survey(model, partial(case.loss, model, case.batch), readers=readers)
        if found.reading <= readers:
            return found
        readers |= found.reading


def unsplit(case: Case, *, mixed: bool = False) -> Bits:
    model = made(case)
    with streams.seeded_with(SEED):
        with precision(mixed):
            loss = case.loss(model, case.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return _left(model, loss)


def cuts_of(case: Case, borders: tuple[str, ...] | None = None, *, stages: int = 2, mixed: bool = False) -> Cuts:
    """At these borders; None: at chosen ones."""
    model, found = made(case), surveyed(case, mixed=mixed)
    names = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    surveys: dict[Way, Survey] = {"training": found}
    return cut(surveys, borders or choose(surveys, stages, sizes), names)


def split(case: Case, cuts: Cuts, *, mixed: bool = False) -> Bits:
    model = made(case)
    whole = WholeModel(model, cuts)
    with streams.seeded_with(SEED):

        def call() -> torch.Tensor:
            with precision(mixed):
                return case.loss(model, case.batch)

        loss = whole.forward(call)
        whole.backward(loss)
        whole.close()
        return _left(model, loss)


def _left(model: torch.nn.Module, loss: torch.Tensor) -> Bits:
    return Bits(
        loss.detach(),
        {name: parameter.grad for name, parameter in model.named_parameters()},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
        border_values.Generators.now(),
    )
