"""A server forks what is asked for and as who asks is, refuses the rest, and is gone when it has to be."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from orchestrator.cluster.forkserver import client, server
from orchestrator.numerics import determinism
from tests.projects import PATIENCE_S, REPOSITORY

pytestmark = pytest.mark.slow

TELLING = """
import json, os, random, sys
found = {name: os.environ.get(name) for name in ("OF_WHO_ASKS", "OF_THE_IMPORT")}
found |= {"argv": sys.argv[1:], "folder": os.getcwd(), "umask": os.umask(0), "group": os.getpgid(0) == os.getpid()}
found |= {"random": random.random(), "path": sys.path, "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1]}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""
CHILD = """
import os, subprocess, sys
def main():
    child = subprocess.Popen(["sleep", "10000"])
    with open(sys.argv[1], "w") as file:  # a FIFO: from here on the test knows it
        file.write(str(child.pid))
    with open(sys.argv[1]) as file:
        file.read()
    child.kill()
    return 7
"""


@dataclass
class Light:
    place: Path
    process: subprocess.Popen[str]
    folder: Path

    def ask(self, message: Mapping[str, Any]) -> client.Message | None:
        with self.connected() as connection:
            return client.ask(connection, dict(message))

    def is_heard(self) -> bool:
        """Whether it answers, and so has done with all that was asked before."""
        return "refused" in (self.ask({**worker(), "interpreter": "/bin/python"}) or {})

    def connected(self) -> socket.socket:
        connection = client.connected(str(self.place))
        assert connection is not None
        return connection

    def telling(self, name: str) -> client.Message:
        """A request for a process that writes what it is to a file of this name."""
        script = self.folder / "telling.py"
        script.write_text(TELLING)
        return worker(str(script), str(self.folder / name))

    def told(self, name: str) -> dict[str, Any]:
        answer = self.ask(self.telling(name))
        assert answer is not None
        ended(answer["forked"])
        found: dict[str, Any] = json.loads((self.folder / name).read_text())
        return found

    def child(self, connection: socket.socket) -> tuple[int, int, Path]:
        """A child that goes on: its process, that of its own child, and the file which it waits for."""
        (self.folder / "asked_for.py").write_text(CHILD)
        waits = self.folder / "waits"
        os.mkfifo(waits)
        more = {"program": "asked_for", "path": [str(self.folder), *sys.path]}
        answer = client.ask(connection, {**worker("asked_for", str(waits)), **more})
        assert answer is not None
        return answer["forked"], int(waits.read_text()), waits

    @property
    def children(self) -> list[str]:
        pid = self.process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def worker(*argv: str) -> client.Message:
    return {"argv": list(argv), "environ": dict(os.environ), "interpreter": sys.executable}


def ended(process: int) -> None:
    """Returns once it has."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            assert select.select([descriptor], [], [], PATIENCE_S)[0]
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def started(folder: Path, *modules: str) -> Iterator[Light]:
    place = folder / "s.sock"
    command = [sys.executable, "-m", "tests.cluster.forkserver.light", str(place), str(folder), *modules]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, process_group=0
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield Light(place, process, folder)
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)


@pytest.fixture
def light(tmp_path: Path) -> Iterator[Light]:
    (tmp_path / "imported.py").write_text(
        "import os\nos.environ['OF_THE_IMPORT'] = 'there'\nseen = os.environ.get('READ')"
    )
    with started(tmp_path, "imported") as found:
        yield found


def test_what_is_forked_is_as_who_asks(light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OF_WHO_ASKS", "here")
    before = os.umask(0o027)
    try:
        first, second = light.told("first"), light.told("second")
    finally:
        os.umask(before)
    assert first.pop("random") != second.pop("random")
    assert first.pop("path")[0] == str(tmp_path)
    second.pop("path")
    assert first == {
        "OF_WHO_ASKS": "here",
        "OF_THE_IMPORT": "there",
        "argv": [str(tmp_path / "first")],
        "folder": str(folder),
        "umask": 0o027,
        "group": True,
        "descriptors": [0, 1, 2],
    }


@pytest.mark.parametrize("hears", [True, False])
def test_what_nobody_waits_for_any_more_never_begins(light: Light, hears: bool) -> None:
    """The asking process may have begun by itself, for it has waited for too long, or have been killed."""
    with light.connected() as connection, light.place.parent.joinpath("any").open("w") as nothing:
        descriptors = [nothing.fileno()] * 3 + [folder := os.open(".", os.O_RDONLY)]
        client.send(connection, light.telling("begun"), descriptors)
        os.close(folder)
        if hears:
            assert "forked" in (client.receive(connection)[0] or {})
    assert light.is_heard()  # it has been forked by now
    for process in light.children:
        ended(int(process))
    assert light.told("other")["argv"] == [str(light.folder / "other")]  # the server goes on, and is one
    assert light.is_heard()
    assert light.children == []
    assert not (light.folder / "begun").exists()


def test_what_would_be_another_process_is_refused_with_the_reason(
    light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = light.telling("never")
    other = {**asked, "environ": {**os.environ, "READ": "another", "LC_ALL": "C.UTF-8", "UNREAD": "1"}}
    assert light.ask(other) == {"refused": "other values of LC_ALL, READ"}
    assert light.ask({**asked, "interpreter": "/bin/python"}) == {"refused": "another interpreter: /bin/python"}
    assert light.ask({"argv": []}) is None
    for nonsense in (b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\1x"):
        with light.connected() as connection:
            connection.sendall(nonsense)
            assert connection.recv(1) == b""
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "imported.py").touch()
    monkeypatch.chdir(tmp_path / "hiding")
    assert light.ask(asked) == {"refused": "imported.py in the working directory hides a library"}
    assert not (tmp_path / "never").exists()


def test_ray_is_imported_once_with_the_variables_of_who_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are forked from it only if they have the same ones, and the same that it has read."""
    (tmp_path / "of_ray.py").write_text(
        "import os, sys\nsys.path.insert(0, '/of/ray')\nos.environ['OF_THE_IMPORT'] = os.environ['RAY_TOKEN']\n"
        "os.environ.get('SEEN')\n"
    )
    monkeypatch.setenv("RAY_TOKEN", "of the raylet")
    with started(tmp_path, "of_ray") as light:
        assert light.told("first")["OF_THE_IMPORT"] == "of the raylet"
        monkeypatch.setenv("UNREAD", "1")
        assert light.told("second")["path"][:2] == ["/of/ray", str(tmp_path)]
        asked = light.telling("never")
        assert light.ask({**asked, "environ": {**os.environ, "RAY_TOKEN": "2"}}) == {
            "refused": "other values of RAY_TOKEN"
        }
        assert light.ask({**asked, "environ": {**os.environ, "RAY_b": "2"}}) == {"refused": "other values of RAY_b"}
        assert light.ask({**asked, "environ": {**os.environ, "SEEN": "2"}}) == {"refused": "other values of SEEN"}
        assert light.is_heard()


def test_where_ray_cannot_be_imported_workers_begin_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "of_ray.py").write_text("raise ImportError('damaged')\n")
    with started(tmp_path, "of_ray") as light:
        assert light.ask(light.telling("never")) == {"refused": "Ray cannot be imported: damaged"}
        assert light.process.wait(PATIENCE_S) == 0


