"""Settings as others need them: YAML, flat keys for trackers, what determines the result, a page of documentation.

What it does not do: read any of these back (`loading.py`).
"""

from __future__ import annotations

import math
import re
import typing
from typing import Any

import yaml

from orchestrator.settings.schema import KEYS, Key, Settings
from orchestrator.settings.sources import Loader
from orchestrator.settings.values import Every, Span, Workers, plain, show, without_none

_INTRODUCTION = """\
# Settings

Every key of the configuration. This page is written by `orchestrator.settings.document()`.

A run is described by files and by the command line: `python -m orchestrator conf=digits cluster.workers=2`.
Files are YAML. `conf=NAME` is `conf/NAME.yaml`; several, separated by commas, merge left to right: mappings merge,
everything else is replaced, and what the command line gives comes last. A scalar given to a section that has a `name`
or a `mode` sets that: `topology: ring`, `sync=bsp`, `optimizer=sgd`. `${run.seed}` stands for the value of another key,
`${oc.env:HOME}` for a variable of the environment.

A key that determines the result is part of a run's identity: another value may give other bits. What determines only
the execution may differ between a run and its rerun.
"""
_TYPES = {
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    str: "text",
    tuple: "list of texts",
    dict: "mapping",
    Every: "steps (`20`) or seconds (`30s`)",
    Span: "steps (`20`) or epochs (`5epochs`)",
    Workers: "`4`, or a range `{min: 2, max: 4}`",
}


def to_dict(settings: Settings) -> dict[str, Any]:
    """The settings as plain data of the shape of a file; complete, a copy."""
    nested: dict[str, Any] = {}
    for key in KEYS:
        value = plain(key.value(settings))
        place = nested
        for part in key.path if key.is_open else key.path[:-1]:
            place = place.setdefault(part, {})
        place.update(value if key.is_open else {key.path[-1]: value})
    return nested


def to_yaml(settings: Settings) -> str:
    """The settings as a file that `load` and `from_yaml` read as equal settings."""
    return yaml.dump(
        _escaped(to_dict(settings)),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=math.inf,
    )


def flat(settings: Settings) -> dict[str, Any]:
    """Dotted key to plain value, for trackers and comparison: `pipeline.args.hidden`, `optimizer.lr`."""
    return {name: value for key in KEYS for name, value in _leaves(key, settings)}


def determining(settings: Settings) -> dict[str, Any]:
    """Those of `flat` that determine the result (rule F2); under `reduction: fast` the layout is among them, and where a metric
    is watched, the steps at which it is taken."""
    layout, watched = settings.reduction == "fast", settings.watches_a_metric
    chosen = [
        key
        for key in KEYS
        if key.about.determines == "result" or (layout and key.about.layout) or (watched and key.about.watched)
    ]
    return {name: value for key in chosen for name, value in _leaves(key, settings)}


def document() -> str:
    """The page of documentation, `docs/settings.md`."""
    rows = [
        ("Key", "Value", "Default", "What it is", "Determines"),
        ("---",) * 5,
        *((f"`{_name(key)}`", _type(key), _default(key), key.about.doc, _determines(key)) for key in KEYS),
    ]
    return _INTRODUCTION + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the texts that the loader would not read as text. Raises for anything that is not plain data."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def text(self, text: str) -> yaml.ScalarNode:
        """In double quotes, with escapes, when there is a line break in it: other styles lose U+0085."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.text)


def _escaped(value: Any) -> Any:
    """Text with `${` made to stay text: one backslash before it, and those that stand there already doubled."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _leaves(key: Key, settings: Settings) -> list[tuple[str, Any]]:
    value = plain(key.value(settings))
    return _below(key.name, value) if key.is_open else [(key.name, value)]


def _below(name: str, mapping: dict[str, Any]) -> list[tuple[str, Any]]:
    """A dot in a key is escaped, so that different settings never have the same flat keys."""
    found: list[tuple[str, Any]] = []
    for part, value in mapping.items():
        below = f"{name}." + re.sub(r"([\\.])", r"\\\1", part)
        found += _below(below, value) if isinstance(value, dict) and value else [(below, value)]
    return found


def _name(key: Key) -> str:
    return f"{key.name}.*" if key.is_open else key.name


def _type(key: Key) -> str:
    kind = without_none(key.kind)
    if typing.get_origin(kind) is typing.Literal:
        text = ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    else:
        text = _TYPES[typing.get_origin(kind) or kind]
    text = f"{text}, {key.about.must.text}" if key.about.must and not key.is_open else text
    return text if kind is key.kind else f"{text}; or null"


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    value = plain(key.default)
    return f"`{value if isinstance(value, str) else show(value)}`"


def _determines(key: Key) -> str:
    if key.about.watched:
        return "execution; result if early stopping or `schedule: plateau` watch a metric"
    return "execution; result if `reduction` is `fast`" if key.about.layout else key.about.determines
