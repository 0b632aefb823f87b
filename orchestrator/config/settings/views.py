"""Settings as others need them: YAML, flat keys for trackers, what determines the result, a page of documentation.

It reads none of these back (`loading.py`).
"""

from __future__ import annotations

import difflib
import math
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from orchestrator.common.checked_values import must, plain, show, unwrap, without_none
from orchestrator.common.registry import Option
from orchestrator.common.values import Every, Sites, Span, Steps, Workers
from orchestrator.config.settings.schema import KEYS, TABLES, Key, Settings
from orchestrator.config.settings.sources import Loader
from orchestrator.errors import UsageError
from orchestrator.optim.optimizer_names import OPTIMIZER_NAMES
from orchestrator.records.redaction import Redactor

_INTRODUCTION = """\
# Settings

Every key of the configuration. This page is written by `orchestrator.config.settings.document()`.

A run is described by files and by the command line: `python -m orchestrator conf=digits cluster.workers=2`.
Files are YAML. `conf=NAME` is `conf/NAME.yaml`; several, separated by commas, merge left to right: mappings merge,
everything else is replaced, and what the command line gives comes last. A scalar given to a section that has a `name`
or a `mode` sets that: `topology: ring`, `sync=bsp`, `optimizer=sgd`. `${run.seed}` stands for the value of another key,
`${oc.env:HOME}` for a variable of the environment.

A setting that the others leave without effect is refused where a run is described, with what to do about it (a warm-up longer
than the run, `early_stopping.mode` without a patience). It may stay where a later source switches off what it belongs to, such
as a file's `tuning.seconds` beside `topology=tree` on the command line; and a record is repeated as it is.

A key that determines the result is part of a run's identity: another value may give other bits. What determines only
the execution may differ between a run and its rerun.
"""
_FIRST = (
    "pipeline.target",
    "pipeline.args.*",
    "data.inputs",
    "data.batch_size",
    "data.shards",
    "run.epochs",
    "run.seed",
    "optimizer.name",
    "evaluation.every",
    "cluster.workers",
)
_EXAMPLE = """\
Ten keys make a run; everything else has a default that does for a first one.

```yaml
pipeline: {target: "pipeline:Mine", args: {width: 32}}
data: {inputs: [data/train.csv], batch_size: 64, shards: 4}
run: {epochs: 20, seed: 1}
optimizer: {name: adamw, lr: 0.001}
evaluation: {every: 100}
cluster: {workers: 4}
```
"""
_OTHER_NAMES = {"optimizer.name": OPTIMIZER_NAMES, "local.optimizer.name": OPTIMIZER_NAMES}  # their table needs torch
_HEADER = ("Key", "Value", "Default", "What it is", "Determines")
_TYPES = {
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    str: "text",
    tuple: "list of texts",
    dict: "mapping",
    Every: "steps (`20`), epochs (`1epoch`) or seconds (`30s`)",
    Span: "steps (`20`) or epochs (`5epochs`)",
    Steps: "`64`, or by step `{0: 64, 400: 256}`",
    Sites: "`{hospital_a: [0, 1], hospital_b: [2]}`",
    Workers: "`4`, or a range `{min: 2, max: 4}`",
}


def to_dict(settings: Settings) -> dict[str, Any]:
    """The settings as plain data of the shape of a file; complete, a copy."""
    nested: dict[str, Any] = {}
    for key in KEYS:
        value = key.plain(settings)
        place = nested
        for part in key.path if key.is_open else key.path[:-1]:
            place = place.setdefault(part, {})
        place.update(value if key.is_open else {key.path[-1]: value})
    return nested


def to_yaml(settings: Settings, *, public: bool = False) -> str:
    """The settings as a file that `load` and `from_yaml` read as equal settings. public: as a record holds them, without
    credentials."""
    nested = to_dict(settings)
    if public:
        known = redactor(settings)
        nested = {key: known.setting(key, value) for key, value in nested.items()}
    return as_yaml(nested)


def redactor(settings: Settings) -> Redactor:
    """The redactor of all that is known to be a credential in a process that has these settings."""
    return Redactor(flat(settings), os.environ)


