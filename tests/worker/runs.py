"""Whole runs inside one process: every member is a thread, the wire is `tests.comm.transports.memory`.

    run = train(Mlp, workers=3, topology="tree", arity=3)      # Run: trace, digest, metrics, parameters
    ends = members_end(Broken, workers=3)                      # how each member ended

`LAYOUTS` are the ways in which one and the same run can be executed; no bit of its result may depend on which.

Not here: the driver's part. The traces of the workers are compared, as the driver does, but by the test itself.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from orchestrator.checkpoint.catalog import Catalog
from orchestrator.checkpoint.storage import open_storage
from orchestrator.cluster.actors.checkpoint_client import CheckpointClient
from orchestrator.cluster.forkserver.children import child
from orchestrator.comm.topologies import Schedule, build_schedule
from orchestrator.comm.transports.base import Transport
from orchestrator.config.plan import Plan, Segments, Variant
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import (
    CheckSettings,
    ClusterSettings,
    DataSettings,
    EarlyStoppingSettings,
    EvaluationSettings,
    Every,
    GradientSettings,
    InitialSettings,
    LocalSettings,
    OptimizerSettings,
    PipelineSettings,
    PrivacySettings,
    RunSettings,
    ScheduleSettings,
    Settings,
    Steps,
    TraceSettings,
    UpdateSettings,
    Workers,
)
from orchestrator.controller.events import Begin
from orchestrator.controller.rendezvous.schedules import groups_of
from orchestrator.controller.shard_assignment import assign_columns, assign_shards, assign_stages
from orchestrator.optim.privacy.secret import Secret
from orchestrator.pipeline import Pipeline
from orchestrator.records.trace import Line
from orchestrator.worker.member.heartbeat import Heartbeat
from orchestrator.worker.member.shared_queue import MemoryHandle, QueueMemory
from orchestrator.worker.member.time_account import TimeAccount
from orchestrator.worker.worker import Ended, Generation, ProcessServices, Server, Worker
from tests.comm.transports.memory import Hub, LocalRegions

PATIENCE_S = 120.0  # for what has to come; reached only when a test fails

Wire = Callable[[Hub, int, Any], Transport]  # the last is what the run's `regions` made
End = Ended | BaseException

SGD = {"name": "sgd", "lr": 0.1}
SECRET = Secret(bytes(range(32)), Path("nowhere"))


@dataclass(frozen=True)
class Layout:
    """How a run is executed: what may not matter."""

    workers: int = 1
    topology: str = "ring"
    arity: int | None = None
    servers: int | None = None
    stages: int = 1
    nodes: int = 1
    between: str | None = None

    def options(self) -> dict[str, Any]:
        given = {"arity": self.arity, "servers": self.servers, "between": self.between}
        return {option: value for option, value in given.items() if value is not None}

    def nodes_of(self, members: int) -> tuple[int, ...]:
        """The node of each of so many members, as nearly as many on each as may be."""
        return tuple(rank * self.nodes // members for rank in range(members))

    def __str__(self) -> str:
        stages = f"-in-{self.stages}" if self.stages > 1 else ""
        nodes = f"-on-{self.nodes}" if self.nodes > 1 else ""
        return f"{self.topology}-{self.workers}{stages}{nodes}" + "".join(f"-{k}{v}" for k, v in self.options().items())


ONE = Layout()
LAYOUTS = [
    Layout(workers, topology)
    for workers, topology in itertools.product((2, 3, 4, 5), ("ring", "tree", "parameter_server", "peer_to_peer"))
]
LAYOUTS[1::8] = [Layout(layout.workers, "tree", arity=3) for layout in LAYOUTS[1::8]]
LAYOUTS[2::8] = [Layout(layout.workers, "parameter_server", servers=2) for layout in LAYOUTS[2::8]]
LAYOUTS += [
    Layout(2, "hierarchical", nodes=2),
    Layout(3, "hierarchical", nodes=2),
    Layout(4, "hierarchical", nodes=2, between="tree"),
    Layout(5, "hierarchical", nodes=3),
]
LONELY = [
    Layout(1, "tree"),
    Layout(1, "parameter_server"),
    Layout(1, "parameter_server", servers=2),
    Layout(1, "peer_to_peer"),
    Layout(1, "hierarchical"),
]


def rotating(count: int, start: int) -> list[Layout]:
    """`count` of LAYOUTS, others for each `start`, so that a table of cases covers all of them."""
    endless = itertools.cycle(LAYOUTS)
    return list(itertools.islice(endless, start * count % len(LAYOUTS), start * count % len(LAYOUTS) + count))


class Shared:
    """Memory in which the workers of each node divide the update."""

    def __init__(self) -> None:
        self._grounds: defaultdict[int, QueueMemory] = defaultdict(QueueMemory)

    def places(self, nodes: Sequence[int]) -> tuple[MemoryHandle | None, ...]:
        """By worker's rank; as `driver.run.member_directory` gives them."""
        first = {node: nodes.index(node) for node in nodes}
        return tuple(
            MemoryHandle(first[node], *self._grounds[node].handle) if nodes.count(node) > 1 else None for node in nodes
        )


