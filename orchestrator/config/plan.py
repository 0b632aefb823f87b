"""What a run consists of, decided once: settings are resolved into a plan, and everything below the driver reads the plan.

    plan = resolve(settings)         # defaults of variants filled in, `auto` values decided, options built and checked
    plan.exchange.exact              # True

Engine, cluster, control and checkpoints know no key of the configuration; a rule that derives one value from several keys
stands in `resolve.py` and nowhere else.

What it does not do: anything that needs torch, Ray or the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from orchestrator.comm.synchronization import Mode, build_mode
from orchestrator.common.registry import Variant
from orchestrator.common.values import Every
from orchestrator.data.plan import Data, Declared, Privacy
from orchestrator.optim.patience import Watching
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
    "Plan",
    "Privacy",
    "Run",
    "Scaling",
    "Segments",
    "Source",
    "Update",
    "Variant",
    "Watching",
]


@dataclass(frozen=True)
class Source:
    """Where the user's pipeline comes from, and the arguments to build it with."""

    target: str
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Compute:
    """How a member's compute thread is set up. threads: of torch; precision: of products; arithmetic: of this processor, or
    with the same bits on all."""

    device: Literal["cpu", "cuda"]
    threads: int
    precision: Literal["float32", "bfloat16"]
    tf32: bool
    arithmetic: Literal["native", "portable"] = "native"


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
        """Who has done so many steps goes on after so many others; None: it is within a segment, or all are done."""
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
    """seed: of all randomness. Of steps and epochs one is set. initial: None where the pipeline's model is trained as it is;
    begin: None where the first step is step 0."""

    pipeline: Source
    compute: Compute
    seed: int
    steps: int | None
    epochs: int | None
    initial: Initial | None = None
    begin: Begin | None = None

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
    """What happens to a gradient. optimizer: None where the pipeline has its own; clip: the largest norm; warmup: steps in
    which the learning rate rises, before `schedule` has its way; contribution: what a shard makes of its gradient before the
    sum, and may keep state for, None for nothing; scaling: of the rate with the batch size, None for none; compression: in
    which form gradients travel, None for as they are; local: steps of a shard by itself, whose sum is then applied as a
    gradient is, None for none; sharded: the workers of a host divide it."""

    optimizer: Variant | None
    clip: float | None
    schedule: Variant
    warmup: int
    stopping: Watching | None
    plateau: Watching | None
    contribution: Variant | None = None
    scaling: Scaling | None = None
    compression: Variant | None = None
    local: Local | None = None
    sharded: bool = False

    @property
    def watches_a_metric(self) -> bool:
        """Whether the course of the run depends on evaluations."""
        return self.stopping is not None or self.plateau is not None


@dataclass(frozen=True)
class Exchange:
    """How members add up. exact: on a grid, free of order. by_tcp: also within a node; between_nodes: members of several nodes
    may have to reach each other. masked: workers mask their sums. tls: what travels by TCP is encrypted."""

    exact: bool
    topology: Variant
    by_tcp: bool
    between_nodes: bool
    masked: bool = False
    tls: bool = False


@dataclass(frozen=True)
class Members:
    """Of workers: how many to start with, the least to go on with, the most to grow to. servers: where the topology has them;
    stages: into so many the model is cut, and a worker hosts one of them."""

    start: int
    least: int
    most: int
    spares: int
    servers: int
    stages: int = 1

    def total(self, workers: int) -> int:
        """Processes, with so many workers."""
        return workers + self.spares + self.servers


@dataclass(frozen=True)
class Cluster:
    """address: of a Ray to join, None for a private one; cpus, gpus: set aside per member; together: all on one node; claims:
    whether workers of a host claim shards from each other, unless shards keep a state; claims_required: they must not;
    by_speed: shards are dealt by how fast workers are, where the mode leaves that free; speeds: of nodes by address, as
    declared."""

    address: str | None
    members: Members
    cpus: float
    gpus: float
    together: bool
    timeouts: Timeouts
    by_speed: bool = False
    speeds: Mapping[str, float] = field(default_factory=dict)
    claims: bool = False
    claims_required: bool = False


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
        """Of a wait for a peer. Only a safety net: the controller finds who hangs, within `step_s`."""
        return 2 * self.step_s + 10


@dataclass(frozen=True)
class Chaos:
    """How the run is disturbed by its user."""

    every_s: float
    kinds: tuple[Literal["kill", "pause"], ...]
    seed: int


@dataclass(frozen=True)
class Checkpoints:
    """every: None at the end only; keep: so many, the newest; uri: under which they lie, None for the run's folder; best: those
    of the best evaluations stay too; archive: one in so many steps for ever; is_model: the best one is the run's model."""

    every: Every | None
    keep: int
    uri: str | None
    best: Best | None = None
    archive: int | None = None
    is_model: bool = False


@dataclass(frozen=True)
class Cadence:
    """When something is looked at. evaluation: None at the end only. The next two are in steps, 0 for never: digests of all
    parameters together, and of each tensor. timeline: whether what members do is kept, moment by moment. check_every: steps
    between two in which workers check each other, 0 for never."""

    evaluation: Every | None
    digest_every: int
    tensors_every: int
    timeline: bool = False
    check_every: int = 0


@dataclass(frozen=True)
class Plan:
    run: Run
    data: Data
    update: Update
    exchange: Exchange
    cluster: Cluster
    checkpoints: Checkpoints
    cadence: Cadence
    sync: Variant  # of `orchestrator.comm.synchronization`
    pipelining: Variant = field(
        default_factory=partial(Variant, "1f1b")
    )  # of `pipeline_orders`; for several stages only
    recompute: bool = False  # whether stages compute forward passes once more; means nothing where there is one stage
    declared: Declared = field(default_factory=Declared)
    replay: tuple[Mapping[str, Any], ...] = ()  # the records of rests that are repeated; none where replicas run live
    segments: Segments | None = None  # of an audit, which repeats these steps alone
    chaos: Chaos | None = None  # None where nobody disturbs it on purpose

    @property
    def mode(self) -> Mode:
        """When a replica may go on."""
        return build_mode(self.sync.name, self.sync.options)

    @property
    def deals_by_speed(self) -> bool:
        """Whether shards are dealt by how fast their workers are: where who hosts a shard is no part of the result or of its
        record, shards are alike, and none is pinned to a site."""
        free = self.exchange.exact and not self.data.sites
        return self.cluster.by_speed and self.lockstep and free and self.update.local is None

    @property
    def lockstep(self) -> bool:
        """Whether all replicas are equal after each step."""
        return self.mode.execution == "lockstep"
