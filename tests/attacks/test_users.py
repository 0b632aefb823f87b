"""A run beside another user of the machine, who looks at its processes, memory, files, sockets and ports, and calls there.

These tests add a user (`useradd`), so they need root, and `ss` of Debian's package iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.sessions import folders
from orchestrator.common import locks, processes
from orchestrator.data.files.cache import Cache
from orchestrator.driver.folders import RunFolder
from orchestrator.provenance.code import checkout
from tests.cli.alone import Alone, alone, assert_as_alone
from tests.cli.watching import WatchedRun
from tests.projects import MARK, Project, make_digits

RUN = ("conf=digits", "run.steps=1500", "evaluation.every=100", "cluster.workers=2", "output=json")
GARBAGE = [
    b"\0" * 64,
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x04" * 20,
    b"\x16\x03\x01\xff\xff" + b"x" * 300,
    struct.pack("=Iqii32s", 0x6F726368, 0, 0, 1, b"n" * 32) + b"\xff" * 4096,  # a hello of member 0, and any proof
    struct.pack("=IBBHqqiiiiQQq", 0x6F726366, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 60, 0),  # a frame of 2**60 numbers
]
_PTRACE_ATTACH = 16


@dataclass(frozen=True)
class Attacker:
    """Another user of this machine."""

    uid: int
    gid: int

    def does(self, attack: Callable[[], Any]) -> Any:
        """The result of an attack in a process of theirs, which has no right that this one has. As JSON."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(self.gid, self.gid, self.gid)
                os.setresuid(self.uid, self.uid, self.uid)
                os.write(writing, json.dumps(attack()).encode())
                code = 0
            os._exit(code)
        os.close(writing)
        with open(reading, "rb") as stream:
            said = stream.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
        return json.loads(said)


@pytest.fixture(scope="module")
def attacker() -> Iterator[Attacker]:
    name = f"attacker-{secrets.token_hex(4)}"
    subprocess.run(["useradd", "--system", "--no-create-home", "--shell", "/bin/false", name], check=True)
    try:
        number, group = (
            int(subprocess.run(["id", which, name], capture_output=True, text=True, check=True).stdout)
            for which in ("-u", "-g")
        )
        yield Attacker(number, group)
    finally:
        subprocess.run(["userdel", name], check=True)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def undisturbed(digits: Project) -> Alone:
    return alone(digits, "digits", *RUN[1:])


def of(project: Project) -> list[int]:
    """The processes of its commands."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={project.mark}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def looked_into(pids: list[int]) -> list[str]:
    """The parts of processes that could be read, and the calls upon them that succeeded."""
    got = []
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in pids:
        for name in ("environ", "mem", "maps", "auxv", "stack"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                if file.read(1):
                    got.append(f"{pid} {name}")
        for name in ("fd", "map_files", "cwd", "root"):
            with contextlib.suppress(OSError):
                os.listdir(f"/proc/{pid}/{name}")  # noqa: PTH208
                got.append(f"{pid} {name}")
        for number in (0, signal.SIGTERM):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                got.append(f"{pid} signal {number}")
        if libc.ptrace(_PTRACE_ATTACH, pid, None, None) == 0:
            got.append(f"{pid} ptrace")
    return got


def read_below(tops: list[str], owner: int) -> list[str]:
    """Files and sockets of that owner which could be opened, below folders that everybody may enter."""
    got = []
    for top in tops:
        for folder, _, files in os.walk(top):
            for name in files:
                place = os.path.join(folder, name)  # noqa: PTH118
                with contextlib.suppress(OSError):
                    if os.stat(place).st_uid == owner and os.open(place, os.O_RDONLY | os.O_NONBLOCK) >= 0:  # noqa: PTH116
                        got.append(place)
    return got


def called(addresses: list[Any]) -> dict[str, int]:
    """How many bytes came back from each address, over all kinds of garbage. Written as text."""
    answered: dict[str, int] = {}
    for address in addresses:
        where = f"\0{address}" if isinstance(address, str) else tuple(address)
        total = 0
        for garbage in GARBAGE:
            family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as caller:
                caller.settimeout(0.3)
                caller.connect(where)
                caller.sendall(garbage)
                total += len(caller.recv(4096))
        answered[str(address)] = total
    return answered


def abstract_sockets() -> list[str]:
    """The names of members' sockets in the abstract namespace."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sorted({line.rpartition("@")[2] for line in lines if "@orchestrator-" in line})


