"""Running Rays to join: several nodes on this machine, and hosts made of network namespaces."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.cli.alone import Alone, alone
from tests.projects import PATIENCE_S, REPOSITORY, Project, make_digits

SHORT = ("conf=digits", "run.steps=12", "evaluation.every=5", "output=json")


@dataclass(frozen=True)
class Joined:
    """A running Ray. access: the environment with which a driver may join it; folder: of its files."""

    address: str
    access: dict[str, str]
    process: subprocess.Popen[str]
    folder: Path

    def kill(self, program: str) -> None:
        """The processes of this Ray that run it."""
        token = self.access["RAY_AUTH_TOKEN"].encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
                if Path(name).name == program and token in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)

    def kill_relay(self) -> int | None:
        """One process of this Ray that hands on reports of members; returns its id, None where there is none."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "cmdline").read_bytes().startswith(b"ray::RelayActor"):
                    raylet = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                    if self.access["RAY_AUTH_TOKEN"].encode() in Path("/proc", raylet, "environ").read_bytes():
                        os.kill(int(folder.name), signal.SIGKILL)
                        return int(folder.name)
        return None

    def kill_last_node(self) -> None:
        self._tell("remove")

    def add_node(self, size: str) -> None:
        self._tell(f"add {size}")

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@dataclass(frozen=True)
class Hosts:
    """Two hosts or more. inside: what starts a command on the first; there: and in this folder of the last; far: the last one's
    namespace and its end of the cable; wire: what carries their frames, where a program does; join: starts the last one's
    node again, after it was lost; names: of their namespaces."""

    address: str
    access: dict[str, str]
    inside: tuple[str, ...]
    there: tuple[str, ...]
    far: tuple[str, str]
    join: Callable[[], None]
    names: tuple[str, ...]
    wire: subprocess.Popen[str] | None = None

    def lose_last(self) -> None:
        end_all_inside(self.far[0])

    def lose_first(self) -> None:
        """The head."""
        end_all_inside(self.names[0])

    def cable(self, state: Literal["up", "down"]) -> None:
        """At the last host. To the others it looks like silence."""
        name, end = self.far
        ip("-n", name, "link", "set", end, state)


def new_access() -> dict[str, str]:
    """The user's own token, which an orchestrator that joins must leave alone."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def at_home(digits: Project) -> Alone:
    """The result of the short run without any Ray."""
    return alone(digits, "digits", *SHORT[1:])


@contextlib.contextmanager
def raylets(*sizes: int | str) -> Iterator[Joined]:
    """A Ray with a node for each number of CPUs; "2:1": and with what it says are GPUs."""
    access = new_access()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    folder = Path(tempfile.mkdtemp(prefix="raylets-", dir="/tmp"))  # short, because Unix sockets lie in it
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.raylets", *map(str, sizes)],
        cwd=REPOSITORY,
        env={**inherited, **access, "PYTHONPATH": str(REPOSITORY), "RAY_TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Joined(wait_for_line(process, "address ").split()[1], access, process, folder)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Joined]:
    """And the driver's, which has no room, so that the trained weights come from another node."""
    with raylets(0, 2, 2) as joined:
        yield joined


