"""The origins of `new NAME from=ORIGIN,...`: how each is recognised, and the settings that are found in it, with reasons.

An origin is one line of `ORIGINS`: how it is recognised, and the function that reads it. Several, comma-separated, are merged.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.adapters import table
from orchestrator.adapters.adapted import Course
from orchestrator.adapters.source import Source
from orchestrator.adapters.table import Adapter
from orchestrator.common import import_string
from orchestrator.config.settings import training_arguments
from orchestrator.config.settings.sections import KeyPath
from orchestrator.config.settings.sources import from_name
from orchestrator.errors import ConfigurationError, UsageError
from orchestrator.numerics.determinism import left_as_it_was
from orchestrator.pipeline import Pipeline, defines

_TRAINABLE = "orchestrator.adapters.transformers:Trainable"
_TARGET, _MODEL, _DATA = ("pipeline", "target"), ("pipeline", "args", "model"), ("pipeline", "args", "data")
_UNFIT = "Does not fit: "
_FEW_STEPS = 64  # for which schedules are looked at
_NOTES = (
    "A step is divided into data.shards parts, which are computed one by one: 1 computes a batch at once, as Trainer does",
    "on one device; 4 run on 1 to 4 workers with the same bits. Another number is another result.",
)


@dataclass
class Found:
    """Settings by key, what is said beside them, and what is said above all."""

    values: dict[KeyPath, Any] = field(default_factory=dict)
    said: dict[KeyPath, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take the other's in, too; lists are joined, and a data module takes the place of another one. Raises UsageError for
        two targets."""
        targets = [each.values.get(_TARGET) for each in (self, other)]
        if None not in targets and targets[0] != targets[1]:
            raise UsageError(
                f"new: from={targets[0]},{targets[1]}: a run has one target",
                "name one class of a model; a data module of Lightning may stand beside it",
                code="project.two-targets",
            )
        if ("pipeline", "data") in other.values:
            self.values = {path: value for path, value in self.values.items() if path[:2] != ("pipeline", "data_args")}
            self.notes = [each for each in self.notes if not each.startswith(f"{_UNFIT}pipeline.data:")]
        for path, value in other.values.items():
            known = self.values.get(path)
            self.values[path] = [*known, *value] if isinstance(known, list) else value
        self.said = {path: each for path, each in self.said.items() if path not in other.values} | other.said
        self.notes += [each for each in other.notes if each not in self.notes]


def read(entry: str, devices: int) -> Found:
    """Read what a new configuration is to be made of. devices: of the original. Raises UsageError for what is no origin,
    ConfigurationError for what does not fit."""
    for is_one, function in ORIGINS:
        if is_one(entry):
            return function(entry, devices)
    missing = "" if Path(entry).exists() else "there is no such file or folder, and "
    raise UsageError(
        f"new: from={entry}: {missing}it is no class (module:Class), file of TrainingArguments, or folder of a model or "
        "data set",
        "name one of these; several are separated by commas",
        code="project.origin",
    )


def with_defaults(found: Found) -> Found:
    """The same with Trainer's defaults where nothing says how a model of Hugging Face is trained."""
    if found.values.get(("pipeline", "target")) != _TRAINABLE or ("data", "batch_size") in found.values:
        return found
    usual = training_arguments.translated({})
    whole = Found(usual.values, usual.said, ["Trainer's defaults, but for model and data.", *_NOTES])
    whole.add(found)
    return whole


