"""The differences between two recorded runs, the most consequential first.

    determines the result    code, data, settings, packages, environment, hardware: what a rerun must have in common; of
                             asynchronous runs also the order of updates
    is the outcome           profiles of the data, first parameters, trace, digest, metrics
    is only the execution    workers, topology, places, hosts

A run is a plain mapping, of which everything may be missing; what one run has and the other lacks is a difference, what both
lack is not. Nodes of a run are taken together: a value is what they have in common, or all of them. Pure; nothing is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from orchestrator.records.decimals import digits
from orchestrator.records.identity import canonical
from orchestrator.records.verdict import Divergence, RunResult, divergence_text, first_divergence, parting

LISTING = "the list of the training files"  # an input that no setting names, by its digest
Kind = Literal["setting", "data", "package", "environment", "hardware", "code", "metric", "trace", "order"]
FileChange = Literal["added", "removed", "changed"]
Share = Literal["result", "outcome", "execution"]

_HARDWARE = frozenset(
    {
        "cpu",
        "instruction_sets",
        "capability",
        "machine",
        "gpu",
        "cores",
        "memory_bytes",
        "gpus",
        "gpu_driver",
        "gpu_uuids",
    }
)
_MODELS = ("cpu", "gpu.models")
_LIBRARIES_OF_GPUS = frozenset({"gpu.cuda", "gpu.cublas", "gpu.cudnn"})
_KINDS: tuple[Kind, ...] = ("code", "data", "setting", "package", "environment", "hardware", "order", "trace", "metric")
_SURROUNDINGS: tuple[Kind, ...] = ("environment", "package", "hardware")
_SHARES: tuple[Share, ...] = ("result", "outcome", "execution")
_HEADINGS = {"result": "determines the result", "outcome": "the outcome", "execution": "only the execution"}
_WIDTH = 60
RUNS = ("run a", "run b")
_OWN = "orchestrator"
_WHOLE = ("packages_sha256", "conda_sha256")


class Run(RunResult, total=False):
    """A recorded run. settings: flat; determining: the names of those that determine the result, all of them if not given;
    inputs: records of `provenance.data.versions.Input`; profiles: data set -> `data.profile`; environments: one
    `provenance.environment.node` per node; code_tree: the snapshot's tree; modules: what was imported by its own name, with
    `kind` of `provenance.code.imported` and `sha256`; initial_parameters: SHA-256; metrics: the last of each; reads:
    `InputAudit.identity` of `records.input_audit`."""

    settings: Mapping[str, Any]
    determining: Collection[str]
    inputs: Iterable[Mapping[str, Any]]
    profiles: Mapping[str, Mapping[str, Any]]
    environments: Iterable[Mapping[str, Any]]
    code_tree: str | None
    modules: Mapping[str, Mapping[str, str]]
    initial_parameters: str | None
    metrics: Mapping[str, float]
    reads: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ."""

    kind: Kind  # of thing
    name: str  # of the file, setting, package, ...
    a: Any  # plain data of the first run; None where it has no such thing
    b: Any  # plain data of the second run; None where it has no such thing
    text: str  # both in a line
    share: Share = "result"  # what it bears upon

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    differences: tuple[Difference, ...]
    first_divergence: Divergence | None

    def inputs(self, *, check_environment: bool) -> list[str]:
        """The differences with any of which a rerun is not called exact, as phrases. The order of updates is not among
        them: a rerun is given the order, so another order is a divergence. Nor is the machine (`machines`)."""
        ignored = {"order", "hardware", *(() if check_environment else _SURROUNDINGS)}
        return self._phrases(each for each in self.differences if each.kind not in ignored)

    def machines(self, *, check_environment: bool) -> list[str]:
        """How processors and GPUs differ, as phrases: with other bits they are the first to be suspected, and where all bits
        agree they have changed nothing. The models come first."""
        found = (each for each in self.differences if check_environment and each.kind == "hardware")
        return self._phrases(sorted(found, key=lambda each: each.name not in _MODELS))

    def _phrases(self, chosen: Iterable[Difference]) -> list[str]:
        return [f"{each.kind} {each.name}: {each.text}" for each in chosen if each.share == "result"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "differences": [difference.as_dict() for difference in self.differences],
            "first_divergence": self.first_divergence,
        }

    def as_text(self) -> str:
        """For people: a heading for each share, then kind, name and both values in columns."""
        if not self.differences:
            return "no differences"
        kinds = max(len(difference.kind) for difference in self.differences)
        names = min(_WIDTH, max(len(difference.name) for difference in self.differences))
        lines = []
        for share in _SHARES:
            chosen = [difference for difference in self.differences if difference.share == share]
            lines += [f"{_HEADINGS[share]}:"] if chosen else []
            lines += [f"  {found.kind:<{kinds}}  {found.name:<{names}}  {found.text}" for found in chosen]
        return "\n".join(lines)


