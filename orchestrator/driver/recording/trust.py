"""Tells what a command would execute or open of a record, from the record alone, and asks whether that is wanted.

A record may come from somebody else: in a crate, or in a store that several people share. To repeat it, or to go on with it,
is to run their program with one's own rights; to take data, weights or checkpoints from where it says that they are, is to
call there. So before anything of it is imported, started or opened it is said what that would be, and `trust=true` is asked
for. The launch of a run records its user, and only by that is another user's run known. This is a courtesy between people who
share a store, and no protection against one who writes another's name into it.

Text of a record is shown without characters that move the cursor, change colours or turn the direction of writing. So no
record can hide what it would execute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.common.registry import is_reference
from orchestrator.config.settings import kept, shown, sources
from orchestrator.driver.preflight.ownership import Untrusted, is_own, whose
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal.console import plain
from orchestrator.errors import few
from orchestrator.provenance.environment import packages, region
from orchestrator.provenance.tracking import Past
from orchestrator.records.input_audit import settable

_SHOWN = 12
_PLACES = ("initial.name", "tracking.uri", "checkpoint.uri", "cluster.address")  # with a colon too, and no code
_OURS = "orchestrator"


@dataclass(frozen=True)
class WouldExecute:
    """All that a command would execute that begins with the record of somebody else."""

    key: ClassVar[str] = "would_execute"  # of it in the JSON object of the error
    asked: ClassVar[str] = "executes its code with your rights. It would execute"  # words of the error before it
    left: ClassVar[str] = "nothing of it was executed or imported"  # words of the error on what was done
    command: list[str]  # words of the command, as it is started in the restored code
    names: list[str]  # code that the settings name, the pipeline first
    tree: str | None  # of git, which holds the code; None where none is recorded
    commit: str | None  # from which the code was made; None where there is none
    modules: list[str]  # that the run had imported from its own code
    elsewhere: list[str]  # modules that the run had imported from other places
    packages: list[str]  # those that are not as they were, "name recorded -> here"
    installs: list[str]  # packages that pip would install with environment=rebuild
    variables: dict[str, str]  # environment variables that are set, name -> value
    search_path: list[str]  # folders that are searched for modules
    data: dict[str, str]  # path -> md5
    initial: str | None  # name of the model whose weights it begins with; None where there is none
    stages: list[str] = field(default_factory=list)  # of DVC that are executed before, "name: command"

    @property
    def text(self) -> str:
        rows = {
            "command": " ".join(self.command),
            "pipeline": self.names[0],
            "other code named by settings": ", ".join(self.names[1:]),
            "code": f"tree {self.tree}, made from commit {self.commit or 'none'}",
            "modules of its code": few(self.modules, _SHOWN),
            "modules from elsewhere": few(self.elsewhere, _SHOWN),
            "folders searched for modules": few(self.search_path, _SHOWN),
            **(
                {"packages that would be installed": few(self.installs, _SHOWN)}
                if self.installs
                else {"packages, recorded -> here": few(self.packages, _SHOWN)}
            ),
            "variables": ", ".join(f"{name}={value}" for name, value in self.variables.items()),
            "data": few([f"{path} ({md5})" for path, md5 in self.data.items()], _SHOWN),
            "weights at the start": self.initial,
            "stages of DVC": "; ".join(self.stages),
        }
        return "\n".join(f"  {what}: {plain(said)}" for what, said in rows.items() if said)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def require_own(past: Past, trusted: bool, what: str, found: Callable[[], WouldExecute]) -> None:
    """Raises Untrusted for a run, a sweep or an ensemble that another user launched. trusted: whether its code may be executed;
    what: is about to do so, "a rerun"; found: what that would be."""
    if not (trusted or is_own(past)):
        raise Untrusted(whose(past), what, found())


def examine(
    original: Recorded, overrides: Sequence[str], *, rebuilding: bool = False, stages: Sequence[str] = ()
) -> WouldExecute:
    """Read it from the record; imports nothing of it. rebuilding: the environment is made from the record, too; stages: as
    in WouldExecute. Raises ConfigurationError and NotRerunnable."""
    with original.readable():
        found = _examined(original, overrides, rebuilding=rebuilding, stages=stages)
        assert found.text
        return found


def _examined(original: Recorded, overrides: Sequence[str], *, rebuilding: bool, stages: Sequence[str]) -> WouldExecute:
    settings = kept.as_held(original.files.settings, overrides)  # no variable is read for it
    code, bits = original.code, next(iter(original.environments), {})
    modules: dict[str, Any] = code.get("modules", {})
    own = sorted(name for name, each in modules.items() if each.get("kind") == "snapshot")
    public = shown(settings)  # what it takes from variables here is shown to nobody
    named, target = _named(public), settings.pipeline.target
    return WouldExecute(
        command=["python", "-m", _OURS, "conf=settings.yaml", *overrides],
        names=[target, *dict.fromkeys(name for name in named if name != target)],
        tree=code.get("tree"),
        commit=code.get("origin"),
        modules=own,
        elsewhere=sorted(set(modules) - set(own)),
        packages=_differing(bits.get("packages", {})),
        installs=_installed(bits) if rebuilding else [],
        variables={**_set(region.as_recorded(bits)), **bits.get("bits", {}).get("variables", {}), **_read(original)},
        search_path=list(code.get("search_path", [])),
        data={item.path: item.md5 for item in original.inputs},
        initial=public["initial.name"],
        stages=list(stages),
    )


def examine_whole(original: Recorded, file: Path, kind: str, overrides: Sequence[str]) -> WouldExecute:
    """The same of a sweep or an ensemble (`kind`), whose `file` names code too. original: one of its runs. Raises as
    `examine`."""
    found = examine(original, overrides)
    described = sources.from_name(str(file), Path())
    named = _named({".".join(leaf.path): leaf.given.value for leaf in described.leaves})
    command = [*found.command[:3], f"{kind}={file.name}", *overrides]
    return replace(found, command=command, names=list(dict.fromkeys([*found.names, *named])))


def _named(given: Mapping[str, Any]) -> list[str]:
    """The code that settings name, wherever it stands in them."""
    return [each for key, value in given.items() if key not in _PLACES for each in _references(value)]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)
    elif isinstance(value, str) and is_reference(value):
        yield value


def _read(original: Recorded) -> dict[str, str]:
    """The variables that a rerun sets since the code read them."""
    return _set(settable(original.input_audit))


def _set(variables: Mapping[str, str | None]) -> dict[str, str]:
    return {name: "(removed)" if value is None else value for name, value in variables.items()}


def _installed(node: Mapping[str, Any]) -> list[str]:
    of_conda = [f"{each['name']} {each['version']} {each['build']}" for each in node.get("conda", ())]
    places = {name: _place_of(origin) for name, origin in node.get("origins", {}).items()}
    of_pip = [f"{name} {version}{places.get(name, '')}" for name, version in node.get("packages", {}).items()]
    return [*sorted(of_pip, key=lambda each: " from " not in each), *of_conda]


def _place_of(origin: Mapping[str, Any]) -> str:
    """The source of a package that is of no index, such as " from URL"; empty for others."""
    found = origin.get("url") or origin.get("path")
    return f" from {found}" if found else ""


def _differing(recorded: dict[str, str]) -> list[str]:
    here, _ = packages.installed()
    return [
        f"{name} {version} -> {here.get(name, 'none')}"
        for name, version in sorted(recorded.items())
        if here.get(name) != version and name != _OURS
    ]
