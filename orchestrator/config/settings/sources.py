"""A source of settings, a YAML file or the command line, as a list of paths and values, and what is wrong with it.

YAML is OmegaConf's dialect (`1e-3` is a number, dates are text, a duplicate key is an error), read node by node, because a
node still knows how its value was typed and in which line. Its loader is made here: to import OmegaConf takes longer than all
the rest, and most settings have no interpolation.

It decides neither which keys exist nor that one source overrides another (`loading.py`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.common.checked_values import Given, is_text, show
from orchestrator.config.settings import schema, training_arguments
from orchestrator.config.settings.sections import KeyPath
from orchestrator.errors import code_of, coded

COMMAND_LINE = "command line"
_NULLS = ("", "~", "null", "Null", "NULL")
_TEXT_TAG, _FLOAT_TAG, _TIME_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "float", "timestamp"))
_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_BESIDE = {
    "settings.yaml": "data.json",
    "sweep.yaml": "sweep.jsonl",
}  # in a record: the settings, and what lies with them
_MOST_BYTES = 16 << 20  # of a file
_MOST_LEVELS = 5000
_JOB: KeyPath = ("run", "submission")
_INTERPOLATION = re.compile(r"(?<!\\)(?:\\\\)*\$\{")  # what is escaped has one backslash more (`views.escaped`)
_MOST_NODES = 100_000  # with those that aliases repeat


class Loader(yaml.CSafeLoader):
    """YAML's safe loader for OmegaConf's dialect."""

    def construct_document(self, node: yaml.Node) -> Any:
        _count(node, ())
        return super().construct_document(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge keys put what they merge before what is given itself, which wins."""
        given: set[str] = set()
        for key, _ in node.value:
            if key.tag == _TEXT_TAG and key.value in given:
                problem = f"found duplicate key {key.value}"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            given.add(key.value)
        super().flatten_mapping(node)
        node.value = [
            (key, value)
            for index, (key, value) in enumerate(node.value)
            if all((key.tag, key.value) != (other.tag, other.value) for other, _ in node.value[index + 1 :])
        ]


Loader.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+0123456789."))
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIME_TAG]
    for first, resolvers in Loader.yaml_implicit_resolvers.items()
}


def _require_shallow(text: str) -> None:
    """libyaml's reader calls itself for each level, and ends the process where there are too many. Raises ValueError."""
    if len(text) < _MOST_LEVELS:
        return
    levels = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        levels += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if levels > _MOST_LEVELS:
            raise ValueError(f"it is nested in more than {_MOST_LEVELS} levels")


def _count(node: yaml.Node, above: tuple[yaml.Node, ...]) -> int:
    """The nodes below, once for each alias. Raises ConstructorError for one that contains itself, and for too many."""
    problem = "YAML recursive aliases are not supported." if node in above else None
    total = 1
    if problem is None and isinstance(node, yaml.SequenceNode | yaml.MappingNode):
        pairs = isinstance(node, yaml.MappingNode)
        for child in (child for item in node.value for child in (item if pairs else (item,))):
            total += _count(child, (*above, node))
            problem = f"YAML aliases make more than {_MOST_NODES} nodes" if total > _MOST_NODES else None
            if problem is not None:
                break
    if problem is not None:
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return total


class Leaf(NamedTuple):
    path: KeyPath
    given: Given


@dataclass
class Source:
    """One source of settings: a YAML file, a mapping or the command line. problems: sentences; readable: False where it is not
    known what the source says and nothing counts as absent; recorded: whether it is the file of a run or a sweep in its
    record."""

    leaves: list[Leaf] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    readable: bool = True
    recorded: bool = False


class _MalformedError(ValueError):
    """A source, or an override, that is not YAML as it must be; the message is the whole problem, coded."""


