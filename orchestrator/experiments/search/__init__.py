"""Search: the table of searches, what they are asked, and which trial is due when. Pure, but for reading the sweep's file.

A search is a function `name(ask: Ask, *, option, ...) -> points`; adding one is a file and a line in `SEARCHES`. A user's own
is held to the laws before a sweep starts (`laws.py`). `optuna_study` is the one module that imports Optuna, when it is asked.

    space.py       keys with ranges and choices, and their points
    asking.py      batches: what follows from what is known
    halving.py     who goes on to the next rung
    outlook.py     what of a sweep is due, from what has ended
    declared.py    the space as a file declares it
    sweeps.py      the sweep's file and command line
"""

from __future__ import annotations

from orchestrator.common.registry import Table
from orchestrator.experiments.search.asking import Searcher
from orchestrator.experiments.search.grid import grid
from orchestrator.experiments.search.nsga2 import nsga2
from orchestrator.experiments.search.tpe import tpe
from orchestrator.experiments.search.uniform import uniform

__all__ = ["SEARCHES"]

SEARCHES: Table[Searcher] = Table("search", {"grid": grid, "random": uniform, "tpe": tpe, "nsga2": nsga2})
