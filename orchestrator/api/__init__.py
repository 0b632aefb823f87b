"""The Python entry beside the command line: what is launched, repeated, compared and looked at from a program or a notebook.

Each function does what the command of its name does, by the same code below, and raises what that refuses. Nothing heavy is
imported before it is needed.
"""

from orchestrator.api.launching import launch, rerun, resume, sweep
from orchestrator.api.loading import load_ensemble
from orchestrator.api.queries import compare, look, run, runs, staleness
from orchestrator.api.results import Card, Comparison, Figures, Rerun, Run, Sweep
from orchestrator.records.barriers import Staleness

__all__ = [
    "Card",
    "Comparison",
    "Figures",
    "Rerun",
    "Run",
    "Staleness",
    "Sweep",
    "compare",
    "launch",
    "load_ensemble",
    "look",
    "rerun",
    "resume",
    "run",
    "runs",
    "staleness",
    "sweep",
]
