"""The Ray actor in which a worker or a server lives, and a handle by which the driver speaks to it.

A plain class, wrapped by `ray.remote` only when a member is started. `prepare` and `run` block the compute thread; `take`
answers beside them. Failures are answers (`{"failed": ...}`), not exceptions, so that nothing needs pickle and Ray adds no
traceback of its own; only the death of the process is an exception, and means just that.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray

from orchestrator import errors
from orchestrator.cluster.lease import Lease
from orchestrator.cluster.outbox import Entry, Outbox, capture_prints

if TYPE_CHECKING:
    from orchestrator.transports.base import Transport

Role = Literal["worker", "server"]
Answer = dict[str, Any]

# What to do about errors of torch, which is not imported here.
_OF_A_GPU = {
    "OutOfMemoryError": "raise data.shards or lower data.batch_size, let fewer workers share a GPU, or use a smaller model",
    "AcceleratorError": "a GPU tells late and not whose work failed; run once with CUDA_LAUNCH_BLOCKING=1, or run.device=cpu",
}
_URGENT = "generation_running"  # what tells that a recovery is over does not wait for more to say


def _hide_gpus() -> None:
    """Those that are not set aside for this member, which Ray does for some only: what a pipeline computes on a GPU that nobody
    records cannot be repeated. To be called before torch is imported."""
    if not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def with_imports(pulse: Answer) -> Answer:
    """A pulse in which each imported module is a beat while the member prepares: on a busy machine importing torch alone takes
    minutes, in which nothing else moves."""
    return {**pulse, "beats": pulse["beats"] + len(sys.modules)} if pulse["place"] == "prepare" else pulse


class MemberActor:
    """One member's process. project: the folder from which the pipeline is imported; None for the copy that Ray has made
    the working directory already."""

    def __init__(self, role: Role, settings: str, secret: bytes, project: str | None, lease_s: float) -> None:
        _hide_gpus()
        from orchestrator.engine.black_box import BlackBox
        from orchestrator.engine.pulse import Pulse

        self._lease = Lease(lease_s)
        self._outbox = Outbox()
        self._outbox.put({"pid": os.getpid()})  # at once: it may die while it prepares
        capture_prints(self._outbox)
        if project is not None:
            os.chdir(project)
        # Before the driver's own folders, which Ray adds and this node may have too.
        sys.path.insert(0, str(Path.cwd()))
        self._role = role
        self._settings_text = settings
        self._secret = secret
        self._black_box = BlackBox()
        self._pulse = Pulse(self._black_box.note)

    def prepare(self) -> Answer:
        """`{"facts", "addresses", "pid", "node", "niceness", "black_box"}`: ready to join a generation."""
        return self._answer(self._prepare)

    def run(self, spec: dict[str, Any], rank: int, peers: dict[int, Any], facts: dict[str, Any]) -> Answer:
        """Live a generation (`driver/generations.py` has the form of `spec`): how it ended (`engine.generation.Ended`)."""
        answer = self._answer(lambda: self._run(spec, rank, peers, facts))
        return {**answer, "generation": spec["number"]}

    @ray.method(concurrency_group="control")
    def take(self, after: int, wait_s: float, gather_s: float) -> dict[str, Any]:
        """Long poll for entries of the outbox (see there), and the member's pulse."""
        self._lease.renew()
        return {"entries": self._outbox.take(after, wait_s, gather_s), "pulse": with_imports(self._pulse.snapshot())}

    @ray.method(concurrency_group="control")
    def ask(self, what: Literal["regroup", "stop", "save"]) -> None:
        """Have this put to the vote at the next step boundary."""
        self._pulse.ask(what)

    @ray.method(concurrency_group="control")
    def call_off(self, generation: int) -> None:
        """Leave this generation, wherever in it this member is."""
        self._pulse.call_off(generation)
        self._listener.cancel(generation)

    @ray.method(concurrency_group="control")
    def describe(self, origin: str | None) -> Answer:
        """`{"environment", "modules"}` of this process. origin: the commit that the code was made from."""
        return self._answer(lambda: self._describe(origin))

    def profile(self) -> Answer:
        """A short description of the training data, between generations: its items are fetched in the compute thread."""
        return self._answer(self._profile)

    def save_weights(self, path: str | None) -> None:
        """Write the model's parameters and persistent buffers as a safetensors file on this node; None: keep what would be in
        it for `read_weights`, in memory, since a file of a process that is killed would stay."""
        from safetensors.torch import save, save_file

        if path is None:
            self._weights = save(self._member.state())
        else:
            save_file(self._member.state(), path)

    def read_weights(self, offset: int, limit: int) -> bytes:
        """A piece of what is kept; it is let go with the piece at its end, which is empty."""
        piece = self._weights[offset : offset + limit]
        if not piece:
            self._weights = b""
        return piece

    def _prepare(self) -> Answer:
        from orchestrator.engine import heap

        with heap.without_collections():
            from orchestrator.cluster.depot import Depot
            from orchestrator.engine.worker import Host, Server, Worker
            from orchestrator.settings import from_yaml
            from orchestrator.transports.shared_memory import SharedRegions
            from orchestrator.transports.sockets import Listener

        settings = from_yaml(self._settings_text)
        self._timeout_s = settings.cluster.step_timeout_s
        self._device = settings.run.device
        # Only who may need it is reachable by TCP: a private Ray opens no port.
        between_nodes = settings.cluster.address is not None and settings.transport == "auto"
        by_tcp = between_nodes or settings.transport == "tcp"
        address = str(ray.util.get_node_ip_address()) if by_tcp else None  # type: ignore[no-untyped-call]
        self._listener = Listener(self._secret, address)
        self._regions = SharedRegions()
        self._depot = Depot(self._emit)
        host = Host(self._pulse, self._emit, self._outbox.kept, self._depot.load, self._depot)
        self._member: Any = (Worker if self._role == "worker" else Server)(settings, self._regions, host)
        facts = self._member.prepare()
        self._pulse.rest()
        return {
            "facts": facts,
            "addresses": self._listener.addresses,
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "black_box": self._black_box.fd,
        }

    def _profile(self) -> Answer:
        from orchestrator.data.profile import profile
        from orchestrator.numerics.streams import seeded

        with seeded(0, "profile"):
            return profile(self._member.training_data())

    def _describe(self, origin: str | None) -> Answer:
        from orchestrator.provenance.code import imported
        from orchestrator.provenance.environment import node

        modules = imported.gather(imported.files_of(sys.modules), Path.cwd(), origin)
        return {
            "environment": node.capture(self._device).as_dict(),
            "modules": [module.as_dict() for module in modules],
        }

    def _run(self, spec: dict[str, Any], rank: int, peers: dict[int, Any], facts: dict[str, Any]) -> Answer:
        from orchestrator.engine.generation import Generation
        from orchestrator.transports.sockets import connect

        if spec["storage"] is not None:
            self._depot.open(spec["storage"])
        plan = Generation.from_spec(spec)

        def join() -> Transport:
            return connect(self._listener, rank, plan.number, peers, self._regions, self._timeout_s)

        try:
            ended = self._member.run(plan, rank, join, facts)
        finally:
            self._pulse.rest()
        return dict(ended.as_answer())

    def _emit(self, entry: Entry) -> None:
        self._outbox.put(entry, urgent=entry.get("event") == _URGENT)

    def _answer(self, action: Callable[[], Answer]) -> Answer:
        try:
            return action()
        except errors.OrchestratorError as error:
            return {"failed": error.as_dict()}
        except MemoryError as error:
            text = str(error) or "no memory left"
            return {"failed": errors.RunFailed(text, "use a smaller model, fewer workers, or more memory").as_dict()}
        except Exception as error:
            remedy = _OF_A_GPU.get(type(error).__name__)
            if remedy is not None:
                return {"failed": errors.RunFailed(str(error).strip(), remedy, traceback.format_exc()).as_dict()}
            remedy = "this is a fault of orchestrator; the run's folder has the traceback, in error.txt"
            fault = errors.RunFailed(f"{type(error).__name__}: {error}", remedy, traceback.format_exc())
            return {"failed": fault.as_dict()}
