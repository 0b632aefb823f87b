"""A private Ray that other machines reach is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from orchestrator.cluster.sessions import listening, local
from orchestrator.cluster.sessions.local import LocalRay
from tests.refusals import refused

pytestmark = pytest.mark.slow

LISTENER = """
import socket, sys
server = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
server.bind((sys.argv[1], 0))
server.listen()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listener(host: str) -> Iterator[int]:
    """A child that listens there; gives its port."""
    command = [sys.executable, "-I", "-S", "-c", LISTENER, host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.communicate()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_child_that_listens_to_other_machines_is_seen(host: str) -> None:
    with listener(host) as port:
        found = [each for each in listening.beyond_loopback() if each.endswith(f" at {host}:{port}")]
    assert len(found) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1", "::1"])
def test_one_that_listens_to_this_machine_is_not(host: str) -> None:
    with listener(host) as port:
        assert [each for each in listening.beyond_loopback() if each.endswith(f":{port}")] == []


def test_a_ray_that_other_machines_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_new_folder", lambda: tmp_path / "ray")
    monkeypatch.setattr(local, "_remove_abandoned", lambda: None)
    monkeypatch.setattr(local, "prepare_environment", lambda _address: None)
    with ExitStack() as stack:
        stack.enter_context(listener("0.0.0.0"))  # was there before
        ports: list[int] = []
        start = lambda *_arguments, **_options: ports.append(stack.enter_context(listener("0.0.0.0")))  # noqa: E731
        monkeypatch.setattr(local, "enter", start)
        with refused("ray.open-to-others") as caught:
            LocalRay(1.0, 60.0).__enter__()
    assert str(caught.value).count(" at 0.0.0.0:") == 1
    assert f" at 0.0.0.0:{ports[0]}" in str(caught.value)
    assert "ray==2.60.*" in str(caught.value.remedy)


def test_a_machine_without_its_loopback_is_told_at_once() -> None:
    code = "from orchestrator.cluster.sessions.local import LocalRay; LocalRay(1, 60.0).__enter__()"
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "cannot reach each other at 127.0.0.1: [Errno 101] Network is unreachable" in ended.stderr
