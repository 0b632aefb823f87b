"""The plan of a run: settings are resolved into it once, and everything below the driver reads it.

    plan = resolve(settings)         # defaults of variants filled in, `auto` values decided, options built and checked
    plan.exchange.exact              # True

Worker, cluster, controller and checkpoints know no key of the configuration; a rule that derives one value from several keys
stands in `resolve.py` and nowhere else.

It needs neither torch nor Ray nor the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from orchestrator.adapters.source import Source
from orchestrator.comm.synchronization import Mode, build_mode
from orchestrator.common.registry import Variant
from orchestrator.common.values import Every
from orchestrator.data.plan import Data, Declared, Privacy
from orchestrator.optim.patience import MonitoredMetric
from orchestrator.optim.ranking import Best
from orchestrator.optim.scaling import Scaling

__all__ = [
    "Cadence",
    "Chaos",
    "Checkpoints",
    "Cluster",
    "Compute",
    "Data",
    "Declared",
    "Exchange",
    "Initial",
    "Local",
    "Members",
    "MonitoredMetric",
    "Plan",
    "Privacy",
    "Run",
    "Scaling",
    "Segments",
    "Source",
    "Update",
    "Variant",
]


@dataclass(frozen=True)
class Compute:
    """How a member's compute thread is set up."""

    device: Literal["cpu", "cuda"]  # that computes
    threads: int  # of torch
    precision: Literal["float32", "bfloat16"]  # of products
    tf32: bool  # whether a GPU may compute float32 products in it
    arithmetic: Literal["native", "portable"] = "native"  # of this processor, or with the same bits on all
    graphs: bool = False  # whether the kernels of a shard may be launched together
    compiled: bool = False  # whether the model is compiled


@dataclass(frozen=True)
class Initial:
    """Weights that training begins with. name: of the model, for messages; digest: of its parameters and buffers; file: where
    they lie, from the project's folder."""

    name: str
    digest: str | None
    file: str


@dataclass(frozen=True)
class Begin:
    """The state of another run that this one begins with. name: of the run, with its step, for messages; step: the first that
    is computed; digest: of the state; folder: where its checkpoint lies, from the project's folder."""

    name: str
    step: int
    digest: str
    folder: str


@dataclass(frozen=True)
class Segments:
    """The parts of a run that an audit repeats, and nothing else. of: the run; storage: where its kept checkpoints lie; ranges:
    of steps, the first and the one after the last, in order and apart."""

    of: str
    storage: str
    ranges: tuple[tuple[int, int], ...]

    def due(self, steps: int) -> int | None:
        """The step to jump to after `steps` steps, or None inside a segment or after the last one."""
        first = next((first for first, end in self.ranges if steps < end), steps)
        return first if first >= steps and not self.over(steps) else None

    def end_at(self, steps: int) -> bool:
        """Whether one of them ends after so many steps."""
        return any(end == steps for _, end in self.ranges)

    def over(self, steps: int) -> bool:
        """Whether all of them have been done."""
        return steps >= self.ranges[-1][1]


@dataclass(frozen=True)
class Run:
    """The length of training, its seed, its arithmetic, and the state that it begins from."""

    pipeline: Source  # the user's pipeline
    compute: Compute  # how each member computes
    seed: int  # of all randomness
    steps: int | None  # how many are trained; None where `epochs` says it
    epochs: int | None  # passes over the training data; None where `steps` says it
    initial: Initial | None = None  # the weights to begin with; None where the pipeline's model is trained as it is
    begin: Begin | None = None  # the state of another run to begin with; None where the first step is step 0

    @property
    def first_step(self) -> int:
        return 0 if self.begin is None else self.begin.step

    def length(self, steps_of: Callable[[int], int]) -> int:
        """In steps. steps_of: so many epochs."""
        return self.steps if self.steps is not None else steps_of(self.epochs or 0)