def from_name(entry: str, folder: Path, key: str = "conf", *, recorded: bool = False) -> Source:
    """The file that `conf=entry` means: a path if it looks like one, else a name in `folder`, also in a folder there. recorded:
    it is that of a record, wherever it lies."""
    named = folder / f"{entry}.yaml"
    if Path(entry).name == training_arguments.PICKLED:
        return Source(problems=[training_arguments.of_pickle(entry)], readable=False)
    is_path = entry.endswith((".yaml", ".yml", ".json")) or ("/" in entry and (entry[0] in "./" or not named.is_file()))
    file = Path(entry) if is_path else named
    try:
        found = from_text(_read(file), str(file))
        beside = file.with_name(_BESIDE.get(file.name, file.name)).is_file() and file.name in _BESIDE
        found.recorded = recorded or beside
        if beside and not recorded:  # it describes another launch, which is no part of the job
            found.leaves = [leaf for leaf in found.leaves if leaf.path != _JOB]
        return found
    except FileNotFoundError:
        missing = coded("settings.no-such-file", f"{key}={entry}: there is no such file")
        problem = missing if is_path else _no_such_name(key, entry, folder)
    except UnicodeDecodeError as error:
        problem = coded("settings.not-text", f"{file}: is not text in UTF-8 (byte {error.start})")
    except (OSError, ValueError) as error:
        problem = coded(
            "settings.file-unreadable", f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"
        )
    return Source(problems=[problem], readable=False)


def _read(file: Path) -> str:
    """Raises OSError and ValueError."""
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    return content.decode()


def interpolations(source: Source) -> list[str]:
    """A sentence for each value that stands for another one. A record was written with what they stood for, so one in it was
    put there later, and might send what the environment holds to a place that the record names."""
    return [
        coded(
            "settings.recorded-interpolation",
            f"{given.where}: {'.'.join(path)}: {show(given.value)} has an interpolation, and a record has none",
        )
        for path, given in source.leaves
        if _interpolates(given.value)
    ]


def _interpolates(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_interpolates, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_interpolates, value))
    return isinstance(value, str) and _INTERPOLATION.search(value) is not None


def from_text(text: str, name: str) -> Source:
    """A YAML document; problems carry its name and the line."""
    try:
        loader, root = _compose(text, lambda mark: f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name)
        if root is None:
            raise _MalformedError(
                coded("settings.file-empty", f"{name}: is empty; expected keys such as run and pipeline")
            )
        if not isinstance(root, yaml.MappingNode):
            value = show(loader.construct_object(root, deep=True))
            raise _MalformedError(
                coded("settings.file-without-keys", f"{name}: expected keys such as run and pipeline, got {value}")
            )
    except _MalformedError as malformed:
        return Source(problems=[malformed.args[0]], readable=False)
    if training_arguments.is_one([key.value for key, _ in root.value]):
        return _of_trainer(loader.construct_object(root, deep=True), name)
    return _collect(_leaves(loader, root, (), lambda node: f"{name}:{node.start_mark.line + 1}"))


def _of_trainer(given: Mapping[str, Any], name: str) -> Source:
    """The settings that arguments of transformers' Trainer stand for."""
    found = training_arguments.translated(given)
    return Source(
        [Leaf(path, Given(value, None, name)) for path, value in found.values.items()],
        [coded(code_of(problem), f"{name}: {problem}") for problem in found.problems],
        readable=not found.problems,
    )


class _Dumper(yaml.SafeDumper):
    """Quotes texts that this dialect, too, would read as something else, such as 1e5."""


_Dumper.yaml_implicit_resolvers = {
    first: [found for each in (yaml.SafeDumper, Loader) for found in each.yaml_implicit_resolvers.get(first, [])]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *Loader.yaml_implicit_resolvers}
}


def from_mapping(content: Mapping[str, Any]) -> Source:
    """The leaves of a mapping, which has to be what YAML can say."""
    name = "the mapping"
    try:
        return from_text(yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False), name)
    except yaml.representer.RepresenterError as error:
        problem = coded(
            "settings.not-plain",
            f"{name}: only text, numbers, lists and mappings can be settings, not {error.args[1]!r}",
        )
        return Source(problems=[problem], readable=False)


def from_command_line(overrides: Sequence[str]) -> Source:
    found = [_from_override(override) for override in overrides]
    return Source(
        leaves=[leaf for source in found for leaf in source.leaves],
        problems=[problem for source in found for problem in source.problems],
    )


