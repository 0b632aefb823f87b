"""Optimizers that work element by element: which they are, and the law that a divided update needs of them.

Such an optimizer computes each element of a parameter and of its state from that element alone, and from numbers that are the
same for all. So a part of a vector gets the bits that it has in the whole. A launch tests that torch's compiled loops keep to
this on a processor, in the vector body and in its tail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.optim import optimizer as of_torch

from orchestrator.numerics.byte_layout import same_bits

BY_ELEMENT: Final = frozenset(
    getattr(torch.optim, name)
    for name in (
        *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    )
)
_TRIED: Final = 3 * 64 + 7  # elements: vector bodies of any width, and a tail
_CUT: Final = 64  # elements: where the law cuts; pieces of an update are cut at multiples of it
_STEPS: Final = 3
State = dict[torch.Tensor, dict[str, Any]]
# Those of torch that are called at the steps of all optimizers.
HOOKS_OF_ALL: Final = (
    getattr(of_torch, "_global_optimizer_pre_hooks", True),
    getattr(of_torch, "_global_optimizer_post_hooks", True),
)


@contextmanager
def stepping(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Sequence[torch.Tensor]], state: State
) -> Iterator[State]:
    """Inside the block the optimizer steps over these parameters, by group, with this state of theirs, which it gets as its
    own: with the options that it has, and all else of it."""
    own = optimizer.state, [group["params"] for group in optimizer.param_groups]
    second: State = defaultdict(dict, state)
    try:
        optimizer.state = second  # type: ignore[assignment]
        for group, others in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = list(others)
        yield second
    finally:
        optimizer.state = own[0]
        for group, others in zip(optimizer.param_groups, own[1], strict=True):
            group["params"] = others


def state_names(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """The names of the state that it keeps for each element, in any of its groups."""
    tried = [[torch.zeros(2)] for _ in optimizer.param_groups]
    for (each,) in tried:
        each.grad = torch.zeros(2)
    with stepping(optimizer, tried, {}) as state:
        optimizer.step()
    found = (key for entry in state.values() for key, value in entry.items() if is_of_elements(value, 2))
    return tuple(dict.fromkeys(found))


def is_of_elements(value: object, elements: int) -> bool:
    """Whether this is kept of each of so many elements that lie one after the other."""
    return isinstance(value, torch.Tensor) and value.shape == (elements,)


def problem(optimizer: torch.optim.Optimizer) -> str | None:
    """Why its update cannot be divided, as a predicate; None where it can."""
    if type(optimizer) not in BY_ELEMENT:
        return f"is a {type(optimizer).__name__}, which may look at more than one element at a time"
    if is_watched(optimizer):
        return "has hooks, or a step of its own"
    for group, options in enumerate(optimizer.param_groups):
        if not _keeps_to_it(optimizer, group):
            name = type(optimizer).__name__
            return f"gives a part of a vector other bits than the whole on this processor ({name}, {_said(options)})"
    return None


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody is called before or after its steps, or those of all, or has replaced them. A torch that keeps hooks
    elsewhere may call somebody."""
    before = getattr(optimizer, "_optimizer_step_pre_hooks", True)
    after = getattr(optimizer, "_optimizer_step_post_hooks", True)
    return bool(before or after) or "step" in vars(optimizer) or any(HOOKS_OF_ALL)


def _keeps_to_it(optimizer: torch.optim.Optimizer, group: int) -> bool:
    """The law: a vector whole, and in pieces, the same bits in parameters and state after some steps."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(_TRIED, generator=generator)
    pieces = [piece.clone() for piece in torch.split(whole, _CUT)]
    states: list[State] = [{}, {}]
    for _ in range(_STEPS):
        gradient = torch.randn(_TRIED, generator=generator) * 10.0 ** torch.randint(
            -6, 3, (_TRIED,), generator=generator
        )
        for index, (tried, gradients) in enumerate(
            (([whole], [gradient]), (pieces, [each.clone() for each in torch.split(gradient, _CUT)]))
        ):
            for each, own in zip(tried, gradients, strict=True):
                each.grad = own
            groups = [tried if other == group else [] for other in range(len(optimizer.param_groups))]
            with stepping(optimizer, groups, states[index]) as state:
                optimizer.step()
            states[index] = dict(state)
    return same_bits(whole, torch.cat(pieces)) and _same_state(
        states[0].get(whole, {}), [states[1].get(p, {}) for p in pieces]
    )


def _same_state(whole: dict[str, Any], pieces: Sequence[dict[str, Any]]) -> bool:
    for key, value in whole.items():
        own = [piece[key] for piece in pieces]
        if is_of_elements(value, _TRIED):
            if not same_bits(value, torch.cat(own)):
                return False
        elif isinstance(value, torch.Tensor):
            if not all(same_bits(value, each) for each in own):
                return False
        elif any(each != value for each in own):
            return False
    return True


def _said(group: dict[str, Any]) -> str:
    chosen = [f"{key}={value}" for key, value in group.items() if key != "params" and value is True]
    return ", ".join(chosen) or "plain options"
