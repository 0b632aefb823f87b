"""The golden runs: what they come to under portable arithmetic, on every processor (`golden.json`: run -> steps -> digest).

    python -m tests.portable.golden digits=60 lstm=3      # one JSON object: {"digits=60": digest, ...}

To be started with the variables of `determinism.PORTABLE`, since they are read when torch is loaded; as a process of its own,
also by an emulator. A run is one worker in a thread: what it comes to does not depend on the layout.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator.config.settings import load
from orchestrator.numerics import determinism

ROOT = Path(__file__).resolve().parents[2]
GOLDEN: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("golden.json").read_text())
_SMALL: dict[str, Any] = {
    "run": {"seed": 3, "arithmetic": "portable"},
    "data": {"shards": 4, "batch_size": 32},
    "optimizer": {"name": "adamw", "lr": 0.003},
    "gradient": {"clip": 1.0},
}
RUNS: dict[str, Any] = {
    "digits": "digits",
    "characters": "characters",
    "convolutions": {**_SMALL, "pipeline": {"target": "tests.portable.pipelines:Convolutions"}},
    "lstm": {**_SMALL, "pipeline": {"target": "tests.portable.pipelines:Sequences"}},
}


def environment() -> dict[str, str]:
    """The environment of a process that computes portably."""
    return {**os.environ, **determinism.ENVIRONMENT, **determinism.PORTABLE}


def digest(name: str, steps: int) -> str:
    from tests.worker.elastic import Elastic
    from tests.worker.runs import Layout

    told = Elastic(load([RUNS[name]], [f"run.steps={steps}", "run.arithmetic=portable"]), Layout(1)).run()
    assert told.digest is not None
    return told.digest


if __name__ == "__main__":
    os.chdir(ROOT)
    asked = [argument.partition("=") for argument in sys.argv[1:]]
    print(json.dumps({f"{name}={steps}": digest(name, int(steps)) for name, _, steps in asked}))