@dataclass(frozen=True)
class Local:
    """How a shard steps by itself in a round. proximal_mu: of the pull towards where the round began; clip: the largest norm of
    a gradient; uniform: whether all shards weigh the same, and not as many as their rows."""

    optimizer: Variant
    proximal_mu: float
    clip: float | None
    uniform: bool


@dataclass(frozen=True)
class Update:
    """How a gradient changes the parameters."""

    optimizer: Variant | None  # None where the pipeline has its own
    clip: float | None  # the largest norm of a gradient; None for no bound
    schedule: Variant  # how the learning rate changes over the steps after `warmup`
    warmup: int  # steps in which the learning rate rises to its value
    stopping: MonitoredMetric | None  # the metric that ends the run early; None for none
    plateau: MonitoredMetric | None  # the metric that lowers the learning rate; None for other schedules
    contribution: Variant | None = None  # what a shard makes of its gradient before the sum; None for nothing
    scaling: Scaling | None = None  # of the learning rate with the batch size; None for none
    compression: Variant | None = None  # the form in which gradients travel; None for as they are
    local: Local | None = None  # a shard's steps by itself, whose sum is applied as a gradient is; None for none
    sharded: bool = False  # whether the workers of a host divide the update

    @property
    def monitors_a_metric(self) -> bool:
        """Whether the course of the run depends on evaluations."""
        return self.stopping is not None or self.plateau is not None


@dataclass(frozen=True)
class Exchange:
    """How members add up."""

    exact: bool  # whether sums are made on a grid, free of order
    topology: Variant  # who sends what to whom
    by_tcp: bool  # whether members of one node use TCP too
    between_nodes: bool  # whether members of several nodes may have to reach each other
    masked: bool = False  # whether workers mask their sums
    tls: bool = False  # whether what travels by TCP is encrypted


@dataclass(frozen=True)
class Members:
    """How many processes a run has."""

    start: int  # workers to start with
    least: int  # workers to go on with; below, the run pauses
    most: int  # workers to grow to
    spares: int = 0  # prepared workers that wait for a place
    servers: int = 0  # 0 where the topology has none
    stages: int = 1  # parts into which the model is cut; a worker hosts one of them

    def total(self, workers: int) -> int:
        """Processes, with so many workers."""
        return workers + self.spares + self.servers

    def within(self, room: int, *, exact: bool) -> Members:
        """The same, started with no more processes than there is room for, as far as the run goes on with so few. exact: as
        in Exchange, where the number of servers changes no bit."""
        servers = min(self.servers, max(1, room - self.least)) if exact else self.servers
        start = max(self.least, min(self.start, room - servers))
        return replace(self, start=start, servers=servers, spares=max(0, min(self.spares, room - servers - start)))


@dataclass(frozen=True)
class Cluster:
    """The place of members, and the shards that each computes."""

    address: str | None  # of a Ray to join; None for a private one
    members: Members  # how many
    cpus: float  # set aside per member
    gpus: float  # set aside per member
    together: bool  # whether all members run on one node
    timeouts: Timeouts  # how long members wait for each other
    by_speed: bool = False  # whether shards are dealt by how fast workers are, where the mode leaves that free
    speeds: Mapping[str, float] = field(default_factory=dict)  # of nodes by address, as declared
    claims: bool = False  # whether workers of a host claim shards from each other, unless shards keep a state
    claims_required: bool = False  # whether shards that keep a state are refused, since the user asked for claims
    card_type: str | None = None  # of the GPU of each member, as Ray names it; None: any
    card_bytes: int | None = None  # that each member may take of its GPU; None: all that is there
    # of host memory, that a worker of a stage takes while it has the whole model; None: it is not known
    preparing_bytes: int | None = None


@dataclass(frozen=True)
class Timeouts:
    """In seconds. start: until all have started; step: without progress; lease: without a word from the driver;
    unreachable: without an answer from another host."""

    start_s: float
    step_s: float
    lease_s: float
    unreachable_s: int = 5

    @property
    def deadline_s(self) -> float:
        """The deadline of a wait for a peer. Only a safety net: the controller finds who hangs, within `step_s`."""
        return 2 * self.step_s + 10


