"""The Ray actor in which a worker or a server lives, and a handle by which the driver speaks to it.

A plain class, wrapped by `ray.remote` only when a member is started. Ray calls two of its methods, `locate` and `serve`, which
never returns. Its process has nothing to do for Ray then. The driver calls the other methods by the relay of this host
(`calls.py`): in the thread of `serve`, which is the compute thread, or beside it. Entries of the event queue go the other way
(`reporter.py`), answers among them. Failures are answers (`{"failed": ...}`), not exceptions, so that no error needs pickle
and Ray adds no traceback of its own; only the death of the process is an exception, and means just that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray

from orchestrator import errors
from orchestrator.cluster.actors import card_failure, card_metrics
from orchestrator.cluster.actors.calls import CallHandler
from orchestrator.cluster.actors.driver_loss import PREFIX, DriverHandle, DriverLossDetector, written
from orchestrator.cluster.actors.event_queue import Entry, EventQueue, capture_prints
from orchestrator.cluster.actors.fault_injection import inject
from orchestrator.cluster.actors.host_turns import HostTurns
from orchestrator.cluster.actors.lease import Lease
from orchestrator.cluster.actors.reporter import Reporter, beat_s, begin
from orchestrator.common import card_faults, listings, once, shadowing
from orchestrator.common.processes import disregarded, handle
from orchestrator.controller.fault_injection import Kind
from orchestrator.records import phases

if TYPE_CHECKING:
    import torch

    from orchestrator.checkpoint.weights import Weights
    from orchestrator.cluster.actors.checkpoint_client import CheckpointClient
    from orchestrator.comm.transports.base import Transport
    from orchestrator.comm.transports.tls import Credentials
    from orchestrator.config.plan import Plan
    from orchestrator.worker.member.generation import Generation
    from orchestrator.worker.member.shard_slots import ShardSlots

Role = Literal["worker", "server"]
Answer = dict[str, Any]

# The remedy for errors of torch, which is not imported here.
_OF_A_GPU = {
    "OutOfMemoryError": "raise data.shards or lower data.batch_size, let fewer workers share a GPU, or use a smaller model",
    "AcceleratorError": "a GPU tells late and not whose work failed; run once with CUDA_LAUNCH_BLOCKING=1, or run.device=cpu",
}
_OF_MEMORY = (
    "use a smaller model, fewer workers on a machine, or more memory; or cut the model into stages (cluster.stages, "
    "docs/model-parallel.md)"
)
# The end of a recovery, and the parts without which there is no checkpoint, do not wait for more to say.
_URGENT = ("generation_running", "part_written", "part_failed")


def disregard_signals() -> None:
    """A batch system signals all processes of a job that is to end, and a terminal those of a command. The driver has this
    member stop and save then, which a handler of Ray or Python would prevent. Processes that this one starts or forks get the
    usual handlers."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handle(number, disregarded)


def _hide_gpus() -> None:
    """Hide the GPUs that are not set aside for this member, which Ray does for some only: what a pipeline computes on a
    GPU that is not recorded cannot be repeated. To be called before torch is imported."""
    if not ray.get_runtime_context().get_accelerator_ids()["GPU"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _sites(wanted: Collection[str]) -> tuple[str, ...]:
    """Those of them that this node offers, as resources of Ray."""
    if not wanted:
        return ()
    here = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes()}  # type: ignore[no-untyped-call]
    return tuple(site for site in wanted if nodes[here].get(site, 0) > 0)


def with_imports(heartbeat: Answer) -> Answer:
    """The heartbeat, with one beat more for each imported module while the member prepares: on a busy machine importing
    torch alone takes minutes, in which nothing else would show progress."""
    return (
        {**heartbeat, "beats": heartbeat["beats"] + len(sys.modules)}
        if heartbeat["activity"] in ("prepare", "admission")
        else heartbeat
    )


