"""A clean checkout of the project as a run began with it, code and data, that is gone after use (rule D6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from orchestrator.config.settings import Settings
from orchestrator.driver.preflight import begin, initial
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.code import checkout
from orchestrator.provenance.data import dvc_files, restoring
from orchestrator.provenance.data.versions import Input


@contextmanager
def checked_out(
    bundle: Path,  # the snapshot of the code
    tree: str | None,  # that it has to be; None for any
    inputs: Sequence[Input],  # as they were recorded
    settings: Settings,  # of the run
    project: Path,  # where the command was typed, whose data and DVC storage are read
    folder: Path,  # its `.orchestrator`
    names: Mapping[str, Collection[str]] = MappingProxyType({}),  # of the files of inputs, where they are known
) -> Iterator[Path]:
    """The project's folder in the checkout. Raises NotRerunnable where code or data cannot be had."""
    if not bundle.exists():
        raise NotRerunnable(
            f"the code of run {bundle.parent.name} was not recorded, and the project has changed since",
            "undo the changes, or launch a new run with conf=",
            code="resume.code-changed",
        )
    with checkout.disposable(bundle, folder / checkout.FOLDER, tree) as restored:
        # On another machine the command may be typed where there is no project; its code says where the data are.
        there = dvc_files.root(project) is not None or any((project / item.path).exists() for item in inputs)
        source = project if there else restored.project
        restoring.restore(restored.project, inputs, source, top=restored.root, names=names)
        restoring.lend_listed(restored.project, inputs, source, restored.root)
        restoring.lend_storage(restored.project, project, restored.root)
        initial.lend(settings.initial.digest, folder, restored.project)
        begin.lend(settings.begin, folder, restored.project)
        yield restored.project
