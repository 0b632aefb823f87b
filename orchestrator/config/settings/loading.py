"""Sources merged left to right into settings, with every problem found at once.

Each leaf keeps the place it came from, so that each problem can name it. Mappings merge, everything else is replaced.
Interpolations, `${run.seed}` or `${oc.env:HOME}`, are OmegaConf's; they see the merged configuration with its defaults.

It does not read files (`sources.py`), and knows no key by name but the pair of rule F3.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.common.checked_values import Given, MismatchError, must, plain, read, show
from orchestrator.common.registry import is_reference
from orchestrator.config.settings import sources
from orchestrator.config.settings.rules import IDLE, RULES
from orchestrator.config.settings.rules.rule import Idle, Rule, two_lengths
from orchestrator.config.settings.schema import (
    BY_PATH,
    KEYS,
    SECTIONS,
    TABLES,
    Key,
    Settings,
    broken_rules,
    keys_of,
    locate,
    path_of,
    shorthand,
)
from orchestrator.config.settings.sections import AUTO, KeyPath
from orchestrator.config.settings.sources import Source
from orchestrator.errors import ConfigurationError, code_of, coded

Merged = dict[Key, dict[KeyPath, Given]]  # of an open key: what stands below it, by path; of others: one, at ()

LENGTHS = tuple(  # of each pair, a later source that sets one clears the other
    (BY_PATH[section, "steps"], BY_PATH[section, "epochs"]) for section in ("run", "local")
)
PINNED = (BY_PATH["begin", "name"], BY_PATH["begin", "digest"])  # a later source that sets the first clears the second
COMMON_OPTIONS = ("lr", "weight_decay", "momentum", "betas")  # of optimizers, whose options are no keys of the schema
_NUM_SUGGESTIONS = 3
_LIGHTNINGS = "files of LightningCLI have other keys; docs/coming-from.md#lightning has a table of what they are here"

Conf = str | Mapping[str, Any]


def load(
    conf: Sequence[Conf], overrides: Sequence[str], *, folder: Path = Path("conf"), used: Sequence[str] = ()
) -> Settings:
    """The settings of files, merged left to right, and of `key=value` overrides, which come last.

    A file is a name in `folder` without its ending, or a path, which has a slash or ends with .yaml or .yml. A mapping stands
    for a file with its content. used: keys that have an effect here whatever the others say.
    Raises ConfigurationError with every problem: where, which key, what is wrong, what was perhaps meant.
    """
    return from_sources(_sources(conf, overrides, folder), used=used)


def origins(conf: Sequence[Conf], overrides: Sequence[str], *, folder: Path = Path("conf")) -> dict[str, str]:
    """The source of each value of `load` with the same arguments, by dotted key; keys at their defaults are left out."""
    merged: Merged = {}
    for source in _sources(conf, overrides, folder):
        _merge(merged, source)
    return {".".join([key.name, *rest]): given.where for key, below in merged.items() for rest, given in below.items()}


def _sources(conf: Sequence[Conf], overrides: Sequence[str], folder: Path) -> list[Source]:
    files = (
        sources.from_name(entry, folder) if isinstance(entry, str) else sources.from_mapping(entry) for entry in conf
    )
    return [*files, sources.from_command_line(overrides)]


def from_yaml(text: str, name: str = "settings") -> Settings:
    """The settings that a YAML text alone describes, such as that of `to_yaml`. Raises ConfigurationError."""
    return from_sources([sources.from_text(text, name)], recorded=True)


def from_sources(given_sources: Sequence[Source], *, recorded: bool = False, used: Sequence[str] = ()) -> Settings:
    """Merged left to right. recorded: nobody describes a run here, as where a source is the file of a record; then settings
    without effect are let through. used: as in `load`. Raises ConfigurationError with every problem."""
    merged: Merged = {}
    if refused := [each for source in given_sources if source.recorded for each in sources.interpolations(source)]:
        raise ConfigurationError(refused, "ask who made the record for another one")
    recorded = recorded or any(source.recorded for source in given_sources)
    problems = [problem for source in given_sources for problem in (*source.problems, *_merge(merged, source))]
    unresolved = _interpolate(merged)
    problems += [problem for each in unresolved.values() for problem in each]
    complete = all(source.readable for source in given_sources)
    values: dict[Key, Any] = {}
    for key in KEYS:
        if key in unresolved:
            continue
        if key.is_required and key not in merged:
            problems += [_required(key)] if complete else []
            continue
        try:
            values[key] = _value(key, merged.get(key, {}))
        except MismatchError as mismatch:
            problems.append(_problem(_where(merged, key), key.name, coded("settings.value", str(mismatch))))
    problems += _read_options(merged, values)
    if complete:
        rules = [*RULES, *(() if recorded else _counting(given_sources, used))]
        problems += [_problem(_blame(merged, rule), sentence) for rule, sentence in broken_rules(values, rules)]
    if problems:
        raise ConfigurationError(problems, _LIGHTNINGS if any(map(_is_lightnings, given_sources)) else "")
    return _build(values)


def _is_lightnings(source: Source) -> bool:
    """Whether a file is of LightningCLI or for a Trainer, perhaps under the name of a command, such as `fit`."""
    return any({"trainer", "seed_everything"} & set(leaf.path[:2]) for leaf in source.leaves)


def _counting(found: Sequence[Source], used: Sequence[str]) -> list[Idle]:
    """The rules about settings without effect that hold for these sources."""
    last: dict[str, int] = {}  # the newest source that gives a key
    for number, source in enumerate(found):
        for leaf in source.leaves:
            path = shorthand(leaf.path)
            last[".".join(path)] = number
            if path in AUTO:
                last["tuning.auto"] = number

    def newest(keys: Iterable[str]) -> int:
        return max((last.get(key, -1) for key in keys), default=-1)

    rules = [rule for rule in IDLE if rule.keys[0] not in used]
    return [rule for rule in rules if newest(rule.switches) <= newest(set(rule.keys) - set(rule.switches))]


def _read_options(merged: Merged, values: dict[Key, Any]) -> list[str]:
    """Put the values of options in place of what was given. Those of the user's own variants wait until these are imported."""
    problems: list[str] = []
    for section, table in TABLES.items():
        named, key = BY_PATH[*path_of(section), "name"], BY_PATH[path_of(section)]
        if named not in values or key not in values or is_reference(values[named]):
            continue
        below = merged.get(key, {})
        given = {option: below.get((option,)) or Given(values[key][option]) for option in values[key]}
        values[key], found = table.read(values[named], given)
        for option, sentence in found:
            places = [each.where for path, each in below.items() if path[0] == option]
            problems.append(_problem(*places[-1:] or [_where(merged, named)], f"{section}.{option}", sentence))
    return problems


