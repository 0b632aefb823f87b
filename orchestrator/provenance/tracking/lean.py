"""MLflow without what a client of runs and models does not need, and whose import costs seconds of processor time.

MLflow, and Mako behind it, do without pandas, scipy and pygments where they are not installed, so while MLflow is imported they
are as if they were not, for the thread that imports it. Its parts for GenAI and its gateway cannot be missing: empty modules
stand in for them meanwhile. Only a process that belongs to this program may do that: its MLflow lacks
`mlflow.data.from_pandas` from then on, and cannot store scorers. With other versions of MLflow than
`common.tested_versions.MLFLOW` all is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from orchestrator.common import tested_versions

_SPARED = ("pandas", "scipy", "pygments")
_REPLACED = ("mlflow.genai", "mlflow.gateway")  # with all below them; the latter brings a web framework
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
        _forget_stand_ins()


class _StandIn(ModuleType):
    """A module with every name that is asked for: a class that nobody makes anything of."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Absence(MetaPathFinder, Loader):
    """A finder of modules that says of some, in this thread, that they are not there, and gives a stand-in for others."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if threading.get_ident() != self._thread:
            return None
        if name in _SPARED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if any(name == each or name.startswith(f"{each}.") for each in _REPLACED):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _forget_stand_ins() -> None:
    """Imports of these modules get the true ones from now on."""
    for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
        stand_in = sys.modules.pop(name)
        above, _, own = name.rpartition(".")
        parent = sys.modules.get(above)
        if parent is not None and vars(parent).get(own) is stand_in:
            delattr(parent, own)
