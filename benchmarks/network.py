"""A step of 25 million parameters over a slow link: compressed beside dense, between two network namespaces.

    python -m benchmarks.network [--steps 5] [--rate 1gbit]            needs root, ip and tc

Two hosts of one member each (`namespaces`), whose wires carry `--rate` at most. The members add up one matrix of 5000 x 5000
in a ring, as the engine does after each backward pass: the vote is left out, and so is the computation, which is the same
for all. A time is the slower member's, of the median step; a digest says that both have the same.

It measures neither many hosts nor a link that loses packets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.namespaces import address_of, wired
from orchestrator.comm.collectives import Exchange, Memory
from orchestrator.comm.topologies import build_schedule
from orchestrator.comm.transports.shared_memory import SharedRegions
from orchestrator.comm.transports.sockets import Listener, connect
from orchestrator.numerics.exact import MEANS
from orchestrator.numerics.layout import Layout
from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions.codec import Agreement, Held, Model, Result
from orchestrator.worker.step.carriers import Carriers

WIDTH, MEMBERS = 5000, 2
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("none", {}),
    "int8": ("quantize", {"bits": 8, "error_feedback": False}),
    "PowerSGD, rank 4": ("powersgd", {"rank": 4, "error_feedback": False}),
}
SECRET = b"between the hosts of one benchmark"
PATIENCE_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)  # of a member, which this starts
    chosen = parser.parse_args(arguments)
    if chosen.rank is not None:
        member(chosen.rank, chosen.steps)
        return 0
    with wired(MEMBERS, chosen.rate) as network:
        command = [sys.executable, "-m", "benchmarks.network", f"--steps={chosen.steps}"]
        processes = [
            network.start(rank, [*command, f"--rank={rank}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for rank in range(MEMBERS)
        ]
        found = introduced(processes)
    dense = max(each["dense"]["seconds"] for each in found)
    print(f"{'':20}{'s / step':>10}{'dense / it':>12}{'MB sent':>10}")
    for method in METHODS:
        seconds = max(each[method]["seconds"] for each in found)
        if len({each[method]["digest"] for each in found}) > 1:
            sys.exit(f"{method}: the members have different results")
        sent = max(each[method]["bytes"] for each in found) / 1e6
        print(f"{method:20}{seconds:10.2f}{dense / seconds:12.2f}{sent:10.2f}")
    return 0


def introduced(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Hand each the addresses of all; returns what they found."""
    addresses = []
    for process in processes:
        assert process.stdout is not None
        addresses.append(json.loads(process.stdout.readline()))
    found = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(addresses) + "\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate(timeout=PATIENCE_S)
        if process.returncode:
            sys.exit("a member failed")
        found.append(json.loads(out.splitlines()[-1]))
    return found


def member(rank: int, steps: int) -> None:
    """The life of one member: it tells its address, is told all of them, and tells what it found."""
    torch.set_num_threads(1)
    listener = Listener(SECRET, address_of(rank))
    print(json.dumps(listener.addresses["tcp"]), flush=True)
    addresses = [tuple(each) for each in json.loads(sys.stdin.readline())]
    peers: dict[int, Any] = {peer: address for peer, address in enumerate(addresses) if peer != rank}
    gradient = torch.randn(WIDTH * WIDTH, generator=torch.Generator().manual_seed(rank))
    found = {}
    for number, method in enumerate(METHODS):
        regions = SharedRegions()
        memory = Memory(
            Layout.of([("gradient", gradient)]), regions, sums=MEANS, contributes=METHODS[method][0] == "none"
        )
        schedule = build_schedule("ring", MEMBERS)
        memory.suit(schedule, rank)
        act = _step(method, memory, regions, gradient, rank)
        transport = connect(listener, rank, number, peers, None, PATIENCE_S)
        exchange = Exchange(schedule, rank, number, transport, memory, PATIENCE_S)
        times, sent = [], 0
        for step in range(steps + 1):
            before, started = exchange.sent_bytes, time.perf_counter()
            act(exchange, step)
            times.append(time.perf_counter() - started)
            sent = exchange.sent_bytes - before
        digest = hashlib.sha256(memory.result[: gradient.numel()].numpy().data).hexdigest()
        found[method] = {"seconds": statistics.median(times[1:]), "bytes": sent, "digest": digest}
        transport.close()
        regions.close()
    print(json.dumps(found), flush=True)


def _step(
    method: str, memory: Memory, regions: SharedRegions, gradient: torch.Tensor, rank: int
) -> Callable[[Exchange, int], object]:
    """One exchange of that method, from the gradient to the mean."""
    name, options = METHODS[method]
    codec = COMPRESSIONS[name](Model(((WIDTH, WIDTH),), MEMBERS, 0), **COMPRESSIONS.resolve(name, options))
    if codec is None:
        return lambda exchange, step: (
            memory.contribution[: gradient.numel()].copy_(gradient),
            exchange.total(step, 0, 2.0),
        )
    carriers = Carriers(codec, (), MEMBERS, regions)
    carriers.suit(build_schedule("ring", MEMBERS), rank)

    def act(exchange: Exchange, step: int) -> None:
        held = [Held(rank, 1.0, [gradient])]
        agreement = Agreement(step, float(MEMBERS), [8.0], codec.replicated())
        results: list[Result] = []
        for phase, carrier in enumerate(carriers.of_codec):
            carrier.load(held, codec.encode(phase, agreement, held, results))
            results.append(carriers.carry(carrier, exchange, step, float(MEMBERS)))
        codec.decode(agreement, results, [memory.result[: gradient.numel()]])

    return act


if __name__ == "__main__":
    sys.exit(main())
