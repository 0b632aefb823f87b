"""Search: the table of searches, what they are asked, and which trial is due when. Pure, but for reading the sweep's file.

A search is a function and a line in the table `SEARCHES` (`samplers.py`). A user's own is held to the laws before a sweep
starts (`laws.py`). Optuna is imported when one of its searches is asked.

    space.py       keys with ranges and choices, and their points
    samplers.py    the searches: which points are tried
    asking.py      batches: what follows from what is known
    halving.py     who goes on to the next rung
    outlook.py     what of a sweep is due, from what has ended
    declared.py    the space as a file declares it
    sweeps.py      the sweep's file and command line
"""

from orchestrator.experiments.search.samplers import SEARCHES

__all__ = ["SEARCHES"]
