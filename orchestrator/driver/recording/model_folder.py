"""The trained model as a folder that MLflow logs: weights, architecture, the pipeline's code, and the state of its training.

    model/
      model.safetensors            parameters and persistent buffers; the run's own file, not a second one
      architecture.json            how the pipeline makes the model, its layers in words, each tensor's type and shape
      code/                        the modules of the snapshot that the workers had imported
      training_state.safetensors   the optimizer's tensors and what else a checkpoint holds for the whole run beside the model
      training_state.json          its other values, as a checkpoint's manifest has them
      requirements.txt, python_env.yaml

`provenance.tracking.models` adds the MLmodel file. Nothing is computed here.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.checkpoint import catalog
from orchestrator.checkpoint.state import TrainingState
from orchestrator.checkpoint.storage import open_storage
from orchestrator.checkpoint.weights import Weights
from orchestrator.errors import CheckpointDamaged
from orchestrator.provenance.code import git
from orchestrator.worker.serving.names import ARCHITECTURE, WEIGHTS

CODE = "code"
_STATE = "training_state"
_PACKAGES = ("mlflow", "numpy", "orchestrator", "safetensors", "torch")
_LEFT_OUT = ("model/", "shard/")  # of a checkpoint's tensors: what the weights hold, and what single shards keep


def write(
    folder: Path,
    weights: Path,
    architecture: Mapping[str, Any],
    packages: Mapping[str, str],
    code: Mapping[str, bytes],
    state: TrainingState | None,
) -> None:
    """Make the folder anew. architecture: its `tensors` are added; packages: name -> version, of the workers; code: by path;
    state: of the last checkpoint, None where there is none of the last step. Raises OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _link(weights, folder / WEIGHTS)
    _write_json(folder / ARCHITECTURE, {**architecture, "tensors": tensors_of(weights)})
    for path, content in code.items():
        target = folder / CODE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / CODE).mkdir(exist_ok=True)
    pinned = [f"{name}=={packages[name]}" for name in _PACKAGES if name in packages]
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in pinned), encoding="utf-8")
    version = platform.python_version()
    (folder / "python_env.yaml").write_text(
        f"python: {version}\nbuild_dependencies:\n- pip\ndependencies:\n- -r requirements.txt\n", encoding="utf-8"
    )
    if state is not None:
        _write_state(folder, state)


def tensors_of(weights: Path) -> dict[str, Any]:
    """Name -> `dtype` and `shape`, from the header of a safetensors file."""
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {
        name: {"dtype": entry["dtype"], "shape": entry["shape"]}
        for name, entry in sorted(header.items())
        if name != "__metadata__"
    }


def code_of(root: Path, tree: str, modules: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """The bytes of the modules that the snapshot holds, by the path from which Python imports them. root: of the repository
    that holds the tree."""
    found = {}
    for name, module in modules.items():
        path = module.get("path")
        if module["kind"] != "snapshot" or path is None:
            continue
        place = name.replace(".", "/")
        is_package = PurePosixPath(path).name == "__init__.py"
        with suppress(git.GitError):  # of a partial clone
            content = git.run(root, "cat-file", "blob", f"{tree}:{path}")
            found[f"{place}/__init__.py" if is_package else f"{place}.py"] = content
    return found


def state_of(storage: str, step: int) -> TrainingState | None:
    """The state that the checkpoint of a step holds beside the model; None if there is none that can be read."""
    try:
        place = open_storage(storage)
        return catalog.load(place, catalog.read(place, step), lambda name: not name.startswith(_LEFT_OUT))
    except (CheckpointDamaged, OSError):
        return None


def _write_state(folder: Path, state: TrainingState) -> None:
    """Raises OSError, as the library of safetensors would not."""
    Weights(state.tensors).write(folder / f"{_STATE}.safetensors")
    _write_json(folder / f"{_STATE}.json", state.values)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without
        shutil.copyfile(source, target)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