def listening(pids: list[int]) -> list[tuple[str, int]]:
    """The TCP addresses at which these processes listen, as `ss` prints them."""
    told = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    found = []
    for line in told.splitlines():
        owners = {int(pid) for pid in re.findall(r"pid=(\d+)", line)}
        host, _, port = line.split()[3].removeprefix("[::ffff:").replace("]:", ":").rpartition(":")
        if owners & set(pids):
            found.append((host, int(port)))
    return sorted(found)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_another_user_sees_nothing_of_a_run_and_changes_nothing(
    digits: Project, undisturbed: Alone, attacker: Attacker, transport: str
) -> None:
    Path(digits.temporary).chmod(0o755)  # as /tmp is: what protects is not this folder
    shm_before = {each.name for each in Path("/dev/shm").iterdir()}
    names_before = set(abstract_sockets())
    run = WatchedRun(digits, *RUN, f"transport={transport}")
    run.wait_for_steps(5)
    pids, me = of(digits), os.getuid()
    (head,) = Path(digits.temporary).glob("orc-*/*/session_2*/gcs_server_port_*")
    assert len(pids) >= 5
    assert attacker.does(lambda: looked_into(pids)) == []
    assert attacker.does(lambda: read_below([digits.temporary], me)) == []
    scratch = [str(each) for each in Path(digits.temporary).glob("orc-*")]
    assert scratch
    assert attacker.does(lambda: [each for each in scratch if os.access(each, os.R_OK | os.X_OK)]) == []
    for name in {each.name for each in Path("/dev/shm").iterdir()} - shm_before:
        with contextlib.suppress(FileNotFoundError):
            assert Path("/dev/shm", name).stat().st_mode & 0o077 == 0, name
    names = sorted(set(abstract_sockets()) - names_before)
    assert names
    assert set(attacker.does(lambda: called(names)).values()) == {0}
    ports = listening(pids)
    assert {host for host, _ in ports} == {"127.0.0.1"}, ports
    attacker.does(lambda: called(ports))
    assert_refused(int(head.read_text()))
    done = run.end()
    assert_as_alone(digits, done, undisturbed)
    assert digits.leftovers() == []


JOIN = """
import sys
import ray
ray.init(address=f"127.0.0.1:{sys.argv[1]}", logging_level="critical", log_to_driver=False)
print("joined")
"""


def assert_refused(port: int) -> None:
    """Nobody joins a private Ray without its token, or with another one. (Ray calls again and again, for minutes.)"""
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for access in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        command = ["timeout", "20", sys.executable, "-c", JOIN, str(port)]
        done = subprocess.run(command, env={**others, **access}, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "joined" not in done.stdout


def locked(places: list[str]) -> list[str]:
    """Those that could be locked, which takes no right to write."""
    got = []
    for place in places:
        with contextlib.suppress(OSError):
            fcntl.flock(os.open(place, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            got.append(place)
    return got


@pytest.mark.slow
@pytest.mark.root
def test_who_may_read_a_project_locks_nothing_of_it(attacker: Attacker) -> None:
    """Else a launch would wait for them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "mlflow.lock").touch(0o644)  # of an older version
        with (
            locks.held(folder / "mlflow.lock"),
            Cache(folder / "cache", 1)._deciding(),
        ):
            RunFolder(folder, "a").lease()
        with checkout.disposable_folder(folder / "worktrees") as place:
            found = [str(place), *(str(each) for each in folder.rglob("*") if each.is_file())]
            assert len(found) == 5
            assert attacker.does(lambda: read_below([name], os.getuid())) == []
            assert attacker.does(lambda: locked(found)) == []


def test_the_folder_of_a_process_that_is_not_seen_here_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may share /tmp, and machines the folder that TMPDIR names. They do not see each other's processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path) if len(str(tmp_path)) < 18 else "/tmp")
    here, there = folders.new(), folders.new()
    process = subprocess.Popen(["true"])
    process.wait()
    own, name = processes.namespace(), os.uname().nodename
    assert name in own, "the first namespace of each machine has one number"
    elsewhere = []
    for namespace in ("pid:[1]", own.replace(name, "another")):
        with monkeypatch.context() as other:
            other.setattr(processes, "namespace", lambda told=namespace: told)
            elsewhere.append(folders.new())
    moved = [each.rename(each.with_name(f"orc-{process.pid}-{each.name[-4:]}")) for each in (here, *elsewhere)]
    try:
        folders.remove_abandoned()
        assert [each.exists() for each in (*moved, there)] == [False, True, True, True]
    finally:
        for each in (*moved, there):
            folders.remove(each)


def test_a_folder_that_another_container_is_making_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(["true"])
    process.wait()
    new, old = (tmp_path / f"orc-{process.pid}-{name}" for name in ("new", "old"))
    for each in (new, old):
        each.mkdir()  # and then the file that says where the id counts
    os.utime(old, (0, 0))
    folders.remove_abandoned()
    assert [each.exists() for each in (new, old)] == [True, False]


def test_what_others_put_beside_the_folders_of_a_ray_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in /tmp with the name of a folder that is abandoned, to one of this user's: it is no such folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, process = tmp_path / "mine", subprocess.Popen(["true"])
    process.wait()
    (mine / "deeper").mkdir(parents=True)
    (mine / "deeper" / "file").write_text("kept")
    (mine / folders.MEMBERS_LOCK).write_text("")
    link = tmp_path / f"orc-{process.pid}-x"
    link.symlink_to(mine)
    holder = subprocess.Popen(
        [shutil.which("tail") or "tail", "-f", str(mine / "deeper" / "file")], stdout=subprocess.DEVNULL
    )
    try:
        folders.remove_abandoned()
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.wait()
    assert (mine / "deeper" / "file").read_text() == "kept"
    assert link.is_symlink()