def test_after_a_file_has_changed_it_refuses_and_ends(light: Light) -> None:
    module = light.folder / "imported.py"
    module.write_text("changed = True\n")
    assert light.ask(light.telling("never")) == {"refused": f"{module} has changed since it was imported"}
    assert light.process.wait(PATIENCE_S) == 0
    assert not light.place.exists()


def test_a_server_that_nobody_finds_any_more_still_tells_how_a_child_ended(light: Light) -> None:
    with light.connected() as connection:
        _, _, waits = light.child(connection)
        (light.folder / "imported.py").write_text("changed = True\n")
        assert "refused" in (light.ask(light.telling("never")) or {})
        assert not light.place.exists()
        waits.write_text("go on")
        status, _ = client.receive(connection)
    assert status == {"status": 7 << 8}
    assert light.process.wait(PATIENCE_S) == 0


def test_how_a_child_was_killed_is_told(light: Light) -> None:
    with light.connected() as connection:
        process, child, _ = light.child(connection)
        os.kill(process, signal.SIGKILL)
        assert client.receive(connection)[0] == {"status": signal.SIGKILL}
    os.kill(child, signal.SIGKILL)


def test_a_child_and_its_group_end_with_its_parent(light: Light) -> None:
    with light.connected() as connection:
        process, child, _ = light.child(connection)
    ended(process)
    ended(child)