@dataclass(frozen=True)
class Run:
    """The results that a run left behind. metrics: of each evaluation, in order; parameters: and buffers at the end; rests:
    the records of those, where replicas run free in between."""

    trace: list[Line]
    digest: str
    metrics: list[dict[str, float]]
    parameters: dict[str, torch.Tensor]
    rests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [float.fromhex(line["loss"]) for line in self.trace]


def assert_same_run(run: Run, reference: Run) -> None:
    """To the last bit; NaN is equal to itself."""
    assert run.trace == reference.trace
    assert run.rests == reference.rests
    assert run.digest == reference.digest
    assert [_hex(metrics) for metrics in run.metrics] == [_hex(metrics) for metrics in reference.metrics]


def _hex(metrics: dict[str, float]) -> dict[str, str]:
    return {name: value.hex() for name, value in metrics.items()}


def settings_for(
    pipeline: type[Pipeline],
    layout: Layout = ONE,
    *,
    args: dict[str, Any] | None = None,
    steps: int | None = 4,
    epochs: int | None = None,
    seed: int = 7,
    shards: int = 5,
    batch_size: int | dict[int, int] = 10,
    optimizer: dict[str, Any] | None = SGD,
    clip: float | None = None,
    reduction: Any = "exact",
    evaluate_every: Every | None = None,
    digest_every: int = 1,
    tensors_every: int = 0,
    precision: Any = "float32",
    compiled: bool = False,
    recompute: bool = False,
    pipeline_order: str = "1f1b",
    loaders: int = 0,
    schedule: dict[str, Any] | None = None,
    early_stopping: dict[str, Any] | None = None,
    sync: dict[str, Any] | None = None,
    partition: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    subset: dict[str, Any] | None = None,
    order: dict[str, Any] | None = None,
    mixture: dict[str, float] | None = None,
    compression: dict[str, Any] | None = None,
    contribution: Variant | None = None,
    local: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    masked: bool = False,
    initial: dict[str, Any] | None = None,
    timeline: bool = False,
    claims: bool | None = None,
    sharded: bool = False,
    check_every: int | None = None,
    data_module: str | None = None,
) -> Settings:
    options, mode = dict(optimizer or {}), dict(sync or {"name": "bsp"})
    parts, draws = {"name": "shared", **(partition or {})}, {"name": "uniform", **(sampling or {})}
    used, visited = {"name": "all", **(subset or {})}, {"name": "shuffled", **(order or {})}
    return Settings(
        run=RunSettings(
            steps=None if epochs else steps,
            epochs=epochs,
            seed=seed,
            precision=precision,
            recompute=recompute,
            compile=compiled,
        ),
        pipeline=PipelineSettings(
            target=f"{pipeline.__module__}:{pipeline.__name__}", args=args or {}, data=data_module
        ),
        data=DataSettings(
            shards=shards,
            batch_size=Steps.parse(batch_size),
            loaders=loaders,
            partition=Variant(name=parts.pop("name"), options=parts),
            sampling=Variant(name=draws.pop("name"), options=draws),
            subset=Variant(name=used.pop("name"), options=used),
            order=Variant(name=visited.pop("name"), options=visited),
            mixture=mixture or {},
        ),
        cluster=ClusterSettings(
            workers=Workers.parse(layout.workers),
            stages=layout.stages,
            pipeline=Variant(name=pipeline_order),
            step_timeout_s=PATIENCE_S,
            claims=claims,
        ),
        topology=Variant(name=layout.topology, options=layout.options()),
        reduction=reduction,
        optimizer=OptimizerSettings(name=options.pop("name", None), options=options),
        gradient=GradientSettings(clip=clip),
        update=UpdateSettings(sharded=sharded),
        check=CheckSettings(every=check_every),
        evaluation=EvaluationSettings(every=evaluate_every),
        trace=TraceSettings(digest_every=digest_every, tensors_every=tensors_every, timeline=timeline),
        schedule=_schedule(schedule or {}),
        early_stopping=EarlyStoppingSettings(**(early_stopping or {})),
        sync=Variant(name=mode.pop("name"), options=mode),
        compression=_compression(compression or {"name": "none"}),
        contribution=contribution or Variant(name="gradient"),
        local=_local(**local) if local else LocalSettings(),
        privacy=PrivacySettings(**(privacy or {})),
        secure_aggregation=masked,
        initial=InitialSettings(**(initial or {})),
    )