def compare(a: Run, b: Run, changed: Mapping[str, FileChange] | None = None) -> Comparison:
    """The differences between run a and run b. changed: the files of the code that differ, where that is known: path -> what
    b did to it."""
    parted = first_divergence(a.get("trace", ()), b.get("trace", ())) if "trace" in a and "trace" in b else None
    found = [
        *_code(a, b, changed or {}),
        *_data(a, b),
        *_settings(a, b),
        *_environments(a, b),
        *_reads(a, b),
        *_order(a, b),
        *_outcome(a, b, parted),
    ]
    found.sort(key=lambda one: (_SHARES.index(one.share), _KINDS.index(one.kind), one.name))
    return Comparison(tuple(found), parted)


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names that both have, with different values."""
    return sorted(name for name in one.keys() & other.keys() if one[name] != other[name])


def _code(a: Run, b: Run, changed: Mapping[str, FileChange]) -> Iterator[Difference]:
    words = {"added": "is new", "removed": "is gone", "changed": "differs"}
    for path, how in changed.items():
        before, now = None if how == "added" else how, None if how == "removed" else how
        yield Difference("code", path, before, now, words[how])
    if not changed:
        yield from _values("code", {"tree": a.get("code_tree")}, {"tree": b.get("code_tree")})
    mine, theirs = a.get("modules", {}), b.get("modules", {})
    for name in sorted(mine.keys() & theirs.keys()):  # one that a run imported on its way may be missing in another
        left, right = mine[name], theirs[name]
        if {left["kind"], right["kind"]} != {"snapshot"}:  # else it is a file of the trees
            yield from _values("code", {f"module {name}": left["sha256"]}, {f"module {name}": right["sha256"]})


def _data(a: Run, b: Run) -> Iterator[Difference]:
    mine, theirs = ({str(item["path"]): item for item in run.get("inputs", ())} for run in (a, b))
    for path in {**mine, **theirs}:
        left, right = mine.get(path), theirs.get(path)
        before, now = left["md5"] if left else None, right["md5"] if right else None
        if before != now:
            yield Difference("data", path, before, now, f"{_size(left)} -> {_size(right)}")
    described, also = a.get("profiles", {}), b.get("profiles", {})
    for name in sorted(described.keys() & also.keys()):  # a run that did not finish has none
        left, right = _alike(_figures(described[name]), _figures(also[name]))
        yield from _values("data", _flat({name: left}), _flat({name: right}), "outcome")


def _figures(profile: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the distributions of its columns, of which `data.drift` tells in words."""
    return {key: value for key, value in profile.items() if not key.startswith("columns")}


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The parts of two profiles that can be compared. If different items of equally many were looked at (older versions read
    as many as there was time for), their figures differ though the data do not."""
    if (
        "unreadable" in a
        or "unreadable" in b
        or a.get("length") != b.get("length")
        or a.get("sampled") == b.get("sampled")
    ):
        return a, b
    kept = ["length", *(["classes", "counted"] if a.get("counted") == b.get("counted") else [])]
    return {key: a.get(key) for key in kept}, {key: b.get(key) for key in kept}


def _size(item: Mapping[str, Any] | None) -> str:
    if item is None:
        return "none"
    files, size = item.get("files"), item.get("size")
    return f"{_short(item['md5'])} ({files} files, {size} bytes)" if files is not None else _short(item["md5"])


def _settings(a: Run, b: Run) -> Iterator[Difference]:
    mine, theirs = a.get("settings", {}), b.get("settings", {})
    determining = {*a.get("determining", mine), *b.get("determining", theirs)}
    for found in _values("setting", mine, theirs):
        yield found if found.name in determining else replace(found, share="execution")


def _environments(a: Run, b: Run) -> Iterator[Difference]:
    mine, theirs = list(a.get("environments", ())), list(b.get("environments", ()))
    if not mine or not theirs:
        return
    yield from _values("package", _together(map(_packages, mine)), _together(map(_packages, theirs)))
    yield from map(_of_hardware, _values("environment", _part(mine, "bits"), _part(theirs, "bits")))
    yield from map(_of_hardware, _values("environment", _part(mine, "host"), _part(theirs, "host"), "execution"))


def _reads(a: Run, b: Run) -> Iterator[Difference]:
    """The differences in what was read undeclared. An input that only one of them has read says nothing: the other one may be
    of a version that did not look."""
    mine, theirs = a.get("reads", {}), b.get("reads", {})
    kinds: dict[str, Kind] = {"files": "data", "variables": "environment"}
    for what, kind in kinds.items():
        left, right = mine.get(what, {}), theirs.get(what, {})
        both = left.keys() & right.keys()
        for found in _values(kind, {name: left[name] for name in both}, {name: right[name] for name in both}):
            yield replace(found, name=f"read {found.name}")


def _of_hardware(found: Difference) -> Difference:
    is_hardware = found.name.split(".")[0] in _HARDWARE and found.name not in _LIBRARIES_OF_GPUS
    return replace(found, kind="hardware") if is_hardware else found


def _packages(node: Mapping[str, Any]) -> dict[str, Any]:
    """Version and, in brackets, what tells builds apart; without this package where the node tells the hash of its source."""
    found = {}
    for name, version in node.get("packages", {}).items():
        if name == _OWN and node.get("bits", {}).get(_OWN) is not None:
            continue
        build = node.get("builds", {}).get(name, {})
        tells = [
            *(["editable"] if build.get("editable") else []),
            *(str(build[key])[:12] for key in ("commit", "sha256") if build.get(key)),
        ]
        found[name] = f"{version} ({', '.join(tells)})" if tells else version
    return found | {f"{each['name']} of conda": _of_conda(each) for each in node.get("conda", ())}


def _of_conda(package: Mapping[str, Any]) -> str:
    digest = package.get("sha256") or package.get("md5")
    return f"{package['version']} {package['build']}" + (f" ({digest[:12]})" if digest else "")


def _part(nodes: Iterable[Mapping[str, Any]], part: str) -> dict[str, Any]:
    """Flat, without the hashes over packages that are compared one by one."""
    found = _together(_flat(node.get(part, {})) for node in nodes)
    return {name: value for name, value in found.items() if name not in _WHOLE}


def _together(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One value per name: the nodes' common one, or the list of those they have."""
    values: dict[str, dict[str, Any]] = {}
    for node in nodes:
        for name, value in node.items():
            values.setdefault(name, {})[canonical(value)] = value
    return {
        name: next(iter(found.values())) if len(found) == 1 else [found[key] for key in sorted(found)]
        for name, found in values.items()
    }


