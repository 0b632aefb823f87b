"""The DVC stages that made the inputs of a run: which, in which order, and from which data.

A stage is executed by `dvc repro`, alone, in a restored work tree of which DVC's cache is no part: nothing is taken from
there, and nothing goes there. The outs of an import or a frozen stage count as raw data, as files that were added by hand do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.data import dvc_files, hashing
from orchestrator.provenance.data.dvc_files import MD5, Out
from orchestrator.provenance.data.hashing import Scan, is_in
from orchestrator.provenance.data.versions import Input
from orchestrator.records.data_stage_replay import Made

_NAMED = 5  # files that differ


@dataclass(frozen=True)
class Stage:
    """A stage of DVC that made inputs of a run. address: as DVC is told, from its project's top; outs: those that lead to an
    input, as they were recorded; paths in them are relative to the run's project."""

    address: str
    command: str
    outs: tuple[Out, ...]

    @property
    def name(self) -> str:
        return self.address.removeprefix("dvc.yaml:")


@dataclass(frozen=True)
class Pipeline:
    """The stages of DVC behind the inputs of a run. top: the DVC project; stages: each after those that it depends on; raw:
    what they begin with and no snapshot holds."""

    top: Path
    stages: tuple[Stage, ...]
    raw: tuple[Input, ...]


def pipeline(project: Path, inputs: Sequence[Input], within: Path | None = None) -> Pipeline:
    """The stages that made the inputs, by the DVC files of a restored work tree. within: as `dvc_files.opened` takes it.
    Raises NotRerunnable and ConfigurationError."""
    from dvc.exceptions import DvcException

    top = dvc_files.root(project)
    if top is None:
        raise NotRerunnable(
            "stages=true: the code of the run is in no DVC project, so no stage made its data",
            _REMEDY,
            code="dvc.stages-no-project",
        )
    read = {out.path: _read(item, out) for item in inputs for out in item.outs}
    try:
        with dvc_files.opened(top, within) as repository:
            return _Walk(project, top, repository, read).pipeline()
    except (DvcException, OSError) as error:
        raise NotRerunnable(
            f"DVC cannot read the stages of the run: {error}", _REMEDY, code="dvc.stages-unreadable"
        ) from None


_REMEDY = "leave stages=true out, and the recorded data are taken"


def _read(item: Input, out: Out) -> tuple[str | None, str]:
    """The hash of an out that a run read: the run's own, where the out is the input and DVC had recorded another version."""
    return (out.md5, out.hash) if item.as_recorded or item.place != out.path else (item.md5, MD5)


class _Walk:
    """From the outs that were read up to the raw data. known: path of an out -> hash and kind, of those that were read."""

    def __init__(self, project: Path, top: Path, repository: Any, known: Mapping[str, tuple[str | None, str]]) -> None:
        self._project, self._top, self._known = project, top, known
        self._graph = repository.index.graph
        self._outs = {self._path(out): out for out in repository.index.outs if out.protocol == "local"}
        self._order: dict[Any, None] = {}
        self._raw: dict[str, Input] = {}

    def pipeline(self) -> Pipeline:
        wanted = [self._outs[path] for path in self._known if path in self._outs]
        for out in wanted:
            if is_executed(out.stage):
                self._visit(out.stage)
        used = [self._path(out) for out in wanted] + [
            self._path(dep) for stage in self._order for dep in stage.deps if dep.protocol == "local"
        ]
        if not self._order:
            names = ", ".join(self._known) or "nothing that DVC holds"
            raise NotRerunnable(
                f"stages=true: no DVC stage made what the run read ({names})", _REMEDY, code="dvc.no-stage"
            )
        return Pipeline(self._top, tuple(self._stage(stage, used) for stage in self._order), tuple(self._raw.values()))

    def _visit(self, stage: Any) -> None:
        if stage in self._order:
            return
        for before in self._graph.successors(stage):
            if is_executed(before):
                self._visit(before)
        for dep in stage.deps:
            if dep.protocol == "local":
                self._look_at(dep)
        self._order[stage] = None

    def _look_at(self, dep: Any) -> None:
        """Note what a dependency is made of that is there before any stage: data of DVC, or a file that only the hash is
        known of. The files in the snapshot of the code are there."""
        path = self._path(dep)
        held = [out for name, out in self._outs.items() if is_in(path, name) or is_in(name, path)]
        for out in held:
            if not is_executed(out.stage) and out.hash_info:
                self._add(self._as_out(out))
        if not held and dep.hash_info and not Path(dep.fs_path).exists():
            self._raw[path] = Input(path, dep.hash_info.value, dep.meta.size or 0, dep.meta.nfiles or 1)

    def _add(self, out: Out) -> None:
        assert out.md5 is not None
        self._raw[out.path] = Input(out.path, out.md5, 0, 0, place=out.path, outs=(out,), as_recorded=True)

    def _stage(self, stage: Any, used: Iterable[str]) -> Stage:
        outs = tuple(
            out
            for each in stage.outs
            if each.protocol == "local"
            for out in [self._as_out(each)]
            if any(is_in(path, out.path) or is_in(out.path, path) for path in used)
        )
        file, name = os.path.relpath(stage.path, self._top), getattr(stage, "name", None)
        command = stage.cmd if isinstance(stage.cmd, str) else " && ".join(stage.cmd)
        return Stage(f"{file}:{name}" if name else file, command, outs)

    def _as_out(self, out: Any) -> Out:
        """With the version that was read, where it was."""
        found = dvc_files.out_of(out, getattr(out.stage, "name", None), Path(out.stage.path), self._project)
        md5, kind = self._known.get(found.path, (found.md5, found.hash))
        return Out(**{**found.as_dict(), "md5": md5, "hash": kind})

    def _path(self, part: Any) -> str:
        return os.path.relpath(part.fs_path, self._project)


