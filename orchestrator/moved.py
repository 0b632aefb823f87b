"""Names of modules that stood elsewhere before and are promised or persisted: by docs/extending.md, or by models that were
logged. Importing an old name gives the module of the new one, so classes of both are the same.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# The old name of a module or package -> the new one. The modules of a package are found below its new name.
MOVED = {
    "orchestrator.combinations": "orchestrator.worker.ensemble.combinations",
    "orchestrator.engine.ensemble": "orchestrator.worker.ensemble",
    "orchestrator.pipeline_orders": "orchestrator.comm.pipeline_schedules",
    "orchestrator.sampling": "orchestrator.data.sampling",
    "orchestrator.search": "orchestrator.experiments.search",
    "orchestrator.serving": "orchestrator.worker.serving",
    "orchestrator.synchrony": "orchestrator.comm.synchronization",
    "orchestrator.topologies": "orchestrator.comm.topologies",
    "orchestrator.updates": "orchestrator.optim",
    "orchestrator.values": "orchestrator.common.values",
}
_PACKAGES = {name.rpartition(".")[0] for name in MOVED} - {
    "orchestrator"
}  # old folders of which nothing else is promised


class Finder(MetaPathFinder, Loader):
    """Asked before all others, which would find what lies in a package that has moved a second time, under its old name."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name in _PACKAGES:
            return ModuleSpec(name, self, is_package=True)
        return None if _new(name) is None else ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        new = _new(module.__name__)
        if new is not None:
            sys.modules[module.__name__] = importlib.import_module(new)  # the import returns what stands there then


def install() -> None:
    """Safe to call twice."""
    if not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def _new(name: str) -> str | None:
    """The present name of a module that has moved."""
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None
