"""The orders of a stage's tasks: how many shards may be in flight in it, and when backwards may begin.

An order is a function of a member's place that returns an `Order`; adding one is a function here and a line in `PIPELINING`,
and the laws of `laws.py` then hold it to the same properties as the others. A user's own meets the laws at launch.

Tasks are put in order by `flow`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from orchestrator.common.registry import Table


@dataclass(frozen=True, slots=True)
class PipelinePosition:
    """A member of a pipeline. stage: of `stages`, the first is 0; hosted: how many shards of each step it takes through its
    stage."""

    stage: int
    stages: int
    hosted: int


@dataclass(frozen=True, slots=True)
class Order:
    """How far a member of a stage may run ahead of its backward passes. After the warm-up a backward that can start goes
    before a forward that can start at the same time."""

    in_flight: int  # how many shards it may have taken forward and not yet backward, which its memory has to hold
    warmup: int = 0  # how many it takes forward before it takes the first one backward, at most all that it hosts


Decide = Callable[[PipelinePosition], Order]


def one_forward_one_backward(
    place: PipelinePosition,
    *,
    ahead: Annotated[
        int,
        Field(
            ge=0,
            description="Shards that a worker holds beyond one for each stage from its own on; a last stage holds one.",
        ),
    ] = 0,
) -> Order:
    """A worker holds as many shards as there are stages from its own on, and no more.

    Source: Narayanan et al., "PipeDream", SOSP 2019, section 3.2; without weight versions, as in Fan et al., "DAPPLE", PPoPP
    2021. ahead: what a stage needs is there before it has done its last task; more of them the earlier the stage are the
    "eager-1F1B" of Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023.
    """
    own = place.stages - place.stage
    return Order(in_flight=own + ahead if own > 1 else own)


def gpipe(place: PipelinePosition) -> Order:
    """All forwards, then all backwards: idle as long as 1f1b, and a worker holds all its shards in between.

    Source: Huang et al., "GPipe", NeurIPS 2019, section 2.3.
    """
    return Order(in_flight=place.hosted, warmup=place.hosted)


PIPELINING: Table[Callable[..., Order]] = Table("cluster.pipeline", {"1f1b": one_forward_one_backward, "gpipe": gpipe})


def build_order(name: str, options: Mapping[str, Any]) -> Decide:
    """An order; options that are not given have their defaults. Raises ConfigurationError."""
    return PIPELINING.build(name, options)