class MemberActor:
    """One member's process: a worker or a server, with its event queue and its lease."""

    def __init__(
        self,
        role: Role,  # worker or server
        member: int,  # its id
        plan: Plan,  # of the run
        # By which members know each other, and with which they encrypt, where they do. And variables with credentials.
        secrets: tuple[bytes, Credentials | None, Mapping[str, str]],
        # The folder from which the pipeline is imported, None where Ray has already made a copy the working directory. And
        # folders in it that are searched before the driver's own.
        project: tuple[str | None, tuple[str, ...]],
        # where somebody goes on with the run when the driver is gone; None where nobody does
        driver_handle: DriverHandle | None = None,
        *,
        is_first: bool = False,  # whether it is the first worker that this driver starts
    ) -> None:
        phases.began("process of Ray", role)
        disregard_signals()
        _hide_gpus()
        listings.by_name()
        os.environ.update(secrets[2])
        from orchestrator.worker.member.crash_record import CrashRecord
        from orchestrator.worker.member.heartbeat import Heartbeat
        from orchestrator.worker.member.stack_dump import StackDump
        from orchestrator.worker.member.time_account import TimeAccount

        self._lease = Lease(plan.cluster.timeouts.lease_s)
        self._event_queue = EventQueue()
        node = ray.get_runtime_context().get_node_id()
        capture_prints(self._event_queue)
        folder, search_path = project
        if folder is not None:
            os.chdir(folder)
        self._project = Path.cwd()  # the user's code may go elsewhere
        # Before the driver's own folders, which Ray adds and this node may have too.
        sys.path[:0] = [str(self._project), *(os.path.abspath(each) for each in search_path)]  # noqa: PTH100 - `..` taken out
        self._role = role
        self._plan = plan
        self._secrets = secrets
        once.belong_to_run(secrets[0])
        self._is_first = is_first
        self._slots: tuple[int, int] | None = None
        self._weights: Weights | None = None  # while they are read in pieces
        self._crash_record = CrashRecord()
        self._stack_dump = StackDump()
        self._heartbeat = Heartbeat(self._crash_record.note, TimeAccount(spans=plan.cadence.timeline))
        self._checkpoint_client: CheckpointClient | None = None
        self._member: Any = None
        self._card = ""  # the UUID of its GPU, once it computes on one that tells it
        self._card_memory: dict[str, Any] | None = None  # what `cuda.card_memory` told before anything was taken
        self._failure: Exception | None = None  # of its GPU, after which this process is of no use
        self._in_generation = threading.Lock()
        self._calls = CallHandler(self, lambda answer: self._event_queue.put(answer, urgent=True))
        self._reporter = Reporter(
            *(self._event_queue, self._beat, self._lease.renew, beat_s(plan.cluster.timeouts), lambda: self._calls.next)
        )
        begin(self._reporter, self._calls, secrets[0], member, node, self._crash_record.fd)
        if driver_handle is not None:
            DriverLossDetector(driver_handle, self._driver_lost)

    def locate(self) -> Answer:
        """`{"pid", "node", "user", "stacks"}`, at once: it may die or stand still while it prepares."""
        return {
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "user": os.geteuid(),
            "stacks": self._stack_dump.place,
        }

    def serve(self) -> None:
        """Carry out the driver's calls. It never returns: Ray tells the driver of its end, which is that of the process."""
        self._calls.serve()

    def prepare(self, storage: str | None = None) -> Answer:
        """`{"run_manifest", "addresses", "pid", "node", "niceness", "reads", "sites", "card", "card_memory"}`: ready to join a
        generation. storage: where the parts of checkpoints lie, of a run that goes on."""
        return self._answer(lambda: self._on_card(lambda: self._prepare(storage), lambda: card_failure.PREPARING))

    def run(
        self,
        packed: bytes,
        rank: int,
        peers: dict[int, Any],
        slots: tuple[int, int] | None,
    ) -> Answer:
        """Take part in a generation; returns `{"ended": Ended, "generation"}`, or what `card_failure` answers. packed: the
        generation (`worker.member.generation.packed`); slots: the driver's process and its descriptor of the memory in which
        what shards keep outlives this process; None on another node than the driver's."""
        from orchestrator.worker.member.generation import Generation

        generation = Generation.unpacked(packed)
        self._slots = slots
        self._reporter.eager = rank == 0
        answer = self._answer(lambda: self._run(generation, rank, peers))
        return {**answer, "generation": generation.number}

    def flush(self) -> None:
        """The answer comes behind all entries of the event queue, and behind what streams of the user's code hold."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # of whatever that is
                stream.flush()

    def ask(self, what: Literal["regroup", "stop", "save"], generation: int) -> None:
        """Ask for this at the vote of the next step boundary of this generation."""
        self._heartbeat.ask(what, generation)

    def call_off(self, generation: int) -> None:
        """Leave this generation, at whatever point this member is."""
        self._heartbeat.call_off(generation)
        self._listener.cancel(generation)

    def describe(self, origin: str | None) -> Answer:
        """`{"environment", "modules"}` of this process. origin: the commit that the code was made from."""
        return self._answer(lambda: self._describe(origin))

    def read_parameters(self, token: str, name: str | None, first: int, count: int | None) -> Answer:
        """The part of a parameter that a server holds (`worker.server.Server.read_parameters`), with the token by which it
        was asked."""
        return {**self._answer(lambda: dict(self._member.read_parameters(name, first, count))), "token": token}

    def suffer(self, kind: Kind, pause_s: float) -> None:
        """As `fault_injection.inject` of this process, which may be on another node than the driver."""
        inject(os.getpid(), kind, pause_s)

    def profile(self) -> Answer:
        """`{"profile", "partition", "layers"}`: a short description of the training data; how they are divided among the
        shards, None where they are not; the model's layers in words. Between generations: items are fetched in the compute
        thread."""
        return self._answer(self._profile)

    def answers(self) -> Answer:
        """How the trained model may be asked when it is served (`worker.between_steps.serving_trial`). As `profile`."""
        return self._answer(self._member.answers)

    def become_spare(self) -> None:
        """After `prepare`, and before a generation in which it has no part."""
        self._member.become_spare()

    def save_weights(self, path: str) -> None:
        """Write what this worker has of the model's parameters and persistent buffers as a safetensors file on this node."""
        self._member.weights().write(Path(path))

    def read_weights(self, offset: int, limit: int) -> bytes:
        """A piece of what would be in that file, empty behind its end: a file of a process that is killed would stay."""
        if self._weights is None:
            self._weights = self._member.weights()
        piece: bytes = self._weights.read(offset, limit)
        if not piece:
            self._weights = None
        return piece

    def _beat(self) -> Answer:
        return {**with_imports(self._heartbeat.snapshot()), "card": self._card}

    def _prepare(self, storage: str | None) -> Answer:
        from orchestrator.numerics import allocator

        with phases.of("imports", self._role), allocator.without_collections():
            from orchestrator.cluster.actors.checkpoint_client import CheckpointClient
            from orchestrator.cluster.forkserver.children import child
            from orchestrator.comm.transports.shared_memory import SharedRegions
            from orchestrator.comm.transports.sockets import Listener
            from orchestrator.provenance.code import imported
            from orchestrator.worker.member.shared_queue import QueueMemory
            from orchestrator.worker.worker import ProcessServices, Server, Worker

        # Only who may need it is reachable by TCP: a private Ray opens no port.
        by_tcp = self._plan.exchange.between_nodes
        address = str(ray.util.get_node_ip_address()) if by_tcp else None  # type: ignore[no-untyped-call]
        secret, credentials, _ = self._secrets
        refused = lambda line: self._emit({"event": "caller_refused", "why": line})  # noqa: E731
        self._listener = Listener(secret, address, credentials, refused)
        self._regions = SharedRegions()
        self._queue_memory = QueueMemory() if self._role == "worker" and self._plan.cluster.claims else None
        queue = {} if self._queue_memory is None else {"board": self._queue_memory.handle}
        self._shared = QueueMemory() if self._role == "worker" and self._plan.update.sharded else None
        shared = {} if self._shared is None else {"update": self._shared.handle}
        self._checkpoint_client = CheckpointClient(self._emit)
        if storage is not None and self._role == "worker":
            self._checkpoint_client.open(storage, tries=True)
        services = ProcessServices(
            self._heartbeat,
            self._emit,
            self._event_queue.unacknowledged,
            self._checkpoint_client.load,
            self._checkpoint_client,
            self._open_slots,
            sites := _sites(self._plan.data.sites),
            child,
            self._is_first,
            take_turn=HostTurns(secret).take,
            on_card=self._on_uuid,
        )
        self._member = (Worker if self._role == "worker" else Server)(self._plan, self._regions, services)
        run_manifest = self._member.prepare()
        self._heartbeat.rest()
        if self._role == "worker" and self._card and self._plan.run.compute.device == "cuda":
            card_metrics.begin(self._card, self._emit)
        if self._role == "worker":
            own = imported.digests(imported.files_of(sys.modules), self._project)
            run_manifest["code"] = {**imported.versions(sys.modules), **own}
        return {
            "run_manifest": run_manifest,
            "addresses": {**self._listener.addresses, **queue, **shared},
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "reads": self._member.input_audit.as_dict(),
            "sites": sites,
            "card": self._card,
            "card_memory": self._card_memory,
            "phases": phases.recorded(),
        }

    def _open_slots(self, shards: int, row: Mapping[str, torch.Tensor]) -> ShardSlots | None:
        """The place in which the state of shards outlives this process; None if it is out of reach."""
        from orchestrator.worker.member import lasting_memory
        from orchestrator.worker.member.shard_slots import ShardSlots

        if self._slots is None:
            return None
        try:
            fd = lasting_memory.opened(*self._slots)
        except OSError as error:
            self._emit({"event": "slots_out_of_reach", "why": str(error)})
            return None
        return ShardSlots(fd, shards, row)

    def _profile(self) -> Answer:
        from orchestrator.data.profile import at_sites, profile
        from orchestrator.numerics.streams import seeded

        train = self._member.training_data()
        with seeded(0, "profile"):
            return {
                "profile": at_sites(train) if self._plan.data.sites else profile(train),
                "partition": self._member.partition(),
                "layers": self._member.layers(),
            }

    def _describe(self, origin: str | None) -> Answer:
        from orchestrator.provenance.code import imported
        from orchestrator.provenance.environment import node

        modules = imported.gather(imported.files_of(sys.modules), self._project, origin)
        compute = self._plan.run.compute
        portable = compute.arithmetic == "portable"
        return {
            "environment": node.capture(compute.device, portable=portable, compiled=compute.compiled).as_dict(),
            "modules": [module.as_dict() for module in modules],
        }

    def _run(self, generation: Generation, rank: int, peers: dict[int, Any]) -> Answer:
        from orchestrator.comm.transports.sockets import connect

        assert self._checkpoint_client is not None
        # On a joined Ray it may be of another user. Late workers have tried before they were ready.
        tries = generation.is_first and rank in generation.writers and self._plan.cluster.address is not None
        self._checkpoint_client.open(generation.storage, tries=tries)
        timeouts = self._plan.cluster.timeouts

        def join() -> Transport:
            return connect(
                *(self._listener, rank, generation.number, peers, self._member.regions),
                *(timeouts.step_s, timeouts.unreachable_s),
            )

        with self._in_generation:
            try:
                return self._on_card(lambda: {"ended": self._member.run(generation, rank, join)}, self._computed)
            finally:
                self._heartbeat.rest()

    def _computed(self) -> dict[str, Any]:
        step, shard = self._heartbeat.computed
        return {"step": step, "shard": shard}

    def _on_card(self, action: Callable[[], Answer], at: Callable[[], dict[str, Any]]) -> Answer:
        """Its answer; or, if its GPU fails, that of `card_failure`. at: tells what was computed then."""
        try:
            return action()
        except Exception as error:
            answer = card_failure.answered(error, at(), self._card or card_failure.named_card(os.environ))
            if answer is None:
                raise
            # Tensors that its traceback holds may abort this process as they are let go of, before the answer is sent.
            self._failure = error
            return answer

    def _on_uuid(self, card: str) -> None:
        from orchestrator.numerics import cuda

        self._card = card
        self._crash_record.note_card(card)
        self._card_memory = cuda.card_memory()

    def _driver_lost(self) -> None:
        """The driver is gone: stop as if it had asked for that, and drop the entries that it has not received."""
        client = self._checkpoint_client
        if client is None or not client.is_open:
            return
        self._heartbeat.ask("stop", 0)  # in whatever generation
        with self._in_generation:
            if self._role == "worker":
                self._member.save_alone()
            client.wait()
            client.put(f"{PREFIX}{os.getpid()}.jsonl", written(self._event_queue.unacknowledged()))

    def _emit(self, entry: Entry) -> None:
        self._event_queue.put(entry, urgent=entry.get("event") in _URGENT)

    def _answer(self, action: Callable[[], Answer]) -> Answer:
        try:
            return action()
        except errors.OrchestratorError as error:
            return {"failed": error.as_dict()}
        except errors.CardFailed as error:
            return {"failed": error.error.as_dict()}
        except MemoryError as error:
            return {
                "failed": errors.RunFailed(
                    str(error) or "no memory left", _OF_MEMORY, code="worker.no-memory"
                ).as_dict()
            }
        except Exception as error:
            of_card = card_faults.of(error)
            if of_card is not None:
                return {"failed": of_card.told(card_faults.words(error).strip(), traceback.format_exc()).as_dict()}
            if errors.is_out_of_memory(error):
                return {
                    "failed": errors.RunFailed(
                        str(error).strip(), _OF_MEMORY, traceback.format_exc(), code="worker.no-memory"
                    ).as_dict()
                }
            remedy = (
                errors.OF_DESCRIPTORS if errors.is_out_of_descriptors(error) else _OF_A_GPU.get(type(error).__name__)
            )
            if remedy is not None:
                return {
                    "failed": errors.RunFailed(
                        str(error).strip(), remedy, traceback.format_exc(), code="worker.no-resource"
                    ).as_dict()
                }
            remedy = "this is a fault of orchestrator; the run's folder has the traceback, in error.txt"
            if (cause := shadowing.told(error)) is not None:
                remedy = f"{cause}. Otherwise {remedy}"
            fault = errors.RunFailed(
                f"{type(error).__name__}: {error}", remedy, traceback.format_exc(), code="worker.fault"
            )
            return {"failed": fault.as_dict()}
