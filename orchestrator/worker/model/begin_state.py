"""Whether a model and its optimizer can go on with the state of another run: tried before anything is started."""

from __future__ import annotations

import torch

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import open_storage
from orchestrator.config.plan import Begin, Variant
from orchestrator.errors import CheckpointDamaged, ConfigurationError, Inconsistent
from orchestrator.optim import optimizers
from orchestrator.worker.model import snapshot

_ABSENT = "sgd"  # makes what it lacks: a momentum begins with the next gradient


def refuse_unfit(model: torch.nn.Module, optimizer: torch.optim.Optimizer, begin: Begin, named: Variant | None) -> None:
    """Refuse a state to begin with that does not fit this model and optimizer. named: the optimizer of the settings, None
    for the pipeline's own. Both hold the state afterwards. Raises ConfigurationError."""
    try:
        state = _read(begin)
        snapshot.restore(state, model, optimizer)
    except Inconsistent as error:
        raise ConfigurationError(
            [f"begin: the state of {begin.name} does not fit: {error.message}"],
            "give the pipeline and the optimizer that it was trained with, or begin with the weights alone: initial=",
            code="begin.state-unfit",
        ) from error
    lacking = set() if named is None or named.name == _ABSENT else _state_names(named) - _kept_in(optimizer)
    if lacking and optimizer.state:
        what = ", ".join(sorted(lacking))
        raise ConfigurationError(
            [f"optimizer: with these options it keeps {what} of a parameter, which the state of {begin.name} lacks"],
            "leave its options as they were, or begin with the weights alone: initial=",
            code="begin.state-lacks",
        )


def _read(begin: Begin) -> TrainingState:
    try:
        storage = open_storage(begin.folder)
        return catalog.load(storage, catalog.read(storage, begin.step))
    except (CheckpointDamaged, OSError) as error:
        raise ConfigurationError(
            [f"begin: the state of {begin.name} in {begin.folder} cannot be read: {error}"],
            "remove that folder, and it is fetched again",
            code="begin.state-unreadable",
        ) from error


def _state_names(named: Variant) -> set[str]:
    """The names of what the optimizer keeps of a parameter after a step."""
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Linear(2, 2)
    optimizer = optimizers.build(named.name, named.options, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return _kept_in(optimizer)


def _kept_in(optimizer: torch.optim.Optimizer) -> set[str]:
    return {str(key) for entry in optimizer.state.values() for key in entry}
