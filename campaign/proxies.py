"""An HTTP server in front of another one. As long as it is in trouble it answers some requests with 500, and breaks off others.

The server behind gets the first half of an upload that is broken off, and the client that of an answer.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Final, Literal
from urllib.parse import urlsplit

Fate = Literal["passed", "refused", "done and refused", "broken off"]
_SHARES: Final[dict[Fate, float]] = {"passed": 0.3, "refused": 0.3, "done and refused": 0.15, "broken off": 0.25}
_ERROR: Final = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>in trouble</Message></Error>"
_PATIENCE_S: Final = 60.0
_OF_A_CONNECTION: Final = ("connection", "content-length", "transfer-encoding", "keep-alive", "expect")


class Proxy:
    """behind: the URL of the other server; dice: of what becomes of a request. met: how often something became of one."""

    def __init__(self, behind: str, dice: Random) -> None:
        self.behind = urlsplit(behind).netloc
        self.is_in_trouble = False
        self.met: dict[str, int] = dict.fromkeys(_SHARES, 0)
        self._dice = dice
        self._drawing = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True).start()

    def fate(self) -> Fate:
        """The fate of the next request."""
        with self._drawing:
            fate: Fate = "passed"
            if self.is_in_trouble:
                (fate,) = self._dice.choices([*_SHARES], [*_SHARES.values()])
            self.met[fate] += 1
        return fate

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def do(self) -> None:
        fate, length = self.proxy.fate(), int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length // 2 if fate == "broken off" else length)
        if fate == "refused":
            self._answer(500, {"Content-Type": "application/xml"}, _ERROR)
        elif fate == "broken off" and length:
            self._send_half(sent, length)
            self._break_off()
        else:
            status, headers, content = self._asked(sent)
            if fate == "done and refused":
                status, headers, content = 500, {"Content-Type": "application/xml"}, _ERROR
            self._answer(status, headers, content, is_broken_off=fate == "broken off")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815

    def _headers(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION}

    def _asked(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.proxy.behind, timeout=_PATIENCE_S)) as connection:
            length = {"Content-Length": str(len(sent))} if sent or self.command in ("PUT", "POST") else {}
            connection.request(self.command, self.path, sent or None, {**self._headers(), **length})
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_A_CONNECTION}
            if self.command == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, headers, answer.read()

    def _send_half(self, sent: bytes, length: int) -> None:
        with contextlib.closing(http.client.HTTPConnection(self.proxy.behind, timeout=_PATIENCE_S)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in {**self._headers(), "Content-Length": str(length)}.items():
                connection.putheader(name, value)
            connection.endheaders(sent)

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, is_broken_off: bool = False) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if is_broken_off else content)
        if is_broken_off:
            self._break_off()

    def _break_off(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        pass
