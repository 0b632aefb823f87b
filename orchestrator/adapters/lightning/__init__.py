"""Modules of Lightning as pipelines, of both its packages: `adapt` makes the class. Lightning itself is not imported here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch.optim import lr_scheduler

from orchestrator.adapters.lightning import misfits
from orchestrator.adapters.lightning.module_pipeline import Looks, ModulePipeline, Optimizes, Schedules, ToldSteps
from orchestrator.adapters.lightning.reading import Reading, logged, names_in
from orchestrator.adapters.source import Source
from orchestrator.common import import_string
from orchestrator.errors import ConfigurationError, coded

_ASKED = (
    *(
        "training_step",
        "validation_step",
        "configure_optimizers",
        "setup",
        "configure_model",
        "forward",
        "predict_step",
    ),
    *("on_before_batch_transfer", "on_after_batch_transfer", "on_validation_epoch_end", "train_dataloader"),
)
_PLACE = {"current_epoch", "global_step", "trainer", "batch_idx"}  # whoever names one asks where in the run a step is
_PLATEAU = "ReduceLROnPlateau"
_SCHEDULERS = {name for name in dir(lr_scheduler) if name[:1].isupper()} - {_PLATEAU, "Optimizer", "Tensor"}


def adapt(found: type, source: Source) -> type[ModulePipeline]:
    """The pipeline of a module. Raises ConfigurationError with everything that does not fit."""
    module, name = Reading(found), found.__name__
    data_class = None if source.data is None else import_string.find("pipeline.data", source.data, "class")
    problems = [
        *_arguments("pipeline.args", found, source.args),
        *misfits.of_module(module, name, has_data=data_class is not None),
    ]
    data = None
    if data_class is not None:
        data = Reading(data_class)
        problems += [
            *_arguments("pipeline.data_args", data_class, source.data_args),
            *misfits.of_data(data, data_class.__name__),
        ]
    elif source.data_args:
        problems.append(coded("lightning.data-args", "pipeline.data_args: without pipeline.data they are of no use"))
    if problems:
        raise ConfigurationError(problems)
    facts = {
        "__module__": found.__module__,
        "__qualname__": found.__qualname__,
        "module_class": found,
        "data_class": data_class,
        "data_args": dict(source.data_args),
        "own": frozenset(each for each in _ASKED if module.overrides(each)),
        "own_of_data": frozenset(each for each in _ASKED if data is not None and data.overrides(each)),
        "told": tuple(_told(module, name)),
    }
    return type(name, (*_parts(module), ModulePipeline), facts)


def _arguments(key: str, kind: type, args: object) -> Iterator[str]:
    try:
        inspect.signature(kind).bind(**dict(args))  # type: ignore[call-overload]
    except TypeError as error:
        yield coded("lightning.args", f"{key}: {kind.__name__}{inspect.signature(kind)}: {error}")


def _parts(module: Reading) -> Iterator[type[ModulePipeline]]:
    """The parts that such a module has."""
    if module.overrides("on_validation_epoch_end"):
        yield Looks
    if _PLACE & names_in(module.through("training_step", "validation_step", "forward")):
        yield ToldSteps
    if module.overrides("configure_optimizers"):
        yield Schedules if _has_schedulers(module) else Optimizes


def _has_schedulers(module: Reading) -> bool:
    """Whether its source names a scheduler other than that of a plateau."""
    names = names_in(module.through("configure_optimizers"))
    if names & _SCHEDULERS or any("schedule" in name and name != "lr_scheduler" for name in map(str.lower, names)):
        others = {each for each in names if "schedule" in each.lower()} - {
            "lr_scheduler",
            "scheduler",
            "lr_scheduler_config",
        }
        return bool(names & _SCHEDULERS or others or _PLATEAU not in names)
    return "lr_scheduler" in names and _PLATEAU not in names


def _told(module: Reading, name: str) -> Iterator[str]:
    """The ways in which a run differs from a Trainer."""
    training = dict.fromkeys(each for each, _ in logged(module.through("training_step")))
    if training:
        yield (
            f"self.log in training_step of {name} ({', '.join(training)}) is not recorded: the loss of every step is in the "
            "trace, and what validation_step logs is recorded"
        )
    if module.overrides("validation_step") and "batch_idx" in names_in(module.through("validation_step")):
        yield f"validation_step of {name} uses batch_idx, which is 0 in every batch here"
    if module.overrides("teardown"):
        yield f"teardown of {name} is not called: the processes of a run end with it"
