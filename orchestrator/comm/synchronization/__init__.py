"""The table of modes of synchronisation: when a replica may go on without the others.

A mode is a function of its options that returns a `Mode`; adding one is a file and a line in `SYNCHRONY`, and the laws of
`laws.py` then hold it to the same properties as the others. Settings and documentation read names and options from here. A
user's own meets the laws at launch.

What it does not do: execute a mode (`orchestrator.worker`), or carry updates (the topology).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.comm.synchronization.asp import asp
from orchestrator.comm.synchronization.bap import bap
from orchestrator.comm.synchronization.bsp import bsp
from orchestrator.comm.synchronization.gossip import gossip
from orchestrator.comm.synchronization.mode import Mode, View
from orchestrator.comm.synchronization.ssp import ssp
from orchestrator.common.registry import Table

__all__ = ["SYNCHRONY", "Mode", "View", "build_mode"]

SYNCHRONY: Table[Callable[..., Mode]] = Table(
    "sync", {"bsp": bsp, "ssp": ssp, "asp": asp, "bap": bap, "gossip": gossip}, given=0
)


def build_mode(name: str, options: Mapping[str, Any]) -> Mode:
    """A mode; options that are not given have their defaults. Raises ConfigurationError."""
    return SYNCHRONY.build(name, options)()