def is_executed(stage: Any) -> bool:
    """Whether a stage of DVC is a command that may be given again."""
    return bool(stage.cmd) and not stage.frozen and not stage.is_import


def command(python: str, stage: Stage) -> list[str]:
    """The command that executes a stage, in the top of the DVC project."""
    options = ("--force", "--single-item", "--no-commit", "--no-run-cache")
    return [python, "-m", "dvc", "repro", *options, stage.address]


def variables(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The variables of the process: nothing of a `dvc repro` around this command, DVC's state in a folder that is thrown
    away."""
    others = {name: value for name, value in environment.items() if not name.startswith("DVC_")}
    return {**others, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(scratch)}


def changed(top: Path, stage: Stage) -> list[str]:
    """The changes of a stage since DVC recorded its outs: dependencies, parameters, the command. Raises NotRerunnable."""
    from dvc.exceptions import DvcException

    try:
        with dvc_files.opened(top) as repository:
            (found,) = repository.stage.collect(
                str(top / stage.address)
            )  # what is relative, DVC takes from where we are
            phrases = [
                phrase
                for dep in found.deps
                for how in dep.status().values()
                for phrase in _phrases(os.path.relpath(dep.fs_path, top) if dep.protocol == "local" else str(dep), how)
            ]
            return [*sorted(phrases), *(["its command is another one"] if found.changed_stage() else [])]
    except (DvcException, OSError) as error:
        raise NotRerunnable(
            f"DVC cannot look at stage {stage.name}: {error}", _REMEDY, code="dvc.stage-unreadable"
        ) from None


def _phrases(path: str, how: Any) -> Iterator[str]:
    """how: of a file a word, of a file of parameters name -> word."""
    if isinstance(how, Mapping):
        yield from (f"{path}: {name} is {word}" for name, word in how.items())
    else:
        yield f"{path} is {how}"


def made(project: Path, stage: Stage, kept: dvc_files.Storage | None) -> tuple[Made, ...]:
    """The outs of a stage that was executed, beside the recorded ones. kept: where the recorded version may be."""
    return tuple(_made(project, out, kept) for out in stage.outs)


def _made(project: Path, out: Out, kept: dvc_files.Storage | None) -> Made:
    try:
        found = hashing.scan_input(project, out.path, out.hash)
    except FileNotFoundError:
        return Made(out.path, out.md5, None)
    files = () if found.md5 == out.md5 else tuple(_differing(out, found, kept))[:_NAMED]
    return Made(out.path, out.md5, found.md5, files)


def _differing(out: Out, found: Scan, kept: dvc_files.Storage | None) -> Iterator[str]:
    """The files of a folder that differ, as far as DVC's cache still lists the recorded ones."""
    if kept is None or out.md5 is None or not out.md5.endswith(".dir"):
        return
    before = dvc_files.manifest(kept.place(out.md5, out.hash))
    if before is not None:
        yield from (name for name in sorted({*before, *found.entries}) if before.get(name) != found.entries.get(name))