def _required(key: Key) -> str:
    bounds = f"; must be {must(key.kind)}" if must(key.kind) else ""
    return coded("settings.required", f"{key.name}: required{bounds}")


def _build(values: dict[Key, Any]) -> Settings:
    whole: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in values.items():
        (whole if key.holder is None else inside[key.holder])[key.attribute] = value
    for name in reversed(SECTIONS):  # those within a section before it
        above, _, last = name.rpartition(".")
        (inside[above] if above else whole)[last] = SECTIONS[name](**inside[name])
    return Settings(**whole)


def _merge(merged: Merged, source: Source) -> list[str]:
    """Put a source over what is there. Returns problems."""
    problems: list[str] = []
    changed: set[Key] = set()
    names = {section: merged.get(BY_PATH[*path_of(section), "name"]) for section in TABLES}
    for path, given in source.leaves:
        if given.value == {} and ".".join(path) in SECTIONS:
            continue
        path = path if given.value is None or given.value == {} else shorthand(path)
        located = locate(path)
        if located is None or (given.value is None and ".".join(path) in SECTIONS):
            problems.append(_problem(given.where, ".".join(path), _no_such_key(path, given)))
            continue
        key, rest = located
        if path in AUTO and _leave_to_measuring(merged, path, given):
            continue
        if not key.is_open:
            merged[key] = {(): given}
            changed.add(key)
            continue
        try:
            read(key.kind, Given(_nested({rest: given}) if rest else given.value))
        except MismatchError as mismatch:
            problems.append(_problem(given.where, key.name, coded("settings.value", str(mismatch))))
        else:
            _put(merged.setdefault(key, {}), rest, given)
    for pair in LENGTHS:
        lengths = [key for key in pair if key in changed and merged[key][()].value is not None]
        if len(lengths) > 1:
            problems.append(_problem(_where(merged, lengths[-1]), two_lengths(pair[0].holder)))
        if lengths:
            for other in set(pair) - {lengths[0]}:
                merged.pop(other, None)
    if PINNED[0] in changed and PINNED[1] not in changed:  # it was the digest of another state
        merged.pop(PINNED[1], None)
    for section, before in names.items():
        now = merged.get(BY_PATH[*path_of(section), "name"])
        if before is not None and now is not None and now[()].value != before[()].value:
            _drop_options(merged, section, now[()].value, source)
    return problems


