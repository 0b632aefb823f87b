"""When the Ray that was joined counts as gone."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from ray.exceptions import RpcError

from orchestrator.cluster.sessions import joined
from orchestrator.cluster.sessions.joined import JoinedRay
from tests.refusals import refused


def call(ray: JoinedRay, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head, without the pauses between."""
    over = iter([False] * times + [True])
    monkeypatch.setattr(ray._over, "wait", lambda _seconds: next(over))
    ray._call_head()


def listening(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_a_head_that_is_called_in_vain_five_times_in_a_row_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as head:
        port = head.getsockname()[1]
        ray = JoinedRay(f"127.0.0.1:{port}")
        call(ray, 6, monkeypatch)
        assert ray.trouble() is None
    call(ray, 4, monkeypatch)
    assert ray.trouble() is None
    with listening(port):
        call(ray, 1, monkeypatch)
    call(ray, 4, monkeypatch)
    assert ray.trouble() is None
    call(ray, 1, monkeypatch)
    assert ray.trouble() == f"the head of the Ray at 127.0.0.1:{port} is gone: 5 calls in a row were in vain"


def test_who_calls_the_head_asks_ray_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray waits without end for a head that goes at that moment: the loss was seen by nobody, and a minute later Ray ended the
    driver."""
    monkeypatch.setattr(joined, "_draining_nodes", lambda _known: pytest.fail("it waits for Ray"))
    with listening() as head:
        ray = JoinedRay(f"127.0.0.1:{head.getsockname()[1]}")
        call(ray, 1, monkeypatch)
    call(ray, 5, monkeypatch)
    assert ray.is_headless


def test_a_head_whose_name_is_gone_with_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a service of Kubernetes: nobody was told, and Ray ended the driver after a minute."""
    ray, nobody = JoinedRay("localhost:1"), "Name or service not known"
    with listening() as head:
        head_thread = threading.Thread(target=answer_as_grpc, args=(head,))
        head_thread.start()
        ray._called = joined._reach(f"localhost:{head.getsockname()[1]}")
        head_thread.join()
    usual = socket.getaddrinfo

    def numbers_alone(host: str, *others: Any, **options: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, nobody)
        return usual(host, *others, **options)

    monkeypatch.setattr(socket, "getaddrinfo", numbers_alone)
    call(ray, 5, monkeypatch)
    assert ray.is_headless


def answer_as_grpc(head: socket.socket) -> None:
    connection, _ = head.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))


def test_who_insists_calls_a_head_as_often_as_a_run_under_way_before_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def refuses(address: str) -> socket.socket:
        called.append(address)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(joined, "_connected", refuses)
    monkeypatch.setattr(joined, "_CALL_S", 0.0)
    for insists, times in ((False, 1), (True, 5)):
        called.clear()
        with refused("ray.nobody-answers", "127.0.0.1:1"):
            JoinedRay("127.0.0.1:1", insists=insists).__enter__()
        assert len(called) == times


def test_a_call_that_never_left_says_nothing_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(_address: str) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(joined, "_connected", out_of_descriptors)
    ray = JoinedRay("127.0.0.1:1")
    call(ray, 9, monkeypatch)
    assert ray.trouble() is None


def test_a_server_of_another_kind_is_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a raylet, or whoever else speaks HTTP/2: Ray asks it in vain."""

    def asked(address: str) -> None:
        raise RpcError(f"RPC error: Deadline Exceeded, of {address}")  # type: ignore[no-untyped-call]

    monkeypatch.setattr("ray._raylet.GcsClient", asked)
    with refused("ray.no-head", "127.0.0.1:7"):
        joined._show_token("127.0.0.1:7")


def test_the_end_of_this_nodes_raylet_is_told_at_once() -> None:
    ray = JoinedRay("127.0.0.1:1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as raylet:
        ray._raylet = os.pidfd_open(raylet.pid)
        assert ray.trouble() is None
        raylet.kill()
        raylet.wait()
        assert ray.trouble() == "the raylet of this node of the Ray at 127.0.0.1:1 has ended"
    os.close(ray._raylet)
