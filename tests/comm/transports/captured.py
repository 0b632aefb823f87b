"""Processes of test_capture.py: `listen FILE` keeps all packets of this network namespace, `add RANK` adds up with the other.

A member prints its address, reads one line of JSON from stdin, {"peer": address, "secret": hex, "certificate", "key"} with the
last two null for plain text, and prints the SHA-256 of the mean. First of all it reads such a line without "peer".
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.comm.transports.tls import Credentials
from orchestrator.numerics.exact import MEANS
from orchestrator.numerics.layout import Layout
from tests.comm.transports.worlds import PATIENCE_S

VALUE = 1.2345678806304932  # of every element of every gradient, and so of the mean; a float32
ELEMENTS = 200_000
_ALL_PACKETS = 0x0003  # ETH_P_ALL of linux/if_ether.h


def listen(path: str) -> None:
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(_ALL_PACKETS)) as wire,
        Path(path).open("wb") as file,
    ):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        print("listening", flush=True)
        while True:
            file.write(wire.recv(1 << 17))
            file.flush()


def add(rank: int, host: str) -> None:
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    encrypted = told["key"] is not None
    credentials = Credentials(told["certificate"].encode(), told["key"].encode()) if encrypted else None
    listener = Listener(bytes.fromhex(told["secret"]), host, credentials)
    print(json.dumps(listener.addresses["tcp"]), flush=True)
    peer = json.loads(sys.stdin.readline())
    gradient, regions, schedule = torch.full((ELEMENTS,), VALUE), SharedRegions(), build_schedule("ring", 2)
    memory = Memory(Layout.of([("gradient", gradient)]), regions, sums=MEANS)
    memory.suit(schedule, rank)
    memory.contribution[:ELEMENTS] = gradient
    transport = connect(listener, rank, 1, {1 - rank: peer}, None, PATIENCE_S)
    exchange = Exchange(schedule, rank, 1, transport, memory, PATIENCE_S)
    exchange.total(0, 0, 2.0)
    print(hashlib.sha256(memory.result[:ELEMENTS].numpy().tobytes()).hexdigest(), flush=True)
    transport.close()
    regions.close()
    listener.close()


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2])
    else:
        add(int(sys.argv[2]), sys.argv[3])