def _leave_to_measuring(merged: Merged, path: KeyPath, given: Given) -> bool:
    """`auto` of a key puts its name into `tuning.auto`; a later source that gives it a value takes it out again."""
    name, chosen = AUTO[path], merged.setdefault(BY_PATH["tuning", "auto"], {})
    known = [each for each in (chosen[()].value if chosen else ()) if each != name]
    if given.value == "auto":
        chosen[()] = Given([*known, name], None, given.where)
        merged.pop(BY_PATH[path], None)
        if name in TABLES:
            merged.pop(BY_PATH[path_of(name)], None)
        return True
    if chosen:
        chosen[()] = Given(known, None, chosen[()].where)
    else:
        del merged[BY_PATH["tuning", "auto"]]
    return False


def _drop_options(merged: Merged, section: str, name: Any, source: Source) -> None:
    """A later source that sets another name leaves the options behind that what it names does not have."""
    table, path = TABLES[section], path_of(section)
    below = merged.get(BY_PATH[path], {})
    kept = table.options(name) if isinstance(name, str) and name in table else {}
    new = {leaf.path[len(path) :] for leaf in source.leaves if leaf.path[: len(path)] == path}
    for path in [path for path in below if path[0] not in kept and path not in new]:
        del below[path]


def _put(below: dict[KeyPath, Given], path: KeyPath, given: Given) -> None:
    """Set one leaf below an open key, in place of what contains it or lies below it; {} merges into what is there."""
    if given.value == {} and any(other[: len(path)] == path and len(other) > len(path) for other in below):
        return
    for other in list(below):
        shared = min(len(other), len(path))
        if other[:shared] == path[:shared]:
            del below[other]
    if path:
        below[path] = given


def _value(key: Key, below: dict[KeyPath, Given]) -> Any:
    """Raises MismatchError."""
    if key.is_open:
        return read(key.kind, Given(_nested(below)))
    return read(key.kind, below[()]) if below else key.default


