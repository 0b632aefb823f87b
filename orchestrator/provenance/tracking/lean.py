"""MLflow without pandas, scipy and pygments: the client does not need them, and their import costs a second of processor time.

MLflow, and Mako behind it, do without them where they are not installed, so while MLflow is imported they are as if they were
not, for the thread that imports it. Only a process that belongs to this program may do that: MLflow lacks
`mlflow.data.from_pandas` from then on. With other versions of MLflow than `common.tested_versions.MLFLOW` all is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

from orchestrator.common import tested_versions

_SPARED = ("pandas", "scipy", "pygments")
_wanted = False


def prefer() -> None:
    """To be called by a process whose MLflow nobody else uses."""
    global _wanted
    _wanted = True


@contextmanager
def importing() -> Iterator[None]:
    """Inside the block, MLflow is imported, or those parts of it that come with a store."""
    if not _wanted or not tested_versions.MLFLOW.is_here:
        yield
        return
    finder = _Absence()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Absence:
    """A finder of modules that says of some, in this thread, that they are not there."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG002
        if name in _SPARED and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