@dataclass(frozen=True)
class Chaos:
    """How the run is disturbed by its user."""

    every_s: float
    kinds: tuple[Literal["kill", "pause"], ...]
    seed: int


@dataclass(frozen=True)
class Checkpoints:
    """When checkpoints are written, where to, and which of them stay."""

    every: Every | None  # steps, epochs or seconds between two; None for one at the end only
    keep: int  # so many of the newest stay
    uri: str | None  # the place they lie under; None for the run's folder
    best: Best | None = None  # those of the best evaluations stay too; None for none
    archive: int | None = None  # one in so many steps stays for ever; None for none
    is_model: bool = False  # whether the best one is the run's model


@dataclass(frozen=True)
class Cadence:
    """When something is looked at. evaluation: None at the end only. The next two are in steps, 0 for never: digests of all
    parameters together, and of each tensor. timeline: whether members' activities are kept, moment by moment. check_every:
    steps between two in which workers check each other, 0 for never."""

    evaluation: Every | None
    digest_every: int
    tensors_every: int
    timeline: bool = False
    check_every: int = 0


@dataclass(frozen=True)
class Plan:
    run: Run  # what is trained, and for how long
    data: Data  # which samples a micro-batch holds
    update: Update  # what happens to a gradient
    exchange: Exchange  # how members add up
    cluster: Cluster  # where members run
    checkpoints: Checkpoints  # when state is written, and what of it stays
    cadence: Cadence  # when something is looked at
    sync: Variant  # of `orchestrator.comm.synchronization`
    # of `orchestrator.comm.pipeline_schedules`; for several stages only
    pipelining: Variant = field(default_factory=partial(Variant, "1f1b"))
    recompute: bool = False  # whether stages compute forward passes once more; means nothing where there is one stage
    declared: Declared = field(default_factory=Declared)  # what the pipeline may read
    replay: tuple[Mapping[str, Any], ...] = ()  # the records of rests that are repeated; none where replicas run live
    segments: Segments | None = None  # of an audit, which repeats these steps alone
    chaos: Chaos | None = None  # None where nobody disturbs it on purpose

    @property
    def mode(self) -> Mode:
        """When a replica may go on."""
        return build_mode(self.sync.name, self.sync.options)

    @property
    def assigns_by_speed(self) -> bool:
        """Whether shards are dealt by how fast their workers are: where who hosts a shard is no part of the result or of its
        record, shards are alike, and none is pinned to a site."""
        free = self.exchange.exact and not self.data.sites
        return self.cluster.by_speed and self.lockstep and free and self.update.local is None

    @property
    def sums_stay_on_device(self) -> bool:
        """Whether contributions, sums and results never leave the device of the model, or of a stage of it: in lockstep, where
        nothing comes between what a shard contributes and the sum."""
        plain = self.update.compression is None and self.data.privacy is None
        return self.run.compute.device == "cuda" and self.lockstep and plain

    @property
    def encodes_on_device(self) -> bool:
        """Whether contributions are compressed or clipped on the device of the model: what is made of them leaves it, to be
        added up in host memory."""
        encoded = self.update.compression is not None or self.data.privacy is not None
        return self.run.compute.device == "cuda" and self.lockstep and encoded

    @property
    def updates_stay_on_device(self) -> bool:
        """Whether replicas that run free, and the updates that are added to them, never leave the device of the model."""
        return self.run.compute.device == "cuda" and not self.lockstep

    @property
    def lockstep(self) -> bool:
        """Whether all replicas are equal after each step."""
        return self.mode.execution == "lockstep"

    @property
    def repeats(self) -> bool:
        """Whether a step that is computed again after a loss has the same bits: not with fewer sites, or in another order."""
        return self.lockstep and not self.data.sits_out
