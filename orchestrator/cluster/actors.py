"""The Ray actor in which a worker or a server lives, and a handle by which the driver speaks to it.

A plain class, wrapped by `ray.remote` only when a member is started. `prepare` and `run` block the compute thread; `take`
answers beside them. Failures are answers (`{"failed": ...}`), not exceptions, so that nothing needs pickle and Ray adds no
traceback of its own; only the death of the process is an exception, and means just that.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray

from orchestrator import errors
from orchestrator.cluster.outbox import Outbox, capture_prints

if TYPE_CHECKING:
    from orchestrator.transports.base import Transport

Role = Literal["worker", "server"]
Answer = dict[str, Any]


class MemberActor:
    """One member's process. project: the folder from which the pipeline is imported; None for the copy that Ray has made
    the working directory already."""

    def __init__(self, role: Role, settings: str, secret: bytes, project: str | None) -> None:
        self._outbox = Outbox()
        self._outbox.put({"pid": os.getpid()})  # at once: it may die while it prepares
        capture_prints(self._outbox)
        if project is not None:
            os.chdir(project)
        sys.path.insert(
            0, str(Path.cwd())
        )  # before the driver's own folders, which Ray adds and this node may have too
        self._role = role
        self._settings_text = settings
        self._secret = secret

    def prepare(self) -> Answer:
        """`{"facts", "addresses", "pid", "node"}`: ready to join a generation."""
        return self._answer(self._prepare)

    def run(self, generation: dict[str, Any], rank: int, peers: dict[int, Any], facts: dict[str, Any]) -> Answer:
        """Live the generation: `{"digest"}` at its end."""
        return self._answer(lambda: self._run(generation, rank, peers, facts))

    @ray.method(concurrency_group="control")
    def take(self, after: int, wait_s: float, gather_s: float) -> list[dict[str, Any]]:
        """Long poll for entries of the outbox (see there)."""
        return self._outbox.take(after, wait_s, gather_s)

    def save_weights(self, path: str | None) -> str:
        """Write the model's parameters and persistent buffers as a safetensors file on this node; None: to a file of its
        own, for `read_weights`. Returns the path."""
        from safetensors.torch import save_file

        if path is None:
            handle, path = tempfile.mkstemp(prefix="orchestrator-", suffix=".safetensors")
            os.close(handle)
        save_file(self._member.state(), path)
        return path

    def read_weights(self, path: str, offset: int, limit: int) -> bytes:
        """A piece of that file; the file goes with the piece at its end, which is empty."""
        with open(path, "rb") as file:
            file.seek(offset)
            piece = file.read(limit)
        if not piece:
            Path(path).unlink()
        return piece

    def _prepare(self) -> Answer:
        from orchestrator.engine.worker import Host, Server, Worker
        from orchestrator.settings import from_yaml
        from orchestrator.transports.shared_memory import SharedRegions
        from orchestrator.transports.sockets import Listener

        settings = from_yaml(self._settings_text)
        self._timeout_s = settings.cluster.step_timeout_s
        # Only who may need it is reachable by TCP: a private Ray opens no port.
        between_nodes = settings.cluster.address is not None and settings.transport == "auto"
        by_tcp = between_nodes or settings.transport == "tcp"
        host = str(ray.util.get_node_ip_address()) if by_tcp else None  # type: ignore[no-untyped-call]
        self._listener = Listener(self._secret, host)
        self._regions = SharedRegions()
        surroundings = Host(emit=self._outbox.put)
        self._member: Any = (Worker if self._role == "worker" else Server)(settings, self._regions, surroundings)
        facts = self._member.prepare()
        node = ray.get_runtime_context().get_node_id()
        return {"facts": facts, "addresses": self._listener.addresses, "pid": os.getpid(), "node": node}

    def _run(self, generation: dict[str, Any], rank: int, peers: dict[int, Any], facts: dict[str, Any]) -> Answer:
        from orchestrator.engine.worker import Generation
        from orchestrator.transports.sockets import connect

        plan = Generation.from_spec(generation)

        def join() -> Transport:
            return connect(self._listener, rank, plan.number, peers, self._regions, self._timeout_s)

        ended = self._member.run(plan, rank, join, facts)
        return {"digest": ended.digest} if ended.kind == "finished" else {"withdrew": ended.why}

    def _answer(self, action: Any) -> Answer:
        try:
            return action()  # type: ignore[no-any-return]
        except errors.OrchestratorError as error:
            return {"failed": error.as_dict()}
        except MemoryError as error:
            text = str(error) or "no memory left"
            return {"failed": errors.RunFailed(text, "use a smaller model, fewer workers, or more memory").as_dict()}
        except Exception as error:
            remedy = "this is a fault of orchestrator; the run's folder has the traceback, in error.txt"
            fault = errors.RunFailed(f"{type(error).__name__}: {error}", remedy, traceback.format_exc())
            return {"failed": fault.as_dict()}
