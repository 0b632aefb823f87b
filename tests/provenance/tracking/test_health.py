"""Whether a server says that it is well, asked of servers that answer this and that."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from orchestrator.provenance.tracking import health
from orchestrator.provenance.tracking.health import is_open, is_well


@contextmanager
def answering(status: int, text: bytes) -> Iterator[tuple[str, list[str]]]:
    """Its address, without the scheme, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_is_well_says_so_below_its_own_path_and_without_credentials() -> None:
    with answering(200, b"OK") as (address, asked):
        assert is_well(f"http://{address}")
        assert is_well(f"http://{address}/")
        assert is_well(f"http://someone:word@{address}/mlflow/")
    assert asked == ["/health", "/health", "/mlflow/health"]


@pytest.mark.parametrize(("status", "text"), [(401, b"OK"), (404, b"OK"), (500, b"OK"), (200, b"OKAY"), (200, b"")])
def test_what_else_a_server_may_answer_says_nothing(status: int, text: bytes) -> None:
    with answering(status, text) as (address, _):
        assert not is_well(f"http://{address}")


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, b'{"experiments": []}', True),
        (401, b"{}", False),
        (200, b"<html>Sign in</html>", False),
        (200, b"", False),
    ],
)
def test_a_server_is_open_if_everybody_may_read_its_experiments(status: int, text: bytes, expected: bool) -> None:
    with answering(status, text) as (address, asked):
        assert is_open(f"http://someone:word@{address}/mlflow/") is expected
    assert asked == ["/mlflow/api/2.0/mlflow/experiments/search?max_results=1"]


def test_who_does_not_answer_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is closed, one that takes calls and is silent, one that speaks another protocol, and no address at all."""
    monkeypatch.setattr(health, "_PATIENCE_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not is_well(closed)
        silent.listen()
        assert not is_well(closed)
    with answering(200, b"OK") as (address, _):
        assert not is_well(f"https://{address}")
    assert not is_well("http://127.0.0.1:none")
    assert not is_well("http://")