def test_a_child_outlives_a_server_that_is_killed(light: Light) -> None:
    with light.connected() as connection:
        process, _, waits = light.child(connection)
        light.process.kill()
        light.process.wait()
        waits.write_text("go on")
        ended(process)
        assert client.receive(connection)[0] is None


def test_generators_that_all_processes_have_begin_anew() -> None:
    with determinism.left_as_it_was():
        before = (
            random.getstate(),
            numpy.random.get_state(legacy=False)["state"]["key"].tolist(),
            torch.get_rng_state().tolist(),
        )
        server._seed_anew()
        after = (
            random.getstate(),
            numpy.random.get_state(legacy=False)["state"]["key"].tolist(),
            torch.get_rng_state().tolist(),
        )
    assert [first == second for first, second in zip(before, after, strict=True)] == [False] * 3


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    with started(tmp_path) as light:
        assert light.place.exists()
    assert (light.process.returncode, light.place.exists()) == (0, False)


ASKING = """
import importlib, sys
OF_A_GPU = {"_lazy_init", "init", "is_available", "device_count", "_device_count_nvml", "get_device_properties"}
asked = set()
def seen(frame, event, _):
    if event == "call" and frame.f_code.co_name in OF_A_GPU and frame.f_code.co_filename.endswith("torch/cuda/__init__.py"):
        asked.add(f"{frame.f_code.co_name}, from {frame.f_back.f_code.co_filename}")
from orchestrator.cluster.forkserver import server
sys.setprofile(seen)
for name, _, function in (each.partition(":") for each in (*server.LOADED, *server.OF_RAY, *server.WITH_RAY)):
    module = importlib.import_module(name)
    if function:
        getattr(module, function)()
sys.setprofile(None)
assert not asked, asked
assert "cuda.bindings" not in sys.modules
"""


@pytest.mark.long
def test_nothing_that_a_server_imports_asks_for_a_gpu() -> None:
    """With CUDA started, or its library open, no process that is forked could compute on a GPU."""
    subprocess.run([sys.executable, "-c", ASKING], cwd=REPOSITORY, check=True)


def test_a_process_is_told_its_gpu_after_it_was_forked(light: Light) -> None:
    """As Ray does, to each of two that share one: in the variables of Python, from which C reads them."""
    (light.folder / "told.py").write_text(
        "import ctypes, os, sys\nos.environ['CUDA_VISIBLE_DEVICES'] = sys.argv[2]\n"
        "read = ctypes.CDLL(None).getenv\nread.restype = ctypes.c_char_p\n"
        "open(sys.argv[1], 'wb').write(read(b'CUDA_VISIBLE_DEVICES'))\n"
    )
    for file, gpu in (("one", "0"), ("other", "0"), ("third", "GPU-3a")):
        answer = light.ask(worker(str(light.folder / "told.py"), str(light.folder / file), gpu))
        assert answer is not None
        ended(answer["forked"])
        assert (light.folder / file).read_text() == gpu
