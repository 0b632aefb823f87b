"""All-reduce of a gradient through our transports, exact and fast, beside gloo: the same processes, turn by turn.

    python -m benchmarks.exchange [--repeats 15]

A size is that of the float32 gradient. exact sends float64 sums (over TCP in narrow form) and float32 results, fast and
gloo float32 both ways; exact and fast also divide and fingerprint, which gloo does not. A turn is some calls, one after the
other (`CALLS`), its time the slowest member's from a common barrier, divided by them, and a cell the median over the repeats.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.socket_transport import SocketTransport
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.comm.transports.tls import make_credentials
from orchestrator.numerics.allocator import keep_freed_memory
from orchestrator.numerics.exact import FAST_MEANS, MEANS
from orchestrator.numerics.layout import Layout

SIZES = {"4 kB": 4 << 10, "1 MB": 1 << 20, "25 MB": 25 << 20}
CALLS = {"4 kB": 50, "1 MB": 10, "25 MB": 1}  # of a turn: one alone is less than waking up after the barrier
MEMBERS = (2, 4)
TOPOLOGIES = ("ring", "peer_to_peer")
MEDIA = {"unix": "shared memory", "tcp": "TCP", "tls": "TLS"}
PATIENCE_S = 60.0
SECRET = b"between the processes of one benchmark"

Contestants = dict[str, Callable[[int], object]]  # name -> the all-reduce of one step
Times = dict[str, dict[str, list[float]]]  # size -> contestant -> seconds


@dataclass(frozen=True)
class Contest:
    """The contestants beside gloo, with their sizes."""

    repeats: int = 15
    sizes: Sequence[str] = tuple(SIZES)
    media: Sequence[str] = tuple(MEDIA)
    reductions: Sequence[str] = ("exact", "fast")
    topologies: Sequence[str] = TOPOLOGIES


def measure(members: int, contest: Contest) -> Times:
    """In as many processes."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(member, args=(members, folder, contest), nprocs=members)  # type: ignore[no-untyped-call]
        found: Times = json.loads((Path(folder) / "times.json").read_text())
        return found


def member(rank: int, members: int, folder: str, contest: Contest) -> None:
    """The life of one process; rank 0 writes what was measured to `times.json`."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as a worker does
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=members)
    made: list[Any] = [make_credentials() if rank == 0 else None]
    dist.broadcast_object_list(made)
    plain, encrypted = Listener(SECRET, "127.0.0.1"), Listener(SECRET, "127.0.0.1", made[0])
    addresses: list[Any] = [None] * members
    dist.all_gather_object(addresses, {**plain.addresses, "tls": encrypted.addresses["tcp"]})
    times = {size: _compare(rank, members, size, (plain, encrypted), addresses, contest) for size in contest.sizes}
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(times))
    dist.barrier()
    plain.close()
    encrypted.close()
    dist.destroy_process_group()


def name_of(reduction: str, medium: str, topology: str) -> str:
    return f"{reduction}, {MEDIA[medium]}, {topology.replace('_', ' ')}"


def _compare(
    rank: int, members: int, size: str, listeners: tuple[Listener, Listener], addresses: list[Any], contest: Contest
) -> dict[str, list[float]]:
    """Contestant -> seconds. listeners: in plain text and encrypted."""
    elements, calls = SIZES[size] // 4, CALLS[size]
    gradient = torch.randn(elements)
    own = gradient.clone()  # gloo works in place, and what it works on does not matter
    contestants: Contestants = {"gloo": lambda _: dist.all_reduce(own)}
    opened: list[tuple[SocketTransport, SharedRegions]] = []
    for medium, reduction, topology in itertools.product(contest.media, contest.reductions, contest.topologies):
        regions = SharedRegions()
        sums = {"exact": MEANS, "fast": FAST_MEANS}[reduction]
        memory = Memory(Layout.of([("gradient", gradient)]), regions, sums=sums)
        memory.suit(build_schedule(topology, members), rank)
        memory.contribution[:elements] = gradient
        peers = {peer: addresses[peer][medium] for peer in range(members) if peer != rank}
        number = elements * 100 + len(opened)
        transport = connect(listeners[medium == "tls"], rank, number, peers, regions, PATIENCE_S)
        exchange = Exchange(build_schedule(topology, members), rank, number, transport, memory, PATIENCE_S)
        opened.append((transport, regions))
        contestants[name_of(reduction, medium, topology)] = _sum(exchange, members)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for step in range(contest.repeats + 2):
        for name, act in contestants.items():
            dist.barrier()
            started = time.perf_counter()
            for call in range(calls):
                act(step * calls + call)
            elapsed = torch.tensor((time.perf_counter() - started) / calls, dtype=torch.float64)
            dist.all_reduce(elapsed, dist.ReduceOp.MAX)
            if step >= 2:
                times[name].append(elapsed.item())
    dist.barrier()
    for transport, regions in opened:
        transport.close()
        regions.close()
    return times


def _sum(exchange: Exchange, members: int) -> Callable[[int], object]:
    return lambda step: exchange.total(step, 0, float(members))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange")
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args(arguments)
    print(f"{'members':>7}  {'size':<6}  {'':<36}{'ms':>9}{'/ gloo':>8}", flush=True)
    for members in MEMBERS:
        for size, times in measure(members, Contest(chosen.repeats)).items():
            gloo = statistics.median(times["gloo"])
            for name, seconds in times.items():
                median = statistics.median(seconds)
                print(f"{members:>7}  {size:<6}  {name:<36}{median * 1e3:>9.3f}{median / gloo:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
