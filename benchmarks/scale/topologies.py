"""The time of one exchange, simulated, by topology, network, model and number of workers. It is measured on no network.

Eight workers are on each host, and every host has one wire. Handing over or taking a message costs 20 us of a processor.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import product
from typing import Any

from orchestrator.comm.topologies import build_schedule
from orchestrator.experiments.simulation.conditions import Network
from orchestrator.experiments.simulation.exchange import exchange

NETWORKS = (1, 10, 100)  # Gbit/s of a wire
PARAMETERS = (1, 100)  # millions
WORKERS = (16, 128, 1000)
TOPOLOGIES: dict[str, Mapping[str, Any]] = {
    "ring": {},
    "tree": {},
    "hierarchical": {},
    "peer_to_peer": {},
    "parameter_server": {"servers": 8},
}
_PER_HOST = 8
_WITHIN = 1e10  # bytes per second out of a worker, within its host
_MESSAGE_S = 20e-6
_SUM_BYTES, _RESULT_BYTES = 8, 4  # of an element


def options(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def measured(_: argparse.Namespace) -> str:
    heads = ("wire, Gbit/s", "parameters, M", "workers", *TOPOLOGIES)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    for gigabits, millions, workers in product(NETWORKS, PARAMETERS, WORKERS):
        found = [seconds(name, workers, gigabits, millions) for name in TOPOLOGIES]
        best = min(found)
        told = [f"**{1000 * each:.3g}**" if each == best else f"{1000 * each:,.3g}" for each in found]
        lines.append("| " + " | ".join((str(gigabits), str(millions), f"{workers:,}", *told)) + " |")
    return "\n".join(lines)


def seconds(topology: str, workers: int, gigabits: float, millions: float) -> float:
    """From the first message of an exact sum to the last."""
    network = Network(
        bandwidth=_WITHIN, message_s=_MESSAGE_S, hosts=workers // _PER_HOST, wire_bandwidth=gigabits * 1e9 / 8
    )
    options_ = TOPOLOGIES[topology]
    nodes = network.nodes(workers, options_.get("servers", 0))
    schedule = build_schedule(topology, workers, nodes=nodes, **options_)
    return exchange(schedule, millions * 1e6 * _SUM_BYTES, millions * 1e6 * _RESULT_BYTES, network).seconds
