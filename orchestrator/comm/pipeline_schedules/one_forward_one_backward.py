"""One forward, one backward: a member holds as many shards as there are stages from its own on, and no more.

Source: Narayanan et al., "PipeDream", SOSP 2019, section 3.2; without weight versions, as in Fan et al., "DAPPLE", PPoPP 2021.
"""

from __future__ import annotations

from orchestrator.comm.pipeline_schedules.order import Order, Place


def one_forward_one_backward(place: Place) -> Order:
    return Order(in_flight=place.stages - place.stage)
