"""The program that the batch script of a job runs, on its first node.

Slurm's SIGTERM comes in two ways. `--signal=B:TERM` reaches this process alone; `scancel`, a requeue and the time limit reach
every process of the job. So the Ray does not listen to it (node.py), and what is passed on to the command is SIGINT: it may
have had a SIGTERM already, and a second one would end it without a checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster.slurm.host import address_towards, end_with_parent
from orchestrator.errors import ClusterUnavailable, Interrupted, OrchestratorError

_END_S = 20.0  # for the nodes to end their Ray, which takes about one
_LOOPBACK = "127.0.0.1"
# One task per node, whatever the site has set; one that ends does not end the others.
_STEP = ("--ntasks-per-node=1", "--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--quiet")


@dataclass(frozen=True)
class Allocation:
    """The nodes that Slurm gave a job. nodes: their names, to Slurm; head: this one's address; cpus: of each."""

    nodes: Sequence[str]
    head: str
    cpus: int
    start_timeout_s: float


def run(cpus: int, start_timeout_s: float, command: Sequence[str]) -> int:
    """The exit code: that of the command, or 1 where there was no Ray for it."""
    try:
        nodes = _output_of("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()
        return asyncio.run(_run(Allocation(nodes, _address(nodes), cpus, start_timeout_s), command))
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _address(nodes: Sequence[str]) -> str:
    """This host's, to the other nodes; a job of one node is reached from nowhere else. Raises ClusterUnavailable."""
    others = [node for node in nodes if node != os.environ["SLURMD_NODENAME"]]
    if not others:
        return _LOOPBACK
    found = re.search(r"\bNodeAddr=(\S+)", _output_of("scontrol", "show", "node", others[0]))
    host = found[1] if found else others[0]
    try:
        return address_towards(host)
    except OSError as error:
        raise ClusterUnavailable(
            f"no way from this node to {others[0]}, whose address is {host} to Slurm: {error}",
            "the nodes of a job have to reach each other by IPv4",
            code="slurm.no-way",
        ) from error


def _output_of(*command: str) -> str:
    """Raises ClusterUnavailable."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ClusterUnavailable(
            f"`{' '.join(command)}` ended with exit code {done.returncode}", code="slurm.command-failed"
        )
    return done.stdout


async def _run(allocation: Allocation, command: Sequence[str]) -> int:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with _step(allocation) as step:
        said = asyncio.create_task(_pass_on_errors(step))
        address = await _up(step, allocation, asked)
        code = await _drive([*command, f"cluster.address={address}"], asked)
        said.cancel()  # the last line of the job's log is the command's
        return code


@contextlib.asynccontextmanager
async def _step(allocation: Allocation) -> AsyncIterator[Process]:
    """Within the block: the tasks that hold the Ray."""
    number = len(allocation.nodes)
    size = (f"--nodes={number}", f"--ntasks={number}", f"--cpus-per-task={allocation.cpus}")
    wanted = (allocation.head, str(allocation.cpus), str(allocation.start_timeout_s))
    step = await asyncio.create_subprocess_exec(
        *("srun", *size, *_STEP, sys.executable, "-m", "orchestrator.cluster.slurm.node", *wanted),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        preexec_fn=end_with_parent,
    )
    try:
        yield step
    finally:
        assert step.stdin is not None
        step.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(step.wait(), _END_S)
        if step.returncode is None:
            step.kill()
            await step.wait()


async def _up(step: Process, allocation: Allocation, asked: asyncio.Event) -> str:
    """The address of the head, once all nodes are up. Raises ClusterUnavailable, Interrupted."""
    missing = {*allocation.nodes}
    coming, told = asyncio.create_task(_address_of_all(step, missing)), asyncio.create_task(asked.wait())
    try:
        await asyncio.wait((coming, told), timeout=allocation.start_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            raise Interrupted("the job was asked to end before its Ray was up", code="slurm.interrupted")
        if not coming.done():
            raise ClusterUnavailable(
                f"after {allocation.start_timeout_s:g} s the job's Ray was not up on {', '.join(sorted(missing))}",
                "raise cluster.start_timeout_s; look at memory, disk and network of these nodes",
                code="slurm.ray-not-up",
            )
        return coming.result()
    finally:
        coming.cancel()
        told.cancel()


async def _address_of_all(step: Process, missing: set[str]) -> str:
    """Until all have said that they are up; the head does so first, since the others wait for its address."""
    assert step.stdin is not None
    address = ""
    while missing:
        said = await _said(step)
        missing.discard(said["node"])
        if not address:
            address = said["address"]
            step.stdin.write(f"{address}\n".encode())
    return address


async def _said(step: Process) -> dict[str, Any]:
    """The next report of a node. Raises ClusterUnavailable where one could not start, or no more will come."""
    assert step.stdout is not None
    while line := await step.stdout.readline():
        said = _report(line)
        if said is None:
            _pass_on(line)
        elif "error" in said:
            raise ClusterUnavailable(
                f"Ray could not be started on {said['node']}: {said['error']}",
                "look at memory, disk and open files of this node",
                code="slurm.node-failed",
            )
        else:
            return said
    raise ClusterUnavailable(
        f"srun ended with exit code {await step.wait()} before the job's Ray was up",
        "the lines above say why",
        code="slurm.srun-ended",
    )


def _report(line: bytes) -> dict[str, Any] | None:
    """None of a line that no node has written: a TaskProlog of the site may print there, too."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and "node" in said else None


def _pass_on(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()


async def _drive(command: Sequence[str], asked: asyncio.Event) -> int:
    """Run the command to its end, and ask it once to end when the job is asked to. Its exit code, as a shell tells it."""
    driver = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, preexec_fn=end_with_parent)
    ended, told = asyncio.create_task(driver.wait()), asyncio.create_task(asked.wait())
    await asyncio.wait((ended, told), return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        driver.send_signal(signal.SIGINT)
    told.cancel()
    code = await ended
    return code if code >= 0 else 128 - code


async def _pass_on_errors(step: Process) -> None:
    assert step.stderr is not None
    while line := await step.stderr.readline():
        _pass_on(line)
