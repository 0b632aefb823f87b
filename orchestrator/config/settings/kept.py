"""Settings that a record gives back, without the credentials that no record holds (`records.redaction`).

A value that came from a telling variable is read from there again. Any other value that was left out is asked for by its key,
and a value that is given again takes its place before it is read. Nothing reads a variable before it is known that the record
is trusted, but for `from_variables`, whose overrides only name it. Records of earlier versions hold no path of a secret
either (`privacy.secret: '***'`), which so is asked for like a credential.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.common.checked_values import MismatchError, is_text, read
from orchestrator.config.settings import sources
from orchestrator.config.settings.loading import from_sources
from orchestrator.config.settings.schema import BY_PATH, Settings, kind_at, locate
from orchestrator.config.settings.sections import KeyPath
from orchestrator.config.settings.sources import Leaf, Source
from orchestrator.config.settings.views import escaped, to_dict
from orchestrator.errors import ConfigurationError
from orchestrator.records.redaction import REDACTED, is_redacted, setting, variables_of, with_variables

_PATH: KeyPath = ("privacy", "secret")


def given_again(file: Path, overrides: Sequence[str]) -> list[str]:
    """The overrides that give what the recorded file was left without, each setting by itself. An address with its password
    counts, too, if the record has it without. Raises ConfigurationError where something is not given."""
    left, wanted = {leaf.path: leaf.given.value for leaf in _source(file).leaves}, left_out(file)
    typed = sources.from_command_line(overrides).leaves
    wanting = [path for path in wanted if not any(_meet(path, leaf.path) for leaf in typed)]
    if wanting:
        raise _asking({path: variables_of(left[path]) for path in wanting})
    paths = [path for path, given in typed if path in left and _would_be_told(path, given.value, left[path])]
    if paths:
        raise _telling({path: variables_of(left[path]) for path in paths})
    return [
        _typed(path, given.value)
        for path, given in typed
        if any(_meet(path, other) for other in wanted)
        or left.get(path) == setting(".".join(path), given.value) != given.value
    ]


def from_variables(file: Path, overrides: Sequence[str]) -> list[str]:
    """The values of the recorded file that came from variables that are set here, as overrides that name these
    (`${oc.env:NAME}`); without those that the given overrides replace."""
    typed = [leaf.path for leaf in sources.from_command_line(overrides).leaves]
    return [
        _typed(leaf.path, with_variables(leaf.given.value, "${{oc.env:{}}}".format))
        for leaf in _source(file).leaves
        if _is_readable(leaf.given.value) and not any(_meet(leaf.path, path) for path in typed)
    ]


def restored(file: Path, settings: Settings) -> list[str]:
    """The values that the recorded file was left without, as overrides from these settings."""
    whole, read_again = to_dict(settings), from_variables(file, [])
    found = {leaf.path for leaf in sources.from_command_line(read_again).leaves}
    return [*read_again, *(_typed(path, escaped(_at(whole, path))) for path in left_out(file) if path not in found)]


def as_recorded(file: Path, overrides: Sequence[str]) -> Settings:
    """The settings of a recorded file, and of overrides, which come last. Raises ConfigurationError."""
    return from_sources([_source(file), sources.from_command_line(overrides)], recorded=True)


def as_held(file: Path, overrides: Sequence[str] = ()) -> Settings:
    """The settings as far as the record holds them, and overrides, to look at and not to run: what stands in the place of a
    credential stays where the key can take it, and is left out elsewhere. Raises ConfigurationError."""
    source = _source(file)
    source.leaves = [leaf for leaf in source.leaves if not is_redacted(leaf.given.value) or _fits(leaf)]
    return from_sources([source, sources.from_command_line(overrides)], recorded=True)


def _typed(path: KeyPath, value: Any) -> str:
    """As an override. Below an open key in braces, where a key may hold a dot."""
    above = next((path[:depth] for depth in range(len(path), 0, -1) if path[:depth] in BY_PATH), path)
    for part in reversed(path[len(above) :]):
        value = {part: value}
    return f"{'.'.join(above)}={value if isinstance(value, str) and is_text(kind_at(path)) else json.dumps(value)}"


def _at(place: Any, path: KeyPath) -> Any:
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    return place


def left_out(file: Path) -> list[KeyPath]:
    """The keys at which the recorded file holds something else than the run had, or not the whole of it."""
    return [leaf.path for leaf in _source(file).leaves if is_redacted(leaf.given.value)]


def _source(file: Path) -> Source:
    return sources.from_name(str(file), Path(), recorded=True)


def _is_readable(recorded: Any) -> bool:
    """Whether variables that are set here make it whole."""
    names = variables_of(recorded)
    return (
        bool(names) and all(map(os.environ.get, names)) and REDACTED not in str(with_variables(recorded, lambda _: ""))
    )


def _fits(leaf: Leaf) -> bool:
    located = locate(leaf.path)
    if located is None or located[0].is_open:
        return True
    try:
        read(located[0].kind, leaf.given)
    except MismatchError:
        return False
    return True


def _meet(path: KeyPath, other: KeyPath) -> bool:
    """Whether one is the other, or lies above it."""
    shared = min(len(path), len(other))
    return path[:shared] == other[:shared]


def _asking(wanted: Mapping[KeyPath, list[str]]) -> ConfigurationError:
    """wanted: what is not given, with the variables that it came from."""
    again = [path for path, names in wanted.items() if not names]
    unset = dict.fromkeys(name for names in wanted.values() for name in names)
    remedies = [f"set {', '.join(unset)}"] * bool(unset)
    if again:
        remedies.append(f"give {'it' if len(again) == 1 else 'them'} again: {' '.join(map(_asked, again))}")
    return ConfigurationError(
        [f"{'.'.join(path)}: {_why(path, names)}" for path, names in wanted.items()],
        "; ".join(remedies),
        code="settings.masked-needed",
    )


def _telling(told: Mapping[KeyPath, list[str]]) -> ConfigurationError:
    return ConfigurationError(
        [
            f"{'.'.join(path)}: it came from {_variables(names)}, and the record would hold what is typed"
            for path, names in told.items()
        ],
        f"leave it out, and set {', '.join(dict.fromkeys(name for names in told.values() for name in names))}",
        code="settings.masked-typed",
    )


def _would_be_told(path: KeyPath, given: Any, recorded: Any) -> bool:
    """Whether nobody could tell that this, typed in the place of what came from a variable, is a credential. If the result
    does not depend on it, another value may be meant."""
    located = locate(path)
    determines = located is not None and located[0].about.determines == "result"
    is_plain = setting(".".join(path), given) == given and "${" not in str(given)
    return determines and is_plain and bool(variables_of(recorded)) and not _is_readable(recorded)


def _variables(names: Sequence[str]) -> str:
    return f"the variable{'s' * (len(names) > 1)} {', '.join(names)}"


def _why(path: KeyPath, names: Sequence[str]) -> str:
    if names:
        return f"it came from {_variables(names)}, which {'is' if len(names) == 1 else 'are'} not set"
    return "this record lacks the path" if path == _PATH else "it was a credential, which no record holds"


def _asked(path: KeyPath) -> str:
    """As it is typed; a key with a dot in it cannot stand on the left of an equals sign."""
    if path == _PATH:
        return f"{'.'.join(path)}=PATH"
    plain = next((index for index, part in enumerate(path) if "." in part), len(path))
    value = "VALUE"
    for part in reversed(path[plain:]):
        value = f"{{{part}: {value}}}"
    return shlex.join([f"{'.'.join(path[:plain])}={value}"])