def _order(a: Run, b: Run) -> Iterator[Difference]:
    """The differences in the order of two asynchronous runs."""
    parted = parting(a["rests"], b["rests"]) if "rests" in a and "rests" in b else None
    if parted is not None and parted.is_order:
        text = f"the order of updates differs: first at rest {parted.barrier}"
        yield Difference("order", "updates", parted.a, parted.b, text)


def _outcome(a: Run, b: Run, parted: Divergence | None) -> Iterator[Difference]:
    for key, name in (("initial_parameters", "initial parameters"), ("digest", "final parameters")):
        yield from _values("trace", {name: a.get(key)}, {name: b.get(key)}, "outcome")
    if parted is not None:
        name = f"step {parted['step']}"
        yield Difference(
            "trace",
            name,
            parted["expected"],
            parted["got"],
            divergence_text(parted, RUNS).partition(": ")[2],
            "outcome",
        )
    yield from _values("metric", a.get("metrics", {}), b.get("metrics", {}), "outcome")


def _values(kind: Kind, a: Mapping[str, Any], b: Mapping[str, Any], share: Share = "result") -> Iterator[Difference]:
    """One difference for each name whose values differ; a missing value counts as None."""
    for name in {**a, **b}:
        left, right = a.get(name), b.get(name)
        if canonical(left) != canonical(right):
            yield Difference(kind, name, left, right, _text(left, right), share)


def _text(left: Any, right: Any) -> str:
    shown = [_shown(left), _shown(right)]
    if shown[0] == shown[1]:  # by digits that one of them has, and the other is near
        shown = [_short(canonical(left)), _short(canonical(right))]
    text = " -> ".join(shown)
    if isinstance(left, float) and isinstance(right, float) and math.isfinite(left - right):
        return f"{text} ({right - left:+.3g})"
    return text


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return digits(value)
    text = "none" if value is None else value if isinstance(value, str) else canonical(value)
    return _short(text)


def _short(text: str) -> str:
    """Hashes by their beginning; long values cut."""
    if re.fullmatch(r"[0-9a-f]{32,64}(\.dir)?", text):
        return text[:12]
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _flat(nested: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{above}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found
