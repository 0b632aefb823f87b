"""The recorded module of a notebook: `NAME_cells.py` in the project, with what a launch needs of the cells.

It is a file of the project like others: the snapshot of the run's code holds it, workers import it, and so does a rerun, which
knows no notebook. It has one name for each notebook, so that `compare=` shows what was changed in a class. Runs that go on
hold a lock, shared; who would write another text meanwhile is refused, since a worker that starts late would import it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.common import locks
from orchestrator.driver.folders import project_folder
from orchestrator.errors import ConfigurationError, UsageError

_MADE = "made by orchestrator of"


def title(source: str) -> str:
    """The first line of the module of a notebook or script of this name."""
    return f"Definitions {_MADE} {source}: edit them there."


def module_name(source: str) -> str:
    """The name of the module: "train_cells" of train.ipynb."""
    stem = re.sub(r"\W", "_", Path(source).stem, flags=re.ASCII)
    return f"{'_' * stem[:1].isdigit()}{stem or 'notebook'}_cells"


@contextmanager
def recorded(project: Path, name: str, text: str) -> Iterator[None]:
    """Within the block the project has a module of this name with this text. Raises UsageError where it must not be written."""
    file = project / f"{name}.py"
    lock = os.open(project_folder(project) / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        locks.lock(lock, shared=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            _require_ours(file)
            if not locks.try_lock(lock):
                raise UsageError(
                    f"{file.name} is used by a run that goes on, with other definitions",
                    "wait for its end, or launch from another notebook",
                    code="cells.in-use",
                )
            _write(file, text)
            locks.lock(lock, shared=True)
        sys.modules.pop(name, None)  # it may be of an earlier text
        importlib.invalidate_caches()
        yield
    finally:
        os.close(lock)


def _require_ours(file: Path) -> None:
    """Raises UsageError for a file that somebody wrote by hand."""
    if file.exists() and _MADE not in file.read_text(encoding="utf-8").partition("\n")[0]:
        raise UsageError(
            f"{file.name} is a file of yours, and definitions of the notebook would be written there",
            "name it or the notebook otherwise",
            code="cells.file-taken",
        )


def _write(file: Path, text: str) -> None:
    """Raises ConfigurationError. The bytecode of an earlier text goes, which Python takes for current where size and second are
    the same."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.rename(file)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise ConfigurationError(
            [f"{file} cannot be written: {error.strerror}"],
            "run from a folder in which you may write",
            code="cells.unwritable",
        ) from error
