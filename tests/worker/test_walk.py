"""A gradient's way from `loss.backward()` to `optimizer.step()` is the one that docs/architecture.md walks."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.worker import pipelines as p
from tests.worker.runs import Layout, train

ROOT = Path(__file__).resolve().parents[2]
HOUSE = f"{ROOT}/orchestrator/"
MOST = 9


@pytest.mark.long
def test_a_gradient_passes_the_files_of_its_walk_in_their_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page.split("**How a gradient becomes an update**")[1].split("\n**")[0]
    files = re.findall(r"^\d\. `([\w/.]+)`", walk, re.MULTILINE)
    assert 0 < len(files) <= MOST
    ways = _ways()
    assert ways
    for way in ways:
        assert [file for file in way if file in files] == files


def _ways() -> list[list[str]]:
    """In each step of two workers in a ring: the files that are entered or returned to between the last backward pass and the
    optimizer's step, each once."""
    found: list[list[str]] = []
    under = threading.local()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and name == "backward" and file.endswith("torch/_tensor.py"):
            under.way = {}
        elif event == "call" and name == "step" and "/torch/optim/" in file and hasattr(under, "way"):
            found.append(list(under.way))
            del under.way
        elif file.startswith(HOUSE) and hasattr(under, "way"):
            under.way[file.removeprefix(HOUSE)] = None

    threading.setprofile(watch)
    try:
        train(p.Mlp, Layout(2), optimizer={"name": "adamw", "lr": 0.1})
    finally:
        threading.setprofile(None)
    return found
