"""A Ray that runs already, joined for one run and left as it was: nothing of it is started and nothing stopped.

The driver has to run on one of its nodes, because Ray attaches a driver to the node it runs on. Whether a
gRPC server listens at the address is tried first, because Ray itself goes on trying for minutes.
"""

from __future__ import annotations

import os
import socket
from types import TracebackType
from typing import Self

from orchestrator.cluster.environment import enter, prepare_environment
from orchestrator.errors import ClusterUnavailable

_CONNECT_S = 3.0
_REMEDY = "look for the address with `ray status` on its head, or start one: ray start --head --port=6379"
_FRAME_HEAD_BYTES = 9
_SETTINGS = 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])


class JoinedRay:
    """A context manager of the shape of LocalRay. address: host:port of the head, as `ray start --head` prints it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> Self:
        _reach(self._address)
        prepare_environment(self._address)
        try:
            enter(self._address)
        except Exception as error:
            raise ClusterUnavailable(
                f"the Ray at {self._address} could not be joined: {(str(error).splitlines() or [repr(error)])[0]}",
                f"is this machine one of its nodes (ray start --address={self._address})? Are Python and Ray of the same "
                "version there, and is RAY_AUTH_TOKEN the cluster's own?",
                str(error),
            ) from error
        return self

    def trouble(self) -> str | None:
        """Not known of a cluster whose processes are others'; members that are lost with it tell."""
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends this run's actors with the connection; the cluster goes on."""
        import ray

        ray.shutdown()


def _reach(address: str) -> None:
    """Raises ClusterUnavailable unless a gRPC server, as Ray's head is one, listens at the address."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
            answers = "RAY_USE_TLS" in os.environ or _speaks_http2(connection)
    except (OSError, OverflowError) as error:
        raise ClusterUnavailable(f"nobody answers at cluster.address {address}: {error}", _REMEDY) from error
    if not answers:
        raise ClusterUnavailable(f"what answers at cluster.address {address} is no Ray", _REMEDY)


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
