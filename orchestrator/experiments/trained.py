"""The trained model of a recorded run, made by the code that the run was recorded with.

If the project still has that code, its own modules make the model, so its class is the user's. If it has changed, the modules
that lie beside the model do, for the time of the making alone: the project's are as before afterwards.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.driver.recording import artifacts, trust
from orchestrator.driver.recording.model_folder import CODE
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.provenance.code import marks
from orchestrator.provenance.tracking import Store
from orchestrator.worker import serving

if TYPE_CHECKING:
    from orchestrator.worker.serving.served import Served


def load(recorded: Recorded, store: Store, *, trusted: bool = False) -> Served:
    """Load the trained model of a recorded run. store: has the run, and its model where that is not on this machine;
    trusted: whether it may be somebody else's. Raises UsageError where there is no model, and what the pipeline's import
    and making raise."""
    trust.require_own(recorded.past, trusted, "its model", lambda: trust.examine(recorded, ()))
    folder = artifacts.model(store, recorded.past, recorded.files)
    modules = _modules(folder / CODE)
    with nullcontext() if _are_present(modules) else _only(modules, folder / CODE):
        return serving.load(folder)


def _modules(folder: Path) -> dict[str, Path]:
    """The files of the recorded modules, by their names."""
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _are_present(modules: Mapping[str, Path]) -> bool:
    """Whether an import by these names gives the recorded text, and has given it to this process."""
    importlib.invalidate_caches()
    texts = {name: file.read_bytes() for name, file in modules.items()}
    imported = {name: sys.modules[name] for name in texts if name in sys.modules}
    return all(_text_of(name) == text for name, text in texts.items()) and all(
        marks.is_current(module, texts[name]) and marks.holds(module, texts[name]) for name, module in imported.items()
    )


def _text_of(name: str) -> bytes | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    origin = None if spec is None else spec.origin
    return Path(origin).read_bytes() if origin is not None and Path(origin).is_file() else None


@contextmanager
def _only(modules: Mapping[str, Path], folder: Path) -> Iterator[None]:
    """Within the block these modules are imported from the folder. Nothing is written there."""
    names = {".".join(name.split(".")[:length]) for name in modules for length in range(1, name.count(".") + 2)}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
        importlib.invalidate_caches()