def shown(settings: Settings) -> dict[str, Any]:
    """Those of `flat`, as a record holds them."""
    known = redactor(settings)
    return {key: known.setting(key, value) for key, value in flat(settings).items()}


def identifying(settings: Settings) -> dict[str, Any]:
    """Those of `determining`, as an identity holds them."""
    known = redactor(settings)
    return {key: known.identifying(key, value) for key, value in determining(settings).items()}


def as_yaml(content: Mapping[str, Any]) -> str:
    """Plain data as a file in the dialect of settings."""
    return yaml.dump(
        escaped(dict(content)),
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
    layout, monitored = settings.reduction == "fast", settings.monitors_a_metric
    chosen = [
        key
        for key in KEYS
        if key.about.determines == "result" or (layout and key.about.layout) or (monitored and key.about.monitored)
    ]
    return {name: value for key in chosen for name, value in _leaves(key, settings)}


def document() -> str:
    """The page of documentation, `docs/settings.md`.

    It begins with the keys that everybody needs. Each section has a heading, a table of its keys, to which `#data.shards`
    leads, and for each key of names a table of what these do.
    """
    by_section: dict[str, list[Key]] = {}
    for key in KEYS:
        by_section.setdefault(key.path[0], []).append(key)
    sections = (f"\n## {name}\n\n{_section(keys)}" for name, keys in by_section.items())
    return "".join([_INTRODUCTION, "\n## The first ten\n\n", _EXAMPLE, "\n", _first_ten(), *sections])


def _section(keys: Sequence[Key]) -> str:
    rows = [_linked_to(row) for key in keys for row in _rows(key)]
    return "\n".join([_table(_HEADER, rows), *(_table_of_names(key) for key in keys if _named(key))])


def _table_of_names(key: Key) -> str:
    if key.name == "local.optimizer.name":
        return "The names of `local.optimizer.name` are those of `optimizer.name`.\n"
    return _table((f"`{key.name}`", "What it does"), ((f"`{name}`", does) for name, does in _named(key).items()))


def _first_ten() -> str:
    """With links to where the page has all of them."""
    rows = {row[0]: row for key in KEYS for row in _rows(key)}
    return _table(("Key", "What it is"), ((f"[`{name}`](#{_anchor(name)})", rows[name][3]) for name in _FIRST))


def _linked_to(row: tuple[str, ...]) -> tuple[str, ...]:
    """With an anchor; a section's heading is one already."""
    name, anchor = f"`{row[0]}`", _anchor(row[0])
    return (f'<a id="{anchor}"></a>{name}' if "." in anchor else name, *row[1:])


def _anchor(name: str) -> str:
    return name.removesuffix(".*")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ("---",) * len(header), *rows))


def names() -> list[str]:
    """Every key, also those of the options of variants."""
    return [_anchor(row[0]) for key in KEYS for row in _rows(key)]


def choices(name: str) -> list[str]:
    """The words that a key, or a section with a name, can be set to; none if it takes other values."""
    section = next((key for key in KEYS if key.name == f"{name}.name" and _named(key)), None)
    key = section or next((key for key in KEYS if key.name == name), None)
    if key is None:
        return []
    if named := _named(key):
        return list(named)
    bare = without_none(unwrap(key.kind)[0])
    if bare is bool:
        return ["true", "false"]
    return [str(choice) for choice in typing.get_args(bare)] if typing.get_origin(bare) is typing.Literal else []


