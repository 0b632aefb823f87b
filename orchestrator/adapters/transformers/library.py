"""The packages of Hugging Face, imported once they are needed, and kept from asking a hub."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from orchestrator.common import import_string
from orchestrator.errors import ConfigurationError

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


@functools.cache
def package(name: str) -> Any:
    """transformers, datasets or peft. Raises ConfigurationError where it is not installed."""
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))  # read once, by the first import
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not live through a fork
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            [f"pipeline.target: importing {name} failed: no module named {error.name!r}"],
            "python -m pip install 'orchestrator[transformers]' brings transformers, datasets and peft",
            code="transformers.not-installed",
        ) from error
    for each in ("transformers", "datasets"):
        if each == name:
            (found.utils.logging if each == "transformers" else found).disable_progress_bar()
    return found


def folder(key: str, given: Any) -> Path:
    """The folder of a model that an argument of the pipeline names. Raises ConfigurationError for anything else, such as the
    name of a repository of a hub."""
    if isinstance(given, str) and Path(given).is_dir():
        return Path(given)
    raise ConfigurationError(
        [f"pipeline.args.{key}: {given!r} is no folder, and nothing is fetched from a hub while a run starts"],
        f"fetch it once, and name the folder: hf download {_name(given)} --local-dir models/{_name(given).split('/')[-1]}",
        code="transformers.not-a-folder",
    )


def _name(given: Any) -> str:
    return given if isinstance(given, str) and not given.startswith((".", "/")) else "OWNER/NAME"


def own(key: str, reference: str) -> Any:
    """A function or class of the user's, by "module:name". Raises ConfigurationError."""
    return import_string.find(f"pipeline.args.{key}", reference, "function", callable)
