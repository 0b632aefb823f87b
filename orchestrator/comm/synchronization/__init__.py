"""Modes of synchronisation: when a replica may go on without the others.

A mode is a function and a line in the table `SYNCHRONY` (`modes.py`); the laws of `laws.py` hold it to the same properties as
the others. Settings and documentation read names and options from there. A user's own meets the laws at launch.

Modes are executed by `orchestrator.worker`, and updates are carried by the topology.
"""

from orchestrator.comm.synchronization.mode import Mode, View
from orchestrator.comm.synchronization.modes import SYNCHRONY, build_mode

__all__ = ["SYNCHRONY", "Mode", "View", "build_mode"]
