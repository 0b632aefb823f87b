"""Optuna is imported when a sweep asks for one of its searches, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCENE = """
import sys
from orchestrator.experiments.search.asking import Search, next_batch
from orchestrator.experiments.search.space import Range
from orchestrator.experiments.search.sweeps import SEARCHES
space = {"run.seed": Range(1, 9)}
next_batch(space, Search("random", SEARCHES["random"], 4, 4), 1, [])
assert "optuna" not in sys.modules
next_batch(space, Search("tpe", SEARCHES["tpe"], 4, 4), 1, [])
assert "optuna" in sys.modules
"""


@pytest.mark.long
@pytest.mark.slow
def test_optuna_is_imported_by_who_asks_for_it() -> None:
    subprocess.run([sys.executable, "-c", SCENE], check=True)
