"""Classes and functions in a configuration that is a mapping: each by its name, which workers and reruns import.

Those of a notebook's cells, or of the script that runs, are written to a module of the project first.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

_MAIN = "__main__"
_SCALARS = (bool, int, float, str, bytes, date, datetime)  # a file can say them


@contextmanager
def named(conf: str | Path | Mapping[str, Any]) -> Iterator[str | dict[str, Any]]:
    """The configuration as files have it, for as long as the module of its definitions has to stay. Raises ConfigurationError
    for a definition that has no source, UsageError where the module must not be written."""
    if not isinstance(conf, Mapping):
        yield str(conf)
        return
    from orchestrator.errors import ConfigurationError

    own: dict[str, Any] = {}
    try:
        plain = {str(key): _plain(str(key), value, own) for key, value in conf.items()}
    except RecursionError as error:
        raise ConfigurationError(
            ["the mapping: a list or a mapping in it holds itself"], code="settings.holds-itself"
        ) from error
    if not own:
        yield plain
        return
    from orchestrator.driver.preflight import cells as writing
    from orchestrator.provenance.code import cells

    main = sys.modules[_MAIN]
    source, sources = _sources(main, next(iter(own)))
    name = writing.module_name(source)
    text = cells.module_of(sorted(own), sources, vars(main), writing.title(Path(source).name))
    with writing.recorded(Path.cwd(), name, text):
        yield {key: _renamed(value, name) for key, value in plain.items()}


def _plain(key: str, value: Any, own: dict[str, Any]) -> Any:
    """The value with its classes and functions as `module:name`. own: gets those of `__main__`. Raises ConfigurationError."""
    if isinstance(value, Mapping):
        return {each: _plain(f"{key}.{each}", below, own) for each, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, each, own) for each in value]
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return _scalar(key, value)
    if value.__module__ == _MAIN:
        _require_named(key, value)
        own[value.__qualname__] = value
    return f"{value.__module__}:{value.__qualname__}"


def _scalar(key: str, value: Any) -> Any:
    """A number of numpy as one of Python, a path as text. Raises ConfigurationError for what no file could say."""
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, PurePath):
        return str(value)
    from numpy import generic

    from orchestrator.common.checked_values import show
    from orchestrator.errors import ConfigurationError

    if isinstance(value, generic) and type(value.item()) in _SCALARS:
        return value.item()
    raise ConfigurationError(
        [f"{key}: only text, numbers, lists and mappings can be settings, not {show(value)}"], code="settings.not-plain"
    )


def _require_named(key: str, value: Any) -> None:
    """Raises ConfigurationError where the name of a definition does not lead to it."""
    from orchestrator.errors import ConfigurationError

    name = value.__qualname__
    if not name.isidentifier():
        raise ConfigurationError(
            [f"{key}: {name} is defined inside of another definition, from where it cannot be imported"],
            "define it at the top of a cell or module",
            code="cells.nested",
        )
    if getattr(sys.modules[_MAIN], name, None) is not value:
        raise ConfigurationError(
            [f"{key}: {name} is an older definition than the one that has this name now"],
            "execute the cell of the configuration again",
            code="cells.older",
        )


def _renamed(value: Any, module: str) -> Any:
    """With the module in place of `__main__`."""
    if isinstance(value, dict):
        return {key: _renamed(each, module) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, module) for each in value]
    prefix = f"{_MAIN}:"
    return f"{module}:{value.removeprefix(prefix)}" if isinstance(value, str) and value.startswith(prefix) else value


def _sources(main: ModuleType, wanted: str) -> tuple[str, list[str]]:
    """The name of the notebook or script, and the sources of its cells in the order of their execution. Raises
    ConfigurationError."""
    from orchestrator.driver.terminal import notebook
    from orchestrator.errors import ConfigurationError

    shell, file = notebook.shell(), getattr(main, "__file__", None)
    if shell is not None:
        name = os.environ.get("JPY_SESSION_NAME") or getattr(main, "__vsc_ipynb_file__", None) or "notebook"
        return str(name), list(shell.history_manager.input_hist_parsed)
    if isinstance(file, str) and Path(file).is_file():
        return file, [Path(file).read_text(encoding="utf-8")]
    raise ConfigurationError(
        [f"{wanted} is defined in an interactive Python that keeps no source, so workers cannot import it"],
        "move it into a module of its own, or use IPython or a notebook",
        code="pipeline.in-script",
    )
