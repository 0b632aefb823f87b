"""One step of an optimizer, watched: a worker that joins gets parameters and the optimizer's state, so whatever else a step
changes is refused here. A launch tries this with classes that are not torch's, before anything is started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from orchestrator.errors import PipelineRaised, RunFailed
from orchestrator.numerics import streams
from orchestrator.optim import optimizer_laws, optimizer_state, optimizers
from orchestrator.optim.optimizer_state import kept_aside
from orchestrator.pipeline import naming
from orchestrator.worker.model import snapshot

_MOST_TRIED = 2**24  # elements: the steps of a larger model would hold up a launch
_TRIED = 2  # steps
_SHARING = (
    "have optimizers that step within it take its groups and its state, each.state = self.state (docs/porting.md, several "
    "optimizers at once), and what else it remembers be in state or param_groups"
)


class Step(NamedTuple):
    """seed: of the run."""

    number: int
    seed: int
    optimizer: torch.optim.Optimizer
    model: torch.nn.Module


def take(this: Step, gradients: torch.Tensor, act: Callable[[], object]) -> None:
    """Take the step, by `act`, which finds its gradients as views of `gradients`, or copies if it may change them: peers may
    still be reading those. Raises PipelineRaised."""
    optimizers.begin_late(this.optimizer)
    is_of_torch = optimizers.is_of_torch(this.optimizer)
    if not is_of_torch or optimizers.may_change_gradients(this.optimizer):
        _give_copies(this.model, gradients)
    if is_of_torch:
        _take(this, act)
    else:
        _take_watched(this, act)


def _give_copies(model: torch.nn.Module, gradients: torch.Tensor) -> None:
    """Clipping has made new gradients where it scaled any."""
    place = gradients.untyped_storage().data_ptr()
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.untyped_storage().data_ptr() == place:
            parameter.grad = parameter.grad.clone()


def _take(this: Step, act: Callable[[], object]) -> None:
    with naming(f"the optimizer (step {this.number})"), streams.seeded(this.seed, "optimizer step", this.number):
        act()


def _take_watched(this: Step, act: Callable[[], object]) -> None:
    step, _, optimizer, model = this
    aside, options = kept_aside(optimizer, model), optimizer_state.options(optimizer)
    marks, places = _marks(this), places_of(model)
    _take(this, act)
    optimizer_state.keep_own(optimizer)  # gradients are its own already: refuses what no checkpoint could hold
    optimizer_state.refuse_shared(optimizer, model)
    settle(optimizer, model, places)
    for name, after in kept_aside(optimizer, model).items():
        if after != aside.get(name):
            raise PipelineRaised(
                f"the optimizer changed its {name} (step {step}), which no checkpoint and no worker that joins "
                "would have",
                _SHARING
                if optimizer_state.has_others(optimizer)
                else "keep it in optimizer.state[parameter] or param_groups, or in frozen parameters of the model",
                code="optimizer.attribute",
            )
    for what, mark in _marks(this).items():
        if mark != marks.get(what):
            raise PipelineRaised(
                f"the optimizer {what} of the model (step {step}), which a worker that joins would not have",
                "have it change parameters alone: what is to change along the run may be a frozen one "
                "(requires_grad=False, in model()), and what is to be trained no more a group with lr=0 and weight_decay=0",
                code="optimizer.changes-model",
            )
    now = optimizer_state.options(optimizer)
    strange = optimizer_state.strange_option(optimizer, options, now)
    if strange is not None:
        raise PipelineRaised(
            f"the optimizer added, removed or exchanged {strange!r} in its param_groups (step {step})",
            "leave the groups and their options as they are when the optimizer is built: a state has to fit the optimizer "
            "of a worker that joins",
            code="optimizer.groups",
        )
    if [group["lr"] for group in now] != [group["lr"] for group in options]:
        raise PipelineRaised(
            f"the optimizer, or a scheduler that follows it, changed its learning rate (step {step})",
            "let `schedule` do that, which sets the rates for each step, or keep a factor of your own in param_groups",
            code="optimizer.changes-rate",
        )


def _marks(this: Step) -> dict[str, object]:
    """Marks of the parts of the model that a step may not change. All that its layers hold is looked at in the first steps, and
    in one of each doubling."""
    marks = optimizer_state.model_marks(this.optimizer, this.model)
    if this.number & (this.number - 1) == 0:
        marks |= optimizer_state.marks_of_all_else(this.optimizer, this.model)
    return marks


def places_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """The memory of each parameter."""
    return [parameter.detach() for parameter in model.parameters()]


@torch.no_grad()
def settle(optimizer: torch.optim.Optimizer, model: torch.nn.Module, places: Sequence[torch.Tensor]) -> None:
    """After a step: put parameters to which it gave other memory (`parameter.data = ...`) back to their places, with the new
    values. All else reads them there: local steps, asynchronous modes, recordings. Raises PipelineRaised for another shape."""
    pairs = zip(model.named_parameters(), places, strict=True)
    moved = [(name, each, place) for (name, each), place in pairs if not _is_there(each, place)]
    for name, parameter, place in moved:
        if (parameter.shape, parameter.dtype) != (place.shape, place.dtype):
            raise PipelineRaised(
                f"the optimizer gave the parameter {name!r} the shape {list(parameter.shape)} and the type {parameter.dtype}; "
                f"it had {list(place.shape)} and {place.dtype}",
                "write into it in place, under torch.no_grad(): parameter.copy_(...), parameter.add_(...)",
                code="optimizer.changes-shape",
            )
    if moved:
        optimizer_state.keep_own(optimizer, *(place for *_, place in moved))  # a state may have got the former memory
    for _, parameter, place in moved:
        place.copy_(parameter.clone())  # which may be another view of the same memory
        parameter.data = place


def _is_there(parameter: torch.Tensor, place: torch.Tensor) -> bool:
    if parameter.data_ptr() != place.data_ptr() or parameter.dtype != place.dtype:
        return False
    return parameter.shape == place.shape and parameter.stride() == place.stride()


def refuse_unfit(optimizer: torch.optim.Optimizer, model: torch.nn.Module, seed: int) -> None:
    """Raises PipelineRaised for what a run would refuse in its first steps, or at its first checkpoint, of a class that is not
    torch's. Parameters and state are others afterwards. Workers tell what the class itself raises, except for want of a
    closure."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = sum(parameter.numel() for parameter in trained)
    if size > _MOST_TRIED or optimizers.is_of_torch(optimizer):
        return
    gradients = torch.empty(size)
    parts = torch.split(gradients, [parameter.numel() for parameter in trained])
    for number in range(_TRIED):
        with streams.seeded(seed, "trial of the optimizer", number):
            gradients.normal_()
        for parameter, part in zip(trained, parts, strict=True):
            parameter.grad = part.view(parameter.shape)
        try:
            take(Step(number, seed, optimizer, model), gradients, optimizer.step)
        except PipelineRaised as error:
            if not error.details:
                raise
            if _wants_closure(optimizer):
                raise optimizer_laws.unfit(optimizer) from error
            return
    try:
        snapshot.capture(model, optimizer, {})
    except RunFailed as error:
        raise PipelineRaised(error.message, error.remedy, code=error.code) from None


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step that fails without a closure calls one that it is given, and succeeds then."""
    calls: list[None] = []

    def closure() -> torch.Tensor:
        calls.append(None)
        return torch.zeros(())

    try:
        optimizer.step(closure)  # type: ignore[arg-type]
    except Exception:
        return False
    return bool(calls)
