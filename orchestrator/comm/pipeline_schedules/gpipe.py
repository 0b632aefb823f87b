"""GPipe: all forwards, then all backwards. Its bubble is that of one forward, one backward; it holds every shard in between.

Source: Huang et al., "GPipe", NeurIPS 2019, section 2.3.
"""

from __future__ import annotations

from orchestrator.comm.pipeline_schedules.order import Order, Place


def gpipe(place: Place) -> Order:
    return Order(in_flight=place.hosted, warmup=place.hosted)
