"""A proxy passes everything on, until it is told to be in trouble; then requests meet what the dice say."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

import pytest

from campaign.proxies import Fate, Proxy


class Kept(ThreadingHTTPServer):
    """A server that keeps what was put there, whole or not."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Keeper)
        self.content = b""
        self.has_taken = threading.Event()


class _Keeper(BaseHTTPRequestHandler):
    server: Kept

    def do_PUT(self) -> None:
        self.server.content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.has_taken.set()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def kept() -> Iterator[Kept]:
    server = Kept()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def proxy(kept: Kept) -> Iterator[Proxy]:
    with closing(Proxy(f"http://127.0.0.1:{kept.server_port}", Random(1))) as made:
        yield made


def ask(proxy: Proxy, verb: str, content: bytes | None = None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request(verb, "/there", content)
        answer = connection.getresponse()
        return answer.status, answer.read()


def meet(proxy: Proxy, fate: Fate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "fate", lambda: fate)


def test_without_trouble_everything_is_passed_on(proxy: Proxy) -> None:
    assert ask(proxy, "PUT", b"0123456789") == (200, b"")
    assert ask(proxy, "GET") == (200, b"0123456789")
    assert proxy.met == {"passed": 2, "refused": 0, "done and refused": 0, "broken off": 0}


def test_a_request_is_refused_before_or_after_it_was_done(
    proxy: Proxy, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet(proxy, "refused", monkeypatch)
    assert ask(proxy, "PUT", b"one")[0] == 500
    assert kept.content == b""
    meet(proxy, "done and refused", monkeypatch)
    assert ask(proxy, "PUT", b"two")[0] == 500
    assert kept.content == b"two"


def test_an_upload_and_an_answer_are_broken_off_in_the_middle(
    proxy: Proxy, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet(proxy, "broken off", monkeypatch)
    with pytest.raises(http.client.RemoteDisconnected):
        ask(proxy, "PUT", b"0123456789")
    assert kept.has_taken.wait(20)
    assert kept.content == b"01234"
    with pytest.raises(http.client.IncompleteRead):
        ask(proxy, "GET")


def test_in_trouble_requests_have_different_fates(proxy: Proxy) -> None:
    proxy.is_in_trouble = True
    assert {proxy.fate() for _ in range(100)} == {"passed", "refused", "done and refused", "broken off"}
    proxy.is_in_trouble = False
    assert {proxy.fate() for _ in range(100)} == {"passed"}
