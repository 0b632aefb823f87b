"""Contributions for tests, as a user would write them: transforms of a shard's gradient, built from options."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from orchestrator.config.plan import Variant
from orchestrator.optim.transforms import Gradients, State


class ErrorFeedback:
    """Gives what fits a coarse grid, keeps what rounding dropped, and adds that to the next step's gradient."""

    def __init__(self, spacing: float = 0.25) -> None:
        self._spacing = spacing

    def init(self, parameters: Sequence[torch.Tensor]) -> State:
        return {str(i): torch.zeros_like(parameter) for i, parameter in enumerate(parameters)}

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        given: list[torch.Tensor | None] = []
        kept = dict(state)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                given.append(None)
                continue
            whole = gradient + state[str(i)]
            rounded = (whole / self._spacing).round() * self._spacing
            given.append(rounded)
            kept[str(i)] = whole - rounded
        return given, kept


ERROR_FEEDBACK = Variant(f"{__name__}:ErrorFeedback", {"spacing": 2.0**-4})


class Rounded:
    """Gives what fits a coarse grid and keeps nothing."""

    def __init__(self, spacing: float = 0.25) -> None:
        self._spacing = spacing

    def init(self, parameters: Sequence[torch.Tensor]) -> State:  # noqa: ARG002
        return {}

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        spacing = self._spacing
        return [None if each is None else (each / spacing).round() * spacing for each in gradients], state


ROUNDED = Variant(f"{__name__}:Rounded", {"spacing": 2.0**-4})


class Delayed:
    """Gives the gradient of the step before, and keeps the present one, itself."""

    def init(self, parameters: Sequence[torch.Tensor]) -> State:
        return {str(i): torch.zeros_like(parameter) for i, parameter in enumerate(parameters)}

    def update(self, gradients: Gradients, state: State) -> tuple[Gradients, State]:
        given = [None if each is None else state[str(i)] for i, each in enumerate(gradients)]
        return given, {**state, **{str(i): each for i, each in enumerate(gradients) if each is not None}}


DELAYED = Variant(f"{__name__}:Delayed")
