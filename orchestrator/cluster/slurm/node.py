"""One node of a job's Ray: python -m orchestrator.cluster.slurm.node HEAD CPUS START_TIMEOUT_S, started by srun on every node.

It lasts until its stdin ends. When Slurm ends a job, all its processes get SIGTERM, and Ray's would be gone before the command
has saved a checkpoint; so they inherit it blocked, and are killed when the command has ended. The system chooses every port,
and no file is another Ray's, so that jobs and launches of one user may share a node.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from orchestrator.cluster.sessions import folders, gpus
from orchestrator.cluster.sessions.environment import patient
from orchestrator.cluster.slurm.host import address_towards, end_with_parent

_LOOK_S = 0.1
_BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ADDRESS = "ray_current_cluster"  # the file that `ray start` writes when its node is up
_OUTPUT = "ray_start.log"
_LAST_CHARACTERS = 2000  # of that output, for who has to find out why it failed
_OBJECT_STORE_BYTES = 128 * 2**20  # only the trained weights travel through it
_COMMON = (
    *("--block", "--disable-usage-stats", f"--object-store-memory={_OBJECT_STORE_BYTES}"),
    *("--min-worker-port=0", "--max-worker-port=0", "--node-manager-port=0", "--object-manager-port=0"),
    "--dashboard-agent-listen-port=0",
)
_HEAD = ("--head", "--port=0", "--include-dashboard=false")


def main(head: str, cpus: int, timeout_s: float) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    where = _as_head(head) if os.environ["SLURM_PROCID"] == "0" else _beside(head)
    if where is None:
        return 0
    folders.remove_abandoned()
    folder = folders.new()
    try:
        with patient(timeout_s):
            ray = _start(folder, ["ray", "start", *where, *_COMMON, f"--num-cpus={cpus}", *_gpus()])
        return _hold(ray, folder)
    finally:
        folders.remove(folder)


def _gpus() -> list[str]:
    counted = gpus.for_ray()
    return [] if counted is None else [f"--num-gpus={counted}"]


def _as_head(address: str) -> list[str]:
    # If gRPC is installed, a head has a server for clients elsewhere, which knows no port 0.
    clients = [f"--ray-client-server-port={_free_port(address)}"] if importlib.util.find_spec("grpc") else []
    return [*_HEAD, f"--node-ip-address={address}", *clients]


def _free_port(address: str) -> int:
    with socket.socket() as found:
        found.bind((address, 0))
        port: int = found.getsockname()[1]
        return port


def _beside(head: str) -> list[str] | None:
    """Once the head is up; None where it never is."""
    address = os.read(sys.stdin.fileno(), select.PIPE_BUF).decode().strip()
    return [f"--address={address}", f"--node-ip-address={address_towards(head)}"] if address else None


def _start(folder: Path, command: list[str]) -> subprocess.Popen[bytes]:
    with (folder / _OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [*command, f"--temp-dir={folders.of_ray(folder)}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=end_with_parent,
        )


def _hold(ray: subprocess.Popen[bytes], folder: Path) -> int:
    """Say when it is up, or that it could not start, and keep it until nobody needs it."""
    is_told = False
    while not _is_over():
        if ray.poll() is not None:
            _say(error=_why(ray.returncode, folder))
            return 1
        if not is_told and (address := _address(folder)):
            _say(address=address)
            is_told = True
    ray.kill()
    ray.wait()
    return 0


def _address(folder: Path) -> str:
    """Empty before Ray has written it into its file."""
    file = folders.of_ray(folder) / _ADDRESS
    return file.read_text().strip() if file.exists() else ""


def _is_over() -> bool:
    """Whether stdin has ended; looks for it a moment long."""
    readable, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
    return bool(readable) and not os.read(sys.stdin.fileno(), select.PIPE_BUF)


def _why(code: int, folder: Path) -> str:
    output = (folder / _OUTPUT).read_text(errors="replace").strip()[-_LAST_CHARACTERS:]
    return f"`ray start` ended with exit code {code}\n{output}"


def _say(**report: str) -> None:
    print(json.dumps({"node": os.environ["SLURMD_NODENAME"], **report}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
