"""Modules of Lightning as pipelines, of both its packages: `adapt` makes the class. Lightning itself is not imported here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch.optim import lr_scheduler

from orchestrator.adapters.adapted import Apart, Course
from orchestrator.adapters.lightning import misfits
from orchestrator.adapters.lightning.module_pipeline import Looks, ModulePipeline, Optimizes, Schedules, ToldSteps
from orchestrator.adapters.lightning.reading import (
    Reading,
    computed,
    drawn_by,
    hands_on_self,
    is_shown,
    logged,
    names_in,
)
from orchestrator.adapters.source import Source
from orchestrator.common import import_string
from orchestrator.errors import ConfigurationError, PipelineRaised, code_of, coded

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
_PLACE = {"current_epoch", "global_step", "trainer"}  # whoever names one asks where in the run a step is
_COUNTS = {"global_step", "max_steps", "estimated_stepping_batches"}  # what may be held against each other
_SPLITS = ("random_split", "randperm", "train_test_split")
_PLATEAU = "ReduceLROnPlateau"
_SCHEDULERS = {name for name in dir(lr_scheduler) if name[:1].isupper()} - {_PLATEAU, "Optimizer", "Tensor"} | {"SWALR"}


def adapt(found: type, source: Source) -> type[ModulePipeline]:
    """The pipeline of a module. Raises ConfigurationError with everything of the two classes that does not fit."""
    if refused := [*_misfits(found, source)]:
        raise ConfigurationError(refused)
    return _made(found, source)


def problems(found: type, source: Source, course: Course, apart: Apart, *, builds: bool) -> list[str]:
    """Everything that does not fit of the classes, of the loaders, of what configure_optimizers returns. The rehearsal of a
    launch tells the third where the first two fit, as it builds the same. apart: leaves the process as it was; builds: look
    at the third in any case."""
    told = [*_misfits(found, source)]
    holder = found if source.data is None else _data_of(source)
    assert holder is not None
    told += misfits.of_loaders(Reading(holder), holder.__name__, course)
    if (told or builds) and not {"lightning.args", "lightning.no-training-step"} & {code_of(each) for each in told}:
        with apart():
            told += _of_optimizers(_made(found, source), source, course)
    codes = {code_of(each) for each in told}
    return [
        each for each in told if code_of(each) != "lightning.optimizers-returned" or "lightning.optimizers" not in codes
    ]


def _of_optimizers(kind: type[ModulePipeline], source: Source, course: Course) -> list[str]:
    """The parts of what configure_optimizers returns that do not fit. An exception of the user's code is for a run to tell."""
    try:
        pipeline = kind(**source.args)
        pipeline.begin(course)
        module = pipeline.built()
        if isinstance(pipeline, Optimizes):
            pipeline.optimizer(module)
    except ConfigurationError as error:
        return error.with_remedy()
    except PipelineRaised as error:
        return [coded(error.code, f"pipeline.target: {error.message}; {error.remedy}")]
    except Exception:
        return []
    return []


def _data_of(source: Source) -> type | None:
    found: type | None = None if source.data is None else import_string.find("pipeline.data", source.data, "class")
    return found


def _misfits(found: type, source: Source) -> Iterator[str]:
    """The sentences about the classes alone."""
    data_class = _data_of(source)
    yield from _arguments("pipeline.args", found, source.args)
    yield from misfits.of_module(Reading(found), found.__name__, has_data=data_class is not None)
    if data_class is not None:
        yield from _arguments("pipeline.data_args", data_class, source.data_args)
        yield from misfits.of_data(Reading(data_class), data_class.__name__)
    elif source.data_args:
        yield coded("lightning.data-args", "pipeline.data_args: without pipeline.data they are of no use")


def _made(found: type, source: Source) -> type[ModulePipeline]:
    module, name, data_class = Reading(found), found.__name__, _data_of(source)
    data = None if data_class is None else Reading(data_class)
    facts = {
        "__module__": found.__module__,
        "__qualname__": found.__qualname__,
        "module_class": found,
        "data_class": data_class,
        "data_args": dict(source.data_args),
        "own": frozenset(each for each in _ASKED if module.overrides(each)),
        "own_of_data": frozenset(each for each in _ASKED if data is not None and data.overrides(each)),
        "counts": frozenset(_COUNTS & names_in(module.through(*_ASKED))),
        "validated": _validated(module),
        "looks_at_data": _looks_at_data(module, data_class),
        "told": (*_told(module, name), *(_of_own_data(module, name) if data is None else ())),
    }
    return type(name, (*_parts(module), ModulePipeline), facts)


def _looks_at_data(module: Reading, data_class: type | None) -> bool:
    """Whether on_validation_epoch_end may ask for the data: of a data module by its name, of the module itself by any."""
    if not module.overrides("on_validation_epoch_end"):
        return False
    if data_class is None:
        return module.overrides("setup")
    functions = module.through("on_validation_epoch_end")
    return "datamodule" in names_in(functions) or any(map(hands_on_self, functions))


def _validated(module: Reading) -> frozenset[str] | None:
    """The names that validation_step logs; None where its source does not show all of them."""
    functions = module.through("validation_step")
    found = list(logged(functions))
    shown = all(is_shown(call) for _, call in found)
    return frozenset(name for name, _ in found) if found and shown else None


def _arguments(key: str, kind: type, args: object) -> Iterator[str]:
    try:
        inspect.signature(kind).bind(**dict(args))  # type: ignore[call-overload]
    except TypeError as error:
        yield coded("lightning.args", f"{key}: {kind.__name__}{inspect.signature(kind)}: {error}")


def _parts(module: Reading) -> Iterator[type[ModulePipeline]]:
    """The parts that such a module has."""
    if module.overrides("on_validation_epoch_end"):
        yield Looks
    if _asks_place(module):
        yield ToldSteps
    if module.overrides("configure_optimizers"):
        yield Schedules if _has_schedulers(module) else Optimizes


def _asks_place(module: Reading) -> bool:
    """Whether its steps may ask where in the run they are, also by a number of the batch that has another name."""
    steps = [each for each in ("training_step", "validation_step") if module.overrides(each)]
    indices = {name for each in steps for name in module.numbers(each) if not name.startswith("_")}
    functions = module.through(*steps, "forward")
    return bool((_PLACE | indices) & names_in(functions)) or any(map(hands_on_self, functions))


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
    for metric in computed(module.through("training_step")):
        yield (
            f"{metric}.compute() in training_step of {name} is of one batch alone, for any worker may compute any batch: where "
            "the loss follows from it, it is another one than in a Trainer, which goes on over the batches of an epoch"
        )
    if module.overrides("validation_step") and "batch_idx" in names_in(module.through("validation_step")):
        yield (
            f"validation_step of {name} counts batch_idx over batches of data.batch_size / data.shards rows, in the order of "
            "the validation set"
        )
    if module.overrides("teardown"):
        yield f"teardown of {name} is not called: the processes of a run end with it"


def _of_own_data(module: Reading, name: str) -> Iterator[str]:
    """A module is made once for its loaders and once as the model, each of which draws in __init__ for itself."""
    splits = dict.fromkeys(drawn_by(_SPLITS, module.through("__init__")))
    if splits and module.overrides("on_validation_epoch_end"):
        yield (
            f"__init__ of {name} draws a split ({', '.join(splits)}), and on_validation_epoch_end finds another one than the "
            "loaders have, perhaps with samples of training: draw it in setup(), or give it a seed of its own"
        )
