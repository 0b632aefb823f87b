"""A Ray that runs already, joined for one run and left as it was: nothing of it is started and nothing stopped.

The driver has to run on one of its nodes, because Ray attaches a driver to the node it runs on. Whether somebody listens
at the address is tried first, because Ray itself goes on trying for a minute and then ends the process.
"""

from __future__ import annotations

import logging
import socket
from types import TracebackType
from typing import Self

from orchestrator.cluster.environment import prepare_environment
from orchestrator.errors import ClusterUnavailable

_CONNECT_S = 3.0


class JoinedRay:
    """A context manager of the shape of LocalRay. address: host:port of the head, as `ray start --head` prints it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> Self:
        _reach(self._address)
        prepare_environment(self._address)
        import ray

        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            ray.init(address=self._address, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:
            raise ClusterUnavailable(
                f"the Ray at {self._address} could not be joined: {(str(error).splitlines() or [repr(error)])[0]}",
                f"is this machine one of its nodes (ray start --address={self._address})? Are Python and Ray of the same "
                "version there, and is RAY_AUTH_TOKEN the cluster's own?",
                str(error),
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends this run's actors with the connection; the cluster goes on."""
        import ray

        ray.shutdown()


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnavailable(
            f"nobody answers at cluster.address {address}: {error}",
            "look for the address with `ray status` on its head, or start one: ray start --head --port=6379",
        ) from error