def _nested(below: dict[KeyPath, Given]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, given in below.items():
        _set(nested, path, plain(given.value))
    return nested


def _set(tree: dict[str, Any], path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _interpolate(merged: Merged) -> dict[Key, list[str]]:
    """Replace each interpolation by what it stands for. Returns the problems of those that stand for nothing."""
    pending = {
        (key, rest): given
        for key, below in merged.items()
        for rest, given in below.items()
        if _has_interpolation(given.value)
    }
    if not pending:
        return {}
    from omegaconf import OmegaConf  # see `sources`
    from omegaconf.errors import OmegaConfBaseException

    problems: dict[Key, list[str]] = {}
    tree: dict[str, Any] = {}
    for key in KEYS:
        if key not in merged and not key.is_required and not key.is_open:
            _set(tree, key.path, plain(key.default))
        for rest, given in merged.get(key, {}).items():
            value = _interpolable(key, given)
            try:
                OmegaConf.create([value])
            except (OmegaConfBaseException, ValueError) as error:  # bad syntax, or a type that will be refused anyway
                if pending.pop((key, rest), None):
                    problems.setdefault(key, []).append(_unresolved(key, rest, given, error))
            else:
                _set(tree, (*key.path, *rest), value)
    config = OmegaConf.create(tree)
    for (key, rest), given in pending.items():
        try:
            merged[key][rest] = Given(_resolved(config, (*key.path, *rest)), None, given.where)
        except OmegaConfBaseException as error:
            problems.setdefault(key, []).append(_unresolved(key, rest, given, error))
    return problems


def _has_interpolation(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_interpolation, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "${" in value


def _interpolable(key: Key, given: Given) -> Any:
    """The result of an interpolation of this key: its value if it has one already, else what was given."""
    if key.is_open:
        return given.value
    if _has_interpolation(given.value):
        return given.text if isinstance(given.text, list) else given.value
    try:
        return plain(read(key.kind, given))
    except MismatchError:
        return given.value


def _resolved(config: Any, path: KeyPath) -> Any:
    for part in path:
        config = config[part]
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config


def _unresolved(key: Key, rest: KeyPath, given: Given, error: Exception) -> str:
    reason = re.sub(r"^\w+ raised while resolving interpolation: ", "", str(error).splitlines()[0])
    problem = coded("settings.unresolved", f"cannot resolve {show(given.value)}: {reason}")
    return _problem(given.where, ".".join((*key.path, *rest)), problem)


def _no_such_key(path: KeyPath, given: Given) -> str:
    section = next((".".join(path[:n]) for n in range(len(path), 0, -1) if ".".join(path[:n]) in SECTIONS), path[0])
    inside = keys_of(section)
    if inside and ".".join(path) == section:
        if given.value is None:
            return coded(
                "settings.section-without-value", f"has no value; give it keys ({', '.join(inside)}) or leave it out"
            )
        return coded("settings.section-with-value", f"expected keys ({', '.join(inside)}), got {show(given.value)}")
    if found := _suggestions(path):
        return coded("settings.no-such-key", f"no such key; did you mean {' or '.join(found)}?")
    if inside:
        return coded("settings.no-such-key-in-section", f"no such key; {section} has {', '.join(inside)}")
    return coded(
        "settings.no-such-section", f"no such key; there are {', '.join(dict.fromkeys(key.path[0] for key in KEYS))}"
    )


def _suggestions(path: KeyPath) -> list[str]:
    """Keys that were perhaps meant, the likeliest first: on any level, of the same name, or of a similar one, which another
    section has only where this one has none."""
    leaf = path[-1]
    tops = list(dict.fromkeys(key.path[0] for key in KEYS))
    options = [f"{section}.{option}" for section, table in TABLES.items() for option in table.known_options()]
    names = list(dict.fromkeys([*(key.name for key in KEYS), *options, *SECTIONS]))
    for top in difflib.get_close_matches(path[0], tops, n=1):
        if top != path[0] and len(path) > 1 and locate((top, *path[1:])):
            return [".".join((top, *path[1:]))]
    found = [f"optimizer.{leaf}"] if leaf in COMMON_OPTIONS else []
    found += [name for name in names if name.rpartition(".")[2] == leaf]
    if found:
        return list(dict.fromkeys(found))[:_NUM_SUGGESTIONS]
    found += difflib.get_close_matches(".".join(path), names, n=_NUM_SUGGESTIONS, cutoff=0.8)
    found += [name for name in names if difflib.get_close_matches(leaf, [name.rpartition(".")[2]], n=1, cutoff=0.75)]
    found = [name for name in found if len(path) > 1 and name.partition(".")[0] == path[0]] or found
    return list(dict.fromkeys(found))[:_NUM_SUGGESTIONS]


def _where(merged: Merged, key: Key) -> str:
    return next((given.where for given in reversed(merged.get(key, {}).values())), "")


def _blame(merged: Merged, rule: Rule) -> str:
    located = [found for name in rule.keys if (found := locate(tuple(name.split("."))))]
    places = [merged.get(key, {}).get(rest) for key, rest in located]
    return next((given.where for given in places if given), "")


def _problem(*parts: str) -> str:
    """With the code of the last part."""
    return coded(code_of(parts[-1]), ": ".join(part for part in parts if part))