@contextlib.contextmanager
def some_hosts(
    hidden: Path,
    *,
    cpus: Sequence[int] = (2, 2),
    of_first: bool = False,
    home: Path | None = None,
    variables: Mapping[str, str] | None = None,
    wire: Sequence[str] | None = None,
    mark: str | None = None,
) -> Iterator[Hosts]:
    """Two network namespaces joined by a cable, each with a raylet of so many CPUs. The second sees empty folders where the
    first has its project and its Ray's files, as on another machine. of_first: the first sees none of the project instead;
    home: of the user on both; variables: of both raylets; wire: a command that carries frames between all interfaces, which
    are appended to it, in place of the cable, after it was run with "plain" and each host's interface; it says "ready". With it
    there may be more hosts than two. mark: in the names of namespaces and folders."""
    assert len(cpus) == 2 or wire is not None
    mark = f"orchestrator-{os.getpid()}" if mark is None else mark
    names = [f"{mark}-{side}" for side in string.ascii_lowercase[: len(cpus)]]
    between = [] if wire is None else [f"{mark}-wire"]
    cables = [f"o{os.getpid()}{name[-1]}" for name in names]
    folder = Path(tempfile.mkdtemp(prefix=f"{mark}-", dir="/tmp"))
    access = new_access() | ({} if home is None else {"HOME": str(home)}) | dict(variables or {})
    processes: list[subprocess.Popen[str]] = []
    try:
        for name in (*names, *between):
            ip("netns", "add", name)
        carrier = None if wire is None else _carried(names, between[0], cables, wire)
        if carrier is None:
            _join_ends((names[0], cables[0]), (names[1], cables[1]))
        else:
            processes.append(carrier)
        for number, (name, cable) in enumerate(zip(names, cables, strict=True), 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        common = "--object-store-memory=83886080 --disable-usage-stats --block"
        ray = f"exec {sys.executable} -m ray.scripts.scripts start {common}"

        def join(number: int = len(cpus) - 1) -> None:
            hiding = [hidden] * ((number == 0) == of_first) + [folder] * (number > 0)
            away = " && ".join([*(f"mount -t tmpfs none {path}" for path in hiding), "cd /"])
            head = f"--head --port=6379 --include-dashboard=false --temp-dir={folder}"
            node = f"--num-cpus={cpus[number]} --node-ip-address=10.77.0.{number + 1}"
            where = "--address=10.77.0.1:6379" if number else head
            processes.append(start_inside(names[number], f"{away} && {ray} {node} {where}", access))
            wait_for_line(processes[-1], "Ray runtime started")

        for number in range(len(cpus)):
            join(number)
        there = ("nsenter", f"--target={processes[-1].pid}", "--mount", "--net", "env", f"--chdir={hidden}")
        inside = ("ip", "netns", "exec", names[0])
        yield Hosts("10.77.0.1:6379", access, inside, there, (names[-1], cables[-1]), join, tuple(names), carrier)
    finally:
        for name in (*names, *between):
            end_all_inside(name)
        for process in processes:
            process.wait()
        for name in (*names, *between):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _join_ends(one: tuple[str, str], other: tuple[str, str]) -> None:
    """By a cable. one, other: a namespace and the name of its end."""
    ip("link", "add", one[1], "netns", one[0], "type", "veth", "peer", "name", other[1], "netns", other[0])


def _carried(names: Sequence[str], between: str, cables: Sequence[str], wire: Sequence[str]) -> subprocess.Popen[str]:
    """All hosts' cables end in one more namespace, where a program carries frames from one to another."""
    ports = [f"{cable}w" for cable in cables]
    for name, cable, port in zip(names, cables, ports, strict=True):
        _join_ends((name, cable), (between, port))
        ip("-n", between, "link", "set", port, "up")
        subprocess.run(["ip", "netns", "exec", name, *wire, "plain", cable], cwd=REPOSITORY, check=True)
    process = subprocess.Popen(
        ["ip", "netns", "exec", between, *wire, *ports],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for_line(process, "ready")
    return process


def start_inside(name: str, script: str, access: dict[str, str]) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return subprocess.Popen(
        ["ip", "netns", "exec", name, "unshare", "--mount", "sh", "-c", script],
        env={**inherited, **access, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def end_all_inside(name: str) -> None:
    """Kill what runs in a namespace, until nothing does."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        listed = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
        if not listed.stdout.split():
            return
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        threading.Event().wait(0.05)


def wait_for_line(process: subprocess.Popen[str], part: str) -> str:
    """The first line of its stdout that contains `part`; the rest is read and dropped."""
    found: queue.Queue[str] = queue.Queue()
    said: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                said.append(line)
                if part in line:
                    found.put(line)
        found.put("")

    threading.Thread(target=read, daemon=True).start()
    line = ""
    with contextlib.suppress(queue.Empty):  # what it has said so far tells more
        line = found.get(timeout=PATIENCE_S)
    assert line, "".join(said)
    return line
