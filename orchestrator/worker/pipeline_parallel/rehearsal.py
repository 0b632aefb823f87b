"""Finds where the model of a run would be cut, on this machine, before anything is started. Model and data are made as a
worker makes them, and one micro-batch and one validation batch are computed."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from os import devnull
from typing import Any, Self

from orchestrator.adapters import table
from orchestrator.common.child import Started, end_with, parent
from orchestrator.config.plan import Plan
from orchestrator.errors import ConfigurationError, OrchestratorError, PipelineRaised
from orchestrator.numerics import determinism
from orchestrator.numerics.determinism import left_as_it_was
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel.planning import plan_stages, summary


@contextmanager
def prepared(plan: Plan) -> Iterator[tuple[PipelineAdapter, Replica]]:
    """In silence: a worker says all this too. Leaves the process as it was."""
    with left_as_it_was(), warnings.catch_warnings(), open(devnull, "w") as nowhere, redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        run = replace(plan.run, initial=None)  # whose values take no other memory, and move no border
        workload = PipelineAdapter(table.find(plan.run.pipeline), run, plan.data)
        yield workload, Replica(workload.model, None, watches_all=False, rules=workload.buffer_rules)


class CutRehearsal:
    """A process that finds where a model would be cut: what data and a micro-batch take and change is gone with it. It imports
    what it needs as soon as this object is made."""

    def __init__(self) -> None:
        self._child = Started(__name__, silent=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.close()

    def cut(self, plan: Plan) -> dict[str, Any] | None:
        """As `planning.summary`; None where the pipeline itself raises, which its workers tell better. To be called once.
        Raises ConfigurationError where the model cannot be cut so."""
        with suppress(OSError):  # it died: there is no answer
            self._child.messages.send(pickle.dumps(plan))
        text = self._child.messages.receive()
        return _cut_or_refusal(json.loads(text) if text else {})


def _cut_or_refusal(found: dict[str, Any]) -> dict[str, Any] | None:
    if "refused" in found:
        raise ConfigurationError([f"cluster.stages: {found['refused']}"], found["remedy"], code=found["code"])
    return found.get("cut")


def _answer(plan: Plan) -> dict[str, Any]:
    """Empty where the pipeline raises."""
    try:
        with prepared(plan) as (workload, replica):
            return {"cut": summary(plan_stages(workload, replica, plan.cluster.members.stages), workload.model)}
    except PipelineRaised as error:
        refused = {"refused": error.message, "remedy": error.remedy, "code": error.code}
        return {} if error.details else refused  # details: a traceback
    except OrchestratorError:
        return {}


def _serve() -> None:
    importlib.import_module("torch.utils.flop_counter")  # a survey needs it, and it imports Triton
    asker = parent()
    plan: Plan = pickle.loads(asker.receive() or b"")
    end_with(asker)
    determinism.prepare_thread(len(os.sched_getaffinity(0)))  # what is counted is the same with any number
    asker.send(json.dumps(_answer(plan)).encode())


if __name__ == "__main__":
    _serve()
    os._exit(0)  # whatever threads the pipeline has left