def _compression(given: dict[str, Any]) -> Variant:
    return Variant(name=given["name"], options={key: given[key] for key in given if key != "name"})


def _local(*, optimizer: dict[str, Any], **others: Any) -> LocalSettings:
    options = dict(optimizer)
    return LocalSettings(optimizer=OptimizerSettings(name=options.pop("name"), options=options), **others)


def _schedule(given: dict[str, Any]) -> ScheduleSettings:
    own = {key: given[key] for key in ("name", "warmup", "scale", "base_batch") if key in given}
    return ScheduleSettings(**own, options={key: value for key, value in given.items() if key not in own})


def train(
    pipeline: type[Pipeline],
    layout: Layout = ONE,
    replay: Any = (),
    wire: Any = Hub.transport,
    regions: Any = None,
    keeping: Any = None,
    **settings: Any,
) -> Run:
    """The run, after checking that all its workers tell the same. replay: records of rests that are repeated. Raises the first
    exception of a member. wire, regions: a Wire, and what makes its members' regions; keeping: a Keeping."""
    members = _Members(settings_for(pipeline, layout, **settings), wire, replay, regions, layout, keeping)
    ends = members.run()
    if keeping is not None:
        keeping.heard(members.said)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    workers = range(layout.workers)
    traces = [[entry["trace"] for entry in members.said[rank] if "trace" in entry] for rank in workers]
    evaluations = [[entry for entry in members.said[rank] if entry.get("event") == "evaluated"] for rank in workers]
    rests = [[entry["rest"] for entry in members.said[rank] if "rest" in entry] for rank in workers]
    assert all(trace == traces[0] for trace in traces)
    assert all(told == rests[0] for told in rests)
    assert all(str(events) == str(evaluations[0]) for events in evaluations)  # as text: NaN is not equal to itself
    end = ends[0]
    assert isinstance(end, Ended)
    shown = [(each.kind, each.progress, each.digest) for each in ends if isinstance(each, Ended)]
    assert all(shown[rank] == shown[0] for rank in workers)
    assert end.kind == "finished"
    assert end.digest is not None
    hosts = [member for member in members.members[: layout.stages] if isinstance(member, Worker)]  # of each stage one
    parameters = {name: tensor for worker in hosts for name, tensor in worker.state().items()}
    return Run(traces[0], end.digest, [entry["metrics"] for entry in evaluations[0]], parameters, rests[0])


def windows_of(pipeline: type[Pipeline], layout: Layout, **settings: Any) -> dict[int, list[dict[str, Any]]]:
    """The time accounts of each member, by rank, one for each window."""
    members = _Members(settings_for(pipeline, layout, **settings), layout=layout)
    for end in members.run():
        if isinstance(end, BaseException):
            raise end
    return {rank: [each for each in said if each.get("event") == "times"] for rank, said in enumerate(members.said)}


def members_end(
    pipeline: type[Pipeline], layout: Layout = ONE, wire: Wire = Hub.transport, regions: Any = None, **settings: Any
) -> list[End]:
    """How each member ended; an exception while preparing ends all. regions: makes those of a member."""
    try:
        members = _Members(settings_for(pipeline, layout, **settings), wire, regions=regions, layout=layout)
    except Exception as error:
        return [error]
    return members.run()


def _generation(schedule: Schedule, plan: Plan, nodes: tuple[int, ...]) -> Generation:
    stages, shards = plan.cluster.members.stages, plan.data.shards
    if stages == 1:
        by_rank = (*nodes, *(0,) * schedule.servers)
        return generation_of(schedule, assign_shards(shards, schedule.workers), nodes=by_rank)
    return in_stages(schedule, plan, assign_stages([None] * schedule.workers, stages), nodes)


def in_stages(schedule: Schedule, plan: Plan, stage_of: tuple[int, ...], nodes: tuple[int, ...]) -> Generation:
    """The first generation of a model in stages. stage_of, nodes: by rank."""
    first = generation_of(schedule, assign_columns(plan.data.shards, stage_of), nodes=nodes, stages=stage_of)
    return replace(first, groups=groups_of(first.begin, plan.exchange))