def _from_override(override: str) -> Source:
    name, equals, typed = override.partition("=")
    path = tuple(name.split("."))
    if not equals or not all(path):
        return Source(problems=[coded("settings.override", f"{COMMAND_LINE}: {show(override)}: expected key=value")])
    if typed in _NULLS:
        return Source([Leaf(path, Given(None, typed, COMMAND_LINE))])
    if is_text(schema.kind_at(path)):
        return Source([Leaf(path, Given(typed, typed, COMMAND_LINE))])
    try:
        loader, node = _compose(typed, lambda _: f"{COMMAND_LINE}: {name}")
    except _MalformedError as malformed:
        return Source(problems=[malformed.args[0]])
    if node is None:  # a comment, such as `#5`
        return Source([Leaf(path, Given(typed, typed, COMMAND_LINE))])
    return _collect(_below(loader, node, path, COMMAND_LINE, lambda _: COMMAND_LINE))


def _compose(text: str, at: Callable[[yaml.Mark | None], str]) -> tuple[Any, yaml.Node | None]:
    """The root node, with merge keys resolved; duplicate keys and circular aliases excluded. Raises _MalformedError."""
    try:
        _require_shallow(text)
        loader = Loader(text)
        node = loader.get_single_node()
        if node is not None:
            loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise _MalformedError(
            coded(
                "settings.not-yaml-at",
                f"{at(error.problem_mark or error.context_mark)}: not valid YAML: {error.problem}",
            )
        ) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise _MalformedError(
            coded("settings.not-yaml", f"{at(None)}: not valid YAML: {str(error).splitlines()[0]}")
        ) from None
    return loader, node


def _leaves(
    loader: Any, mapping: yaml.MappingNode, above: KeyPath, where: Callable[[yaml.Node], str]
) -> Iterator[Leaf | str]:
    """Depth first: every value that is not itself a mapping with keys, and a sentence for every key that is no key."""
    for key, value in mapping.value:
        if key.tag != _TEXT_TAG:
            typed = key.value if isinstance(key, yaml.ScalarNode) else show(loader.construct_object(key, deep=True))
            yield coded(
                "settings.key-not-text",
                f"{where(key)}: {'.'.join((*above, typed))}: this key is not text; put it in quotes",
            )
        elif not above and "." in key.value and schema.locate(tuple(key.value.split("."))):
            section, _, rest = key.value.partition(".")
            yield coded(
                "settings.key-dotted",
                f"{where(key)}: {key.value}: keys are nested in a file: write {section}: {{{rest}: ...}}",
            )
        else:
            yield from _below(loader, value, (*above, key.value), where(key), where)


def _below(
    loader: Any, node: yaml.Node, path: KeyPath, line: str, where: Callable[[yaml.Node], str]
) -> Iterator[Leaf | str]:
    located = schema.locate(path)
    whole = located is not None and not located[0].is_open and located[0].takes_mapping
    if isinstance(node, yaml.MappingNode) and node.value and not whole:
        yield from _leaves(loader, node, path, where)
    else:
        yield Leaf(path, Given(loader.construct_object(node, deep=True), _as_typed(node), line))


def _as_typed(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_as_typed(item) for item in node.value]
    return node.value if isinstance(node, yaml.ScalarNode) else None


def _collect(found: Iterator[Leaf | str]) -> Source:
    items = list(found)
    return Source([item for item in items if isinstance(item, Leaf)], [item for item in items if isinstance(item, str)])


def _no_such_name(key: str, name: str, folder: Path) -> str:
    there = sorted(file.stem for file in folder.glob("*.yaml")) if folder.is_dir() else []
    if not there:
        return coded(
            "settings.no-files", f"{key}={name}: there is no file {folder / name}.yaml, nor any other in {folder}"
        )
    if not name:
        return coded("settings.no-name", f"{key}= names no file; {folder} has {', '.join(there)}")
    close = difflib.get_close_matches(name, there, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return coded(
        "settings.no-such-name",
        f"{key}={name}: there is no file {folder / name}.yaml; {folder} has {', '.join(there)}{hint}",
    )
