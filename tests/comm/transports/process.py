"""A member in a process of its own, to be killed: `python -m tests.comm.transports.process WHAT MEMORY`.

Prints its address, reads its peer's, connects as rank 1, does WHAT and waits until its standard input ends:
  speak   send a region, a copy, and the last word
  fork    the same, with a forked child that holds every descriptor of this process
  write   receive a view, and write into it
MEMORY is one of REGIONS. Each line is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import torch

from orchestrator.comm.transports.base import SharableRegions
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from tests.comm.transports import device_double
from tests.comm.transports.worlds import PATIENCE_S, SECRET, TAG

REGIONS: dict[str, Callable[[], SharableRegions]] = {"host": SharedRegions, "device": device_double.regions}


def main(what: str, memory: str) -> None:
    listener = Listener(SECRET)
    regions = REGIONS[memory]()
    region = regions.allocate(1000, torch.float32)
    print(json.dumps(listener.addresses["unix"]), flush=True)
    peers = {0: json.loads(sys.stdin.readline())}
    transport = connect(listener, 1, TAG.generation, peers, regions, PATIENCE_S)
    if what == "write":
        transport.receive(0, TAG, PATIENCE_S).payload.fill_(1)
    elif what == "fork" and os.fork() == 0:
        sys.stdin.read()
        return
    region.fill_(5)
    transport.send(0, TAG, region)
    transport.send(0, TAG, torch.full((10,), 6.0))
    transport.send(0, TAG, torch.empty(0), note=7)
    print(json.dumps("said"), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