def described(name: str) -> str:
    """The description of a key, or of all keys of a section; without a name, of the sections. Raises UsageError."""
    rows = [row for key in KEYS for row in _rows(key)]
    found = [row for row in rows if row[0] == name or row[0].startswith(f"{name}." if name else "")]
    if not found:
        known = [*dict.fromkeys(row[0].partition(".")[0] for row in rows), *(row[0] for row in rows)]
        near = difflib.get_close_matches(name, known, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "help=settings lists all"
        raise UsageError(f"help={name}: no such key", hint, code="settings.no-such-key-shown")
    named = {key.name: _named(key) for key in KEYS}
    return "\n\n".join("\n".join([_row_as_text(*row), *_names_as_text(named.get(row[0], {}))]) for row in found)


def _names_as_text(named: Mapping[str, str]) -> list[str]:
    return [f"    {name}: {does.replace('`', '')}" for name, does in named.items()]


def _row_as_text(name: str, value: str, default: str, sentence: str, determines: str) -> str:
    """One row of the page as text."""
    takes = f"{value}; {'required' if default == 'required' else f'default {default}'}".replace("`", "")
    meaning = "part of what determines the result" if determines == "result" else determines.replace("`", "")
    return f"{name}\n  {sentence.replace('`', '')}\n  {takes}\n  {meaning}"


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the texts that the loader would not read as text. Raises for anything that is not plain data."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def text(self, text: str) -> yaml.ScalarNode:
        """In double quotes, with escapes, when there is a line break in it: other styles lose U+0085."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.text)


def escaped(value: Any) -> Any:
    """Text with `${` made to stay text: one backslash before it, and those that stand there already doubled."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _leaves(key: Key, settings: Settings) -> list[tuple[str, Any]]:
    value = key.plain(settings)
    return _below(key.name, value) if key.is_open else [(key.name, value)]


def _below(name: str, mapping: dict[str, Any]) -> list[tuple[str, Any]]:
    """A dot in a key is escaped, so that different settings never have the same flat keys."""
    found: list[tuple[str, Any]] = []
    for part, value in mapping.items():
        below = f"{name}." + re.sub(r"([\\.])", r"\\\1", part)
        found += _below(below, value) if isinstance(value, dict) and value else [(below, value)]
    return found


def _rows(key: Key) -> Iterator[tuple[str, ...]]:
    """Rows of the page: name, value, default, what it is, what it determines. All but the name are Markdown."""
    determines = _determines(key)
    known = key.table.known_options() if key.table else {}
    for option, entries in known.items():
        kind = next(iter(entries.values())).kind
        yield (
            f"{key.name}.{option}",
            f"{_type(kind).removesuffix('; or null')}; or null",
            "`null`",
            _sentences(entries),
            determines,
        )
    if key.is_open:
        yield f"{key.name}.*", "mapping", _default(key), key.about.doc, determines
    else:
        yield key.name, _type_of_names(key) or _type(key.kind), _default(key), key.about.doc, determines


def _type_of_names(key: Key) -> str:
    listed = ", ".join(f"`{name}`" for name in _named(key))
    bare = unwrap(key.kind)[0]
    return listed and f"{listed}, or `package.module:name`{'' if without_none(bare) is bare else '; or null'}"


def _named(key: Key) -> Mapping[str, str]:
    """The names that a key can be set to, each with what it does; none if it is no key of names."""
    if key.attribute != "name":
        return {}
    return TABLES[key.holder].sentences() if key.holder in TABLES else _OTHER_NAMES.get(key.name, {})


def _sentences(entries: Mapping[str, Option]) -> str:
    """The sentence of an option, with the entries that have it: "linear, cosine: the factor at the last step; 0.0 if not
    given."."""
    found: dict[str, list[str]] = {}
    for name, option in entries.items():
        value = plain(option.default)
        shown = f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else show(value)
        default = "" if option.is_required or value is None else f"; {shown} if not given"
        found.setdefault(f"{option.doc[:1].lower()}{option.doc[1:].rstrip('.')}{default}.", []).append(name)
    return " ".join(f"{', '.join(names)}: {sentence}" for sentence, names in found.items())


def _type(kind: Any) -> str:
    bare = unwrap(kind)[0]
    required = without_none(bare)
    if typing.get_origin(required) is typing.Literal:
        text = ", ".join(f"`{choice}`" for choice in typing.get_args(required))
    else:
        text = _TYPES[typing.get_origin(required) or required]
    text = f"{text}, {must(kind)}" if must(kind) else text
    return text if required is bare else f"{text}; or null"


def _default(key: Key) -> str:
    if key.is_required:
        return "required"
    value = plain(key.default)
    return f"`{value if isinstance(value, str) else show(value)}`"


def _determines(key: Key) -> str:
    if key.about.monitored:
        return "execution; result if early stopping, `schedule: plateau` or `checkpoint.model: best` watch a metric"
    return "execution; result if `reduction` is `fast`" if key.about.layout else key.about.determines