def generation_of(schedule: Schedule, shards: tuple[tuple[int, ...], ...], **begin: Any) -> Generation:
    """A generation with these shards by rank, all on one node; begin: what else is known of it (`events.Begin`)."""
    usual = {"generation": 0, "nodes": (0,) * schedule.members, "run_manifest": {}}
    members = tuple(range(schedule.members))
    return Generation(Begin(members=members, shards=shards, **{**usual, **begin}), schedule)


@dataclass
class Keeping:
    """Has a run keep checkpoints in a folder, one in so many steps, or repeat segments of one that did. saved, begun: steps
    that were done -> digest of the state that was saved then, and of the parameters with which a segment began;
    without_streams: as saved, of states with places in streams."""

    folder: Path
    archive: int | None = None
    segments: Segments | None = None
    saved: dict[int, str] = field(default_factory=dict)
    begun: dict[int, str] = field(default_factory=dict)
    without_streams: dict[int, str] = field(default_factory=dict)

    def planned(self, plan: Plan) -> Plan:
        checkpoints = replace(plan.checkpoints, archive=self.archive)
        return replace(plan, checkpoints=checkpoints, segments=self.segments)

    def writer(self, said: list[dict[str, Any]]) -> dict[str, Any]:
        client = CheckpointClient(said.append)
        client.open(str(self.folder))
        return {"writer": client}

    def heard(self, said: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        entries = [entry for each in said for entry in each]
        parts = [entry for entry in entries if entry.get("event") == "part_written"]
        catalog = Catalog(open_storage(self.folder), keep=1000)
        for step in sorted({part["step"] for part in parts}):
            of_step = [part for part in parts if part["step"] == step]
            manifest = catalog.commit(step, of_step).manifest
            self.saved[step] = manifest.state_digest
            if manifest.digest_without_streams is not None:
                self.without_streams[step] = manifest.digest_without_streams
        self.begun = {entry["step"]: entry["digest"] for entry in entries if entry.get("event") == "segment_begun"}


class _Members:
    """The members of one run, prepared; their run manifests have to agree, as the controller wants."""

    def __init__(
        self,
        settings: Settings,
        wire: Wire = Hub.transport,
        replay: Sequence[Mapping[str, Any]] = (),
        regions: Callable[[], Any] | None = None,
        layout: Layout = ONE,
        keeping: Keeping | None = None,
    ) -> None:
        plan = replace(resolve(settings), replay=tuple(replay))
        if keeping is not None:
            plan = keeping.planned(plan)
        self._wire = wire
        workers = settings.cluster.workers.start
        nodes = layout.nodes_of(workers)
        self._schedule = build_schedule(settings.topology.name, workers, nodes=nodes, **settings.topology.options)
        self._hub = Hub(self._schedule.members)
        self._regions = [(regions or LocalRegions)() for _ in range(self._schedule.members)]
        kinds = [Worker] * self._schedule.workers + [Server] * self._schedule.servers
        self.said: list[list[dict[str, Any]]] = [[] for _ in kinds]
        accounts = [TimeAccount(spans=plan.cadence.timeline) for _ in kinds]
        hosts = [
            ProcessServices(
                Heartbeat(times=account),
                said.append,
                start=child,
                is_first=member == 0,
                **({} if keeping is None else keeping.writer(said)),
            )
            for member, (account, said) in enumerate(zip(accounts, self.said, strict=True))
        ]
        self.members = [
            kind(plan, regions, host) for kind, regions, host in zip(kinds, self._regions, hosts, strict=True)
        ]
        run_manifest = [member.prepare() for member in self.members]
        assert all(other == run_manifest[0] for other in run_manifest[: self._schedule.workers])
        self._run_manifest = run_manifest[0]
        generation = _generation(self._schedule, plan, nodes)
        begin = replace(generation.begin, run_manifest=self._run_manifest)
        self._ground = QueueMemory()
        boards = (MemoryHandle(0, *self._ground.handle),) * generation.workers if plan.cluster.claims else ()
        self._shared = Shared() if plan.update.sharded else None
        updates = () if self._shared is None else self._shared.places(begin.nodes[: generation.workers])
        writers = () if keeping is None else tuple(range(generation.workers))
        self._generation = replace(
            generation, begin=begin, keys=SECRET.keys("tests"), queues=boards, updates=updates, writers=writers
        )

    def run(self) -> list[End]:
        with ThreadPoolExecutor(self._schedule.members) as pool:
            futures = [pool.submit(self._live, rank) for rank in range(self._schedule.members)]
            return [future.exception() or future.result() for future in futures]

    def _live(self, rank: int) -> Ended:
        """One member's life."""
        member = self.members[rank]
        try:
            return member.run(self._generation, rank, lambda: self._wire(self._hub, rank, member.regions))
        finally:
            member.close()
