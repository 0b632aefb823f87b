"""A server on this machine is reached whatever proxy is set for the network."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from orchestrator.driver.terminal import mlflow_ui


class Well(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Well) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_is_waited_for_without_the_proxy_of_the_network(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{mlflow_ui.free_port(None)}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(mlflow_ui, "_START_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        try:
            with tempfile.TemporaryFile() as log:
                mlflow_ui.wait_for(server, address, log)
        finally:
            server.kill()


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_who_talks_to_it_keeps_the_other_places_that_need_no_proxy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    proxies = {"http_proxy": "http://proxy:3128", "HTTP_PROXY": "http://proxy:3128"}
    for variable, value in {**proxies, **mlflow_ui.without_proxy({**proxies, name: "a.org"})}.items():
        monkeypatch.setenv(variable, value)
    assert [urllib.request.proxy_bypass(host) for host in ("127.0.0.1", "a.org", "b.org")] == [True, True, False]


def test_a_server_ends_with_the_block_in_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a rerun from Python, which may be in any."""
    monkeypatch.setattr(mlflow_ui, "server_command", lambda *_: ([sys.executable, "-c", "input()"], {}))

    def serve() -> int | None:
        with tempfile.TemporaryFile() as log, mlflow_ui.serving("a store", 1, log) as server:
            pass
        return server.returncode

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(serve).result() is not None
