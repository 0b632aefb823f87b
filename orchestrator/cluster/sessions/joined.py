"""A Ray that runs already and is joined for one run: nothing of it is started or stopped.

The driver has to run on one of its nodes, because Ray attaches a driver to the node it runs on. Whether a gRPC server
listens at the address is tried first, because Ray itself goes on trying for minutes. For the same reason the head is
called regularly while the run lasts: Ray waits a minute for it to come back, and then ends the driver's process. A
driver that loses the raylet of its own node loses all its members, wherever they are, and cannot start others.

Which nodes are being drained only the insides of Ray tell: with a version that they were not tried with nobody asks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from orchestrator.cluster.ray_calls import shut_down
from orchestrator.cluster.sessions.diagnosis import Diagnosis
from orchestrator.cluster.sessions.environment import enter, prepare_environment
from orchestrator.common.processes import has_ended, open_pidfd
from orchestrator.common.tested_versions import RAY
from orchestrator.errors import ClusterUnavailable

_CONNECT_S = 3.0
_CALL_S = 1.0  # between two calls
_CALLS = 5  # in vain, one after the other, and it is gone; one that is started again has forgotten its members
_REMEDY = (
    "look for the address with `ray status` on its head, or start one: ray start --head --port=6379; cluster.address=null does "
    "without, also in a resume and a rerun"
)
_TOKEN_REMEDY = (
    "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN=..., the one that `ray start` had (else `ray get-auth-token` prints it on "
    "the head); RAY_AUTH_MODE=disabled where the head has none"
)
_FRAME_HEAD_BYTES = 9
_SETTINGS = 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


class JoinedRay:
    """A Ray that was joined; implements RaySession. address: host:port of the head, as `ray start --head` prints it; insists:
    whether it is called as often as a Ray under way before it counts as gone."""

    def __init__(self, address: str, *, insists: bool = False) -> None:
        self._address = address
        self._insists = insists
        self._called = address  # the number of that host: no name has to be looked up when its head is gone
        self._in_vain = 0
        self._over = threading.Event()
        self._raylet: int | None = None  # a pidfd; None where there is none to be had
        self._draining: Mapping[str, float | None] = {}
        self._asking = threading.Lock()

    def __enter__(self) -> Self:
        self._called = _reach(self._address, _CALLS if self._insists else 1)
        prepare_environment(self._address)
        _show_token(self._address)
        try:
            enter(self._address)
        except Exception as error:
            raise ClusterUnavailable(
                f"the Ray at {self._address} could not be joined: {(str(error).splitlines() or [repr(error)])[0]}",
                f"is this machine one of its nodes (ray start --address={self._address})? Are Python and Ray of the same "
                "version there?",
                str(error),
                code="ray.not-joined",
            ) from error
        self._raylet = _pidfd_of_raylet()
        # Threads, because a host that is gone lets its callers wait; two, because Ray's own client waits for it without end.
        for watch, name in ((self._call_head, "head"), (self._ask_for_draining, "draining nodes")):
            threading.Thread(target=watch, name=name, daemon=True).start()
        return self

    @property
    def is_headless(self) -> bool:
        """Whether the head is gone."""
        return self._in_vain >= _CALLS

    def trouble(self) -> str | None:
        """An error text when the head or this node's raylet is gone. The loss of another node is not one: its members
        are lost, and reported as such."""
        if self.is_headless:
            return f"the head of the Ray at {self._address} is gone: {self._in_vain} calls in a row were in vain"
        if self._raylet is not None and has_ended(self._raylet):
            return f"the raylet of this node of the Ray at {self._address} has ended"
        return None

    def diagnosis(self) -> Diagnosis:
        """Nothing: its processes are elsewhere, or not ours."""
        return Diagnosis()

    def draining(self) -> Mapping[str, float | None]:
        """As of the last answer of the head."""
        return self._draining

    def _call_head(self) -> None:
        while not self._over.wait(_CALL_S):
            try:
                _connected(self._called).close()
                self._in_vain = 0
            except OSError as error:
                self._in_vain += _tells_of_the_other_side(error)

    def _ask_for_draining(self) -> None:
        while not self._over.wait(_CALL_S):
            if self._in_vain:
                continue
            with self._asking:
                if RAY.is_here and not self._over.is_set():
                    self._draining = _draining_nodes(self._draining)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends this run's actors with the connection; the cluster goes on."""
        self._over.set()
        self._asking.acquire(timeout=_CONNECT_S)  # Ray's client is not taken away from who uses it
        shut_down()
        if self._raylet is not None:
            os.close(self._raylet)
            self._raylet = None


def _draining_nodes(known: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """If Ray does not answer, what was known before."""
    from ray._private import state

    try:
        found: Mapping[str, int] = state.state.get_draining_nodes()
    except Exception:  # whatever it is, trouble() tells of a head that is gone
        return known
    return {node: None if deadline_ms == 0 else deadline_ms / 1e3 for node, deadline_ms in found.items()}


def _pidfd_of_raylet() -> int | None:
    """None where there is none to be had; its end is then seen as the loss of its members."""
    if not RAY.is_here:
        return None
    from ray._private import worker

    node: Any = worker._global_node
    if node is None:
        return None
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(node.raylet_socket_name)
        return open_pidfd(connection)
    return None


def _tells_of_the_other_side(error: OSError) -> bool:
    """Whether the error is one of the other side, and not of this one, such as no descriptor or no port left."""
    return isinstance(error, ConnectionError | TimeoutError) or error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)


def _reach(address: str, calls: int = 1) -> str:
    """The number of the host with the port. Raises ClusterUnavailable unless a gRPC server listens at the address, which Ray's
    head is."""
    for left in reversed(range(calls)):
        try:
            with _connected(address) as connection:
                host, port, *_ = connection.getpeername()
                answers = "RAY_USE_TLS" in os.environ or _speaks_http2(connection)
            break
        except (OSError, OverflowError) as error:
            if not left:
                raise ClusterUnavailable(
                    f"nobody answers at cluster.address {address}: {error}", _REMEDY, code="ray.nobody-answers"
                ) from error
            time.sleep(_CALL_S)
    if not answers:
        raise ClusterUnavailable(f"the server at cluster.address {address} is no Ray", _REMEDY, code="ray.not-a-ray")
    return f"{host}:{port}"


def _show_token(address: str) -> None:
    """Raises ClusterUnavailable where the head does not take the token of this process: Ray itself goes on trying for 20 s, and
    then says only that it could not connect. Likewise where another server than a head speaks gRPC there."""
    from ray._private.authentication import authentication_token_setup
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RayError

    try:
        authentication_token_setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
        GcsClient(address=address)
    except AuthenticationError as error:
        raise ClusterUnavailable(
            f"the Ray at {address} and this launch do not agree on a token: {str(error).partition('. ')[0]}",
            _TOKEN_REMEDY,
            str(error),
            code="ray.token",
        ) from error
    except RayError as error:
        raise ClusterUnavailable(
            f"the server at cluster.address {address} does not answer as the head of a Ray does: {str(error).splitlines()[0]}",
            _REMEDY,
            str(error),
            code="ray.no-head",
        ) from error


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side answers a greeting of HTTP/2, which gRPC speaks, with its settings (RFC 9113, 3.4)."""
    connection.sendall(_GREETING)
    frame = b""
    try:
        while len(frame) < _FRAME_HEAD_BYTES and (piece := connection.recv(_FRAME_HEAD_BYTES - len(frame))):
            frame += piece
    except TimeoutError:
        return False
    return len(frame) == _FRAME_HEAD_BYTES and frame[3] == _SETTINGS
