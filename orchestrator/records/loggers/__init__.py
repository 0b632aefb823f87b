"""The table of writers: who is told of a run beside MLflow, each by its own package (`tracking.also`).

A writer is a class: `name(run: LoggedRun)` begins, in a thread of its own (`feed.py`), and its instances have

    metrics(step, values)    of a step, an evaluation, a recovery; in the order of the driver, after a resume some again
    flush()                  where a class has it: there is nothing more to tell for a moment; who is killed then loses nothing
    end(status, results)     "finished", "failed" or "killed", with what the run came to

so adding one is a file and a line in `LOGGERS`. A writer has no part in the result: what it raises ends what it is told, with a
warning, and not the run. `problem()`, where a class has it, says before the start what keeps it from writing on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.common.registry import Table
from orchestrator.errors import ConfigurationError, coded
from orchestrator.records.loggers.logger import LoggedRun, Logger
from orchestrator.records.loggers.tensorboard import TensorBoard
from orchestrator.records.loggers.wandb import WeightsAndBiases

__all__ = ["LOGGERS", "LoggedRun", "Logger", "problems"]

LOGGERS: Table[Callable[[LoggedRun], Logger]] = Table(
    "tracking.also", {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
)


def problems(names: Sequence[str]) -> list[str]:
    """The obstacles to writing to these on this machine, a sentence each."""
    found: list[str] = []
    for name in names:
        try:
            asked = getattr(LOGGERS[name], "problem", None)
            problem = None if asked is None else asked()
        except ConfigurationError as error:
            found += error.with_remedy()
        else:
            found += [] if problem is None else [coded("tracking.logger", f"tracking.also: {problem}")]
    return found
