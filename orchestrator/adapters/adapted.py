"""A pipeline that an adapter has made. It is told of the run, which a framework's code may ask for, and says what of that code
has no place in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from orchestrator.pipeline import Pipeline

Apart = Callable[[], AbstractContextManager[object]]  # a block that leaves the process as it was


@dataclass(frozen=True)
class Course:
    """The course of a run, as far as the code of a framework may ask for it."""

    steps: int  # of the run; some, where only the form of what is built from them counts
    epoch: int  # the steps of one
    batch_size: int  # rows of the first step, over all shards
    schedule: str  # the name of the learning-rate schedule in the settings
    order: str = "shuffled"  # in which an epoch visits the samples
    sampling: str = "uniform"  # with which weights samples are drawn
    evaluates_in_steps: bool = True  # whether evaluations come after a number of steps, and not by the clock or never
    updates: int = 1  # the most that a shard has in a step: its local steps, in which an epoch is counted too


class Told(Pipeline):
    """The base of pipelines that are told the course of their run."""

    def begin(self, course: Course) -> list[str]:  # noqa: ARG002
        """Called before `optimizer` of what an adapter has made, and in a worker after `datasets`. Returns what a person is to
        know of the data, a sentence each. Raises PipelineRaised for what does not go with the settings."""
        return []


class Adapted(Told):
    """The base of what adapters make."""

    # The options of the schedule `plateau`, if the code has one that the settings do not have yet.
    plateau: Mapping[str, Any] | None = None
    sets_modes = False  # whether layers that are built in evaluation mode stay in it
    follows_settings = False  # whether the rate is that of the settings, though there is a rate()
    asks_step = False  # whether parts of the model may ask for the step, though the pipeline's `loss` does not take it
    looks_at_data = False  # whether `on_evaluation` may ask for the data
    validation_batch = 0  # the number of the validation batch that is looked at, in the order of the validation set

    def at(self, step: int) -> None:
        """Called before each loss, with the updates that the model has had."""

    def notes(self) -> list[str]:
        """For a person who launches it, a sentence each. Nothing has been read yet."""
        return []

    def summarized(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics over the whole validation set, of what was put together over its batches."""
        return dict(metrics)
