"""Under portable arithmetic: do the operators that a run uses have the same bits on this processor as on all others?

Each worker looks for itself, so nodes of other kinds and workers that join are looked at, too. Only the cases of
`docs/portable.md` whose operators the run uses are computed; that takes a few tenths of a second.
"""

from __future__ import annotations

import copy
from collections.abc import Set

import torch

from orchestrator.errors import ConfigurationError, coded
from orchestrator.numerics import determinism
from orchestrator.numerics.portable import checking, used
from orchestrator.pipeline import naming

_ROWS = 8  # of a parameter, at most, in the step that is tried
_REMEDY = (
    "use another operator (docs/portable.md has the table), or set run.arithmetic=native; `python -m orchestrator doctor` "
    "tells what this processor computes otherwise"
)


def judge(operators: Set[str]) -> list[str]:
    """The operators of which nothing is known, since no case has them. Raises ConfigurationError, which names those whose
    bits depend on the processor, or come out otherwise on this one."""
    apart = checking.concerned(operators)
    here = checking.check(checking.relevant(operators)).differing
    if not apart and not here:
        return checking.unknown(operators)
    problems = [
        coded("portable.other-processors", f"run.arithmetic: {_named(name)} has other bits on other processors")
        for name in apart
    ]
    problems += [
        coded(
            "portable.this-processor",
            f"run.arithmetic: {_named(name)} comes out otherwise on this {determinism.cpu_model()}",
        )
        for name in here
    ]
    raise ConfigurationError(problems, _REMEDY)


def _named(case: str) -> str:
    operators = ", ".join(sorted(checking.known()[case].operators))
    return f"{case} ({operators})"


def operators_of_step(optimizer: torch.optim.Optimizer) -> set[str]:
    """The operators of a step of this optimizer, which stays as it is: a copy of it steps with small parameters. Raises
    PipelineRaised if a user's optimizer cannot do that."""
    small: dict[int, object] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            small[id(parameter)] = torch.nn.Parameter(_small(parameter).zero_())
    for entry in optimizer.state.values():  # before the first step, as of Adagrad
        small.update((id(value), _small(value)) for value in entry.values() if isinstance(value, torch.Tensor))
    with naming("a step of the optimizer"):
        tried = copy.deepcopy(optimizer, small)
        for group in tried.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        with used.recorded() as found:
            tried.step()
    return found


def _small(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its first rows, in every dimension."""
    return tensor.detach()[tuple(slice(_ROWS) for _ in tensor.shape)].clone(memory_format=torch.contiguous_format)
