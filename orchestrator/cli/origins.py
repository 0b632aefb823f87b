"""The origins of `new NAME from=ORIGIN,...`: how each is recognised, and the settings that are found in it, with reasons.

An origin is one line of `ORIGINS`: how it is recognised, and the function that reads it. Several, comma-separated, are merged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.settings import training_arguments
from orchestrator.config.settings.sections import KeyPath
from orchestrator.config.settings.sources import from_name
from orchestrator.errors import ConfigurationError, UsageError

_TRAINABLE = "orchestrator.adapters.transformers:Trainable"
_MODEL, _DATA = ("pipeline", "args", "model"), ("pipeline", "args", "data")
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
        """Take the other's in, too; lists are joined."""
        for path, value in other.values.items():
            known = self.values.get(path)
            self.values[path] = [*known, *value] if isinstance(known, list) else value
        self.said |= other.said
        self.notes += other.notes


def read(entry: str, devices: int) -> Found:
    """devices: of the original. Raises UsageError for what is no origin, ConfigurationError for what does not fit."""
    for is_one, function in ORIGINS:
        if is_one(entry):
            return function(entry, devices)
    raise UsageError(
        f"new: from={entry}: it is neither a file of TrainingArguments nor a folder of a model or of a saved data set",
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


ORIGINS: tuple[tuple[Callable[[str], bool], Callable[[str, int], Found]], ...] = (
    (_is_arguments, _arguments),
    (lambda entry: (Path(entry) / "config.json").is_file(), _model),
    (lambda entry: any((Path(entry) / name).is_file() for name in ("state.json", "dataset_dict.json")), _data),
)