def _content(entry: str) -> Mapping[str, Any]:
    """The mapping in a file; empty where there is none."""
    try:
        found = json.loads(Path(entry).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _is_arguments(entry: str) -> bool:
    if Path(entry).name == training_arguments.PICKLED:
        return True  # and refused
    return entry.endswith(".json") and training_arguments.is_one(list(_content(entry)))


def _arguments(entry: str, devices: int) -> Found:
    if problems := from_name(entry, Path()).problems:
        raise ConfigurationError(problems, "take them out of the file, or do as is said of each")
    found = training_arguments.translated(_content(entry), devices)
    return Found({("pipeline", "target"): _TRAINABLE, **found.values}, found.said, list(_NOTES))


def _model(entry: str, _: int) -> Found:
    place = Path(entry)
    values: dict[KeyPath, Any] = {("pipeline", "target"): _TRAINABLE, _MODEL: entry, ("data", "inputs"): [entry]}
    if (place / "tokenizer_config.json").is_file():
        values["pipeline", "args", "tokenizer"] = entry
    return Found(values)


def _data(entry: str, _: int) -> Found:
    return Found({_DATA: entry, ("data", "inputs"): [entry]})


def _class(entry: str, devices: int) -> Found:
    """A class of the user: a pipeline, or a module of Lightning with the data module beside it."""
    kind = import_string.find("from", entry, "class")
    said: dict[KeyPath, str] = {}
    if inspect.isclass(kind) and any(adapter.takes_data(kind) for adapter in table.ADAPTERS):
        values: dict[KeyPath, Any] = {("pipeline", "data"): entry}
        _arguments_of(kind, ("pipeline", "data_args"), values, said)
        _batch(values, said, devices)
        return Found(values, said)
    values = {_TARGET: entry}
    _arguments_of(kind, ("pipeline", "args"), values, said)
    adapter, notes = table.adapter_of(kind), ["The arguments are the defaults of the class.", *_NOTES]
    if adapter is not None:
        _beside(kind, adapter, values, said, devices)
        notes += [f"{_UNFIT}{each}" for each in _problems(entry, values)]
    elif issubclass(kind, Pipeline) and not defines(kind, "optimizer"):
        values |= {("optimizer", "name"): "adamw", ("optimizer", "lr"): 0.001}
        said["optimizer", "name"] = "the class has no optimizer(): name the one that you want"
    values["run", "epochs"] = 1
    said["run", "epochs"] = (
        "a class does not say how long it is trained: max_epochs of the Trainer; run.steps counts updates"
    )
    return Found(values, said, notes)


def _problems(target: str, values: Mapping[KeyPath, Any]) -> list[str]:
    """The traits of the classes that a launch would refuse."""
    args, data_args = (
        {path[2]: value for path, value in values.items() if path[:2] == ("pipeline", key) and len(path) > 2}
        for key in ("args", "data_args")
    )
    source = Source(target, args, values.get(("pipeline", "data")), data_args)
    course = Course(_FEW_STEPS, _FEW_STEPS, values["data", "batch_size"], "constant", evaluates_in_steps=False)
    return table.problems(source, course, left_as_it_was, builds=True)


def _arguments_of(kind: type, key: KeyPath, values: dict[KeyPath, Any], said: dict[KeyPath, str]) -> None:
    """Those of its constructor, by their defaults; null and a word of it where there is none."""
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        path, default = (*key, parameter.name), parameter.default
        if default is parameter.empty:
            values[path], said[path] = None, "required"
        elif _is_plain(default):
            values[path] = list(default) if isinstance(default, tuple) else default


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _beside(kind: type, adapter: Adapter, values: dict[KeyPath, Any], said: dict[KeyPath, str], devices: int) -> None:
    """The data module in the file of a module, and its batch."""
    module = sys.modules[kind.__module__]
    own = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    modules = [each for each in own if adapter.takes_data(each)]
    if modules:  # the first one
        values["pipeline", "data"] = f"{module.__name__}:{modules[0].__name__}"
        _arguments_of(modules[0], ("pipeline", "data_args"), values, said)
        if len(modules) > 1:
            said["pipeline", "data"] = f"also there: {', '.join(each.__name__ for each in modules[1:])}"
    _batch(values, said, devices)
    values["gradient", "clip"], said["gradient", "clip"] = None, "gradient_clip_val of the Trainer"
    values["run", "precision"], said["run", "precision"] = "float32", "bfloat16 for bf16-mixed of the Trainer"


def _batch(values: dict[KeyPath, Any], said: dict[KeyPath, str], devices: int) -> None:
    """The rows of a step, by the default of an argument."""
    key = next((each for each in ("data_args", "args") if ("pipeline", each, "batch_size") in values), None)
    each = None if key is None else values["pipeline", key, "batch_size"]
    path = ("data", "batch_size")
    if isinstance(each, int):
        values[path] = each * devices
        said[path] = f"{each} rows on each of {devices} devices: here all rows of a step, times accumulate_grad_batches"
    else:
        values[path], said[path] = (
            64,
            "all rows of a step: those of the loader, times devices and accumulate_grad_batches",
        )


def _names_a_class(entry: str) -> bool:
    """Which classes are taken is for a launch to say."""
    return re.fullmatch(r"[\w.]+:\w+", entry) is not None


ORIGINS: tuple[tuple[Callable[[str], bool], Callable[[str, int], Found]], ...] = (
    (_is_arguments, _arguments),
    (_names_a_class, _class),
    (lambda entry: (Path(entry) / "config.json").is_file(), _model),
    (lambda entry: any((Path(entry) / name).is_file() for name in ("state.json", "dataset_dict.json")), _data),
)
