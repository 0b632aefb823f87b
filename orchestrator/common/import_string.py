"""Code of the user's project, named as `package.module:name`: where a setting names a pipeline, or a variant of its own.

Modules are looked up from the working directory, which every process of a run has on `sys.path`: that of the project, and in a
rerun that of the recorded checkout.

It does not judge what it finds.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from orchestrator.common.frames import is_users
from orchestrator.errors import ConfigurationError


def find(key: str, reference: str, what: str, is_one: Callable[[Any], bool] = inspect.isclass) -> Any:
    """The object that the reference in the setting `key` names. what: "class", in sentences; is_one: which names of the
    module are near.

    Raises ConfigurationError: no such module or name, or its import fails.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            [f"{key}: {reference!r} does not have the form 'package.module:{what.capitalize()}'"], code="import.form"
        )
    module = _import(key, module_name)
    found = getattr(module, name, None)
    if found is None:
        names = [other for other, value in vars(module).items() if is_one(value)]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigurationError([f"{key}: {module_name} has no {what} {name!r}{hint}"], code="import.no-attribute")
    return found


def raised(error: BaseException) -> str:
    """The message of an exception of the user's code, with its kind and the last line that is the user's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    last = ([*filter(is_users, frames)] or frames)[-1:]
    where = "" if isinstance(error, SyntaxError) or not last else f" ({last[0].filename}:{last[0].lineno})"
    return f"raised {type(error).__name__}: {error}{where}"


def _import(key: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            missing = error.name or str(error)
            raise ConfigurationError(
                [f"{key}: importing {name} failed: no module named {missing!r}"],
                f"install {missing}, or mend the import",
                code="import.lacks-package",
            ) from error
        raise ConfigurationError(
            [f"{key}: there is no module {name!r}"],
            "modules are looked up from the working directory: run from the folder that holds the package",
            code="import.no-module",
        ) from None
    except SystemExit as error:
        raise ConfigurationError(
            [f"{key}: importing {name} {raised(error)}"],
            'it is imported, and its arguments come by pipeline.args: leave what a script does to if __name__ == "__main__"',
            code="import.exits",
        ) from error
    except Exception as error:
        raise ConfigurationError([f"{key}: importing {name} {raised(error)}"], code="import.raised") from error
