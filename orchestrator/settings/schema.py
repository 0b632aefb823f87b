"""The fields of the configuration, and the rules between them.

Each field says in its metadata what it is, what its value must be, and whether it determines the result of a run or
only its execution (rule F2); identity, rerun and documentation derive from that. `layout` marks the keys that say how
workers and servers are laid out: under `reduction: fast` sums follow the layout's order, so these then determine the
result too. `watched` marks what says when metrics are taken: it determines the result where early stopping or the plateau
schedule depend on one. Settings are validated where they are built, in `Settings.__post_init__`, whoever builds them.

Behind `topology`, `sync`, `schedule` and `contribution`, behind `data.partition`, `data.sampling` and `data.subset` and behind
`cluster.pipeline` stands a table each (`orchestrator.table`): their sections have a name, and the options of what it names.
Which options there are, and what they must be, says the table's entry. A section is known by its dotted path: `data.partition`
is one within `data`.

What it does not do: check what needs torch or the user's code (options of the optimizer, the target of the pipeline, variants
of the user's own).
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from orchestrator.errors import ConfigurationError
from orchestrator.pipelining import PIPELINING
from orchestrator.samples.partitions import PARTITIONS
from orchestrator.samples.samplings import SAMPLINGS
from orchestrator.samples.subsets import SUBSETS
from orchestrator.settings import stages
from orchestrator.synchrony import SYNCHRONY
from orchestrator.table import Table, is_reference
from orchestrator.topologies import TOPOLOGIES
from orchestrator.updates.compressions import COMPRESSIONS
from orchestrator.updates.compressions.quantize import most_shards
from orchestrator.updates.contributions import CONTRIBUTIONS
from orchestrator.updates.schedules import SCHEDULES
from orchestrator.values import (
    A_LINE,
    NONE_EMPTY,
    NOT_EMPTY,
    NOT_NEGATIVE,
    POSITIVE,
    Every,
    Given,
    MismatchError,
    Must,
    Notation,
    Span,
    Steps,
    Workers,
    at_least,
    matching,
    plain,
    read,
    show,
    unwrap,
)

MOST_CLIENTS, MOST_NOISE = 1 << 19, 1000.0  # of `privacy.lattice`, which needs torch
TABLES: dict[str, Table[Any]] = {
    table.key: table
    for table in (
        TOPOLOGIES,
        SYNCHRONY,
        SCHEDULES,
        CONTRIBUTIONS,
        COMPRESSIONS,
        PARTITIONS,
        SAMPLINGS,
        SUBSETS,
        PIPELINING,
    )
}
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class About:
    """doc: one sentence; must: a bound beyond the type, see `values`; layout, watched: see the head of this file."""

    doc: str
    determines: Literal["result", "execution"]
    must: Any = None
    layout: bool = False
    watched: bool = False


def result(doc: str, must: Any = None) -> dict[str, About]:
    """Metadata of a field that determines the result."""
    return {"about": About(doc, "result", must)}


def execution(doc: str, must: Any = None, *, layout: bool = False, watched: bool = False) -> dict[str, About]:
    """Metadata of a field that determines only how a run is executed."""
    return {"about": About(doc, "execution", must, layout, watched)}


SEED = Must("at least 0 and below 2**63", lambda seed: bool(0 <= seed < 2**63))
TARGET = matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", "package.module:Class")
ADDRESS = matching(r"([^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}", "host:port")
NOISE = Must("from 0 to 1000", lambda multiplier: bool(0 <= multiplier <= MOST_NOISE))
CHANCE = Must("greater than 0 and less than 1", lambda delta: bool(0 < delta < 1))
MODEL = matching(
    r"models:/[^/@:]+(@[^/@:]+|/\d+)|models:/m-[0-9a-f]+|runs:/[0-9a-z]+(/[^@:]+)?",
    "models:/NAME@ALIAS, models:/NAME/VERSION or runs:/RUN_ID",
)
REGISTERED = matching(r"[^/@:]+(@[^/@:]+)?", "NAME or NAME@ALIAS, without / and :")
HEX_DIGEST = matching(r"[0-9a-f]{64}", "a digest, 64 hexadecimal digits")
ABSOLUTE = Must("an absolute path, or one from ~", lambda path: str(path).startswith(("/", "~")))
AUTO: dict[KeyPath, str] = {
    ("topology", "name"): "topology",
    ("cluster", "workers"): "cluster.workers",
    ("data", "loaders"): "data.loaders",
    ("cluster", "stages"): "cluster.stages",
}
BY_MEMORY = "cluster.stages"  # the one of them that is not chosen by a measurement
TUNABLE = Must(f"among {', '.join(AUTO.values())}", lambda names: set(names) <= set(AUTO.values()))
NO_NAME = Must("a mapping without the key 'name'", lambda options: "name" not in options)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    name: str | None = field(default=None, metadata=execution("The name of the run in the tracker.", A_LINE))
    submission: str | None = field(
        default=None,
        metadata=execution("The id of the job that the run was launched by; once=ID finds it by this.", A_LINE),
    )
    experiment: str = field(
        default="default", metadata=execution("The experiment of the tracker that the run is filed under.", A_LINE)
    )
    seed: int = field(default=0, metadata=result("The seed of all randomness.", SEED))
    steps: int | None = field(
        default=None, metadata=result("How many steps to train; either this or `run.epochs`.", at_least(1))
    )
    epochs: int | None = field(
        default=None,
        metadata=result("How many passes over the training data; either this or `run.steps`.", at_least(1)),
    )
    threads: int = field(
        default=1, metadata=result("Threads of torch in each worker; another number gives other bits.", at_least(1))
    )
    precision: Literal["float32", "bfloat16"] = field(
        default="float32", metadata=result("The type in which products are computed; parameters are float32.")
    )
    arithmetic: Literal["native", "portable"] = field(
        default="native",
        metadata=result(
            "portable: the same bits on every x86-64 processor with AVX2, Intel's and AMD's; native: the fastest of this one."
        ),
    )
    device: Literal["cpu", "cuda"] = field(
        default="cpu",
        metadata=result("Where each worker computes; cuda: on one GPU, which cluster.gpus_per_worker reserves."),
    )
    tf32: bool = field(
        default=False, metadata=result("cuda: whether float32 products may be computed in TF32, faster and coarser.")
    )
    recompute: bool = field(
        default=False,
        metadata=execution(
            "With `cluster.stages`: compute forward passes once more before backward, and keep no activations in between."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    target: str = field(metadata=result("The class of the pipeline, importable from the working directory.", TARGET))
    args: dict[str, Any] = field(
        default_factory=dict, metadata=result("The arguments with which the pipeline is built.")
    )


@dataclass(frozen=True, kw_only=True)
class PartitionSettings:
    """Which samples a shard draws from; see `orchestrator/samples/partitions`. Options as those of a topology."""

    name: str = field(default="shared", metadata=result("How the training samples are divided among the shards."))
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a partition of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How a shard draws from its samples; see `orchestrator/samples/samplings.py`. Options as those of a topology."""

    name: str = field(default="uniform", metadata=result("How a shard draws from its samples."))
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a sampling of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class SubsetSettings:
    """Which training samples the run has; see `orchestrator/samples/subsets.py`. Options as those of a topology."""

    name: str = field(default="all", metadata=result("Which of the training samples the run has at all."))
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a subset of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    shards: int = field(
        default=8, metadata=result("The slices into which every step is divided; at most so many workers.", at_least(1))
    )
    batch_size: Steps = field(
        default=Steps.constant(64),
        metadata=result("Rows of a whole step, over all shards; `{0: 64, 400: 256}`: from these steps on."),
    )
    loaders: int = field(
        default=0,
        metadata=execution("Processes per worker that fetch batches ahead; 0: the worker fetches them.", at_least(0)),
    )
    inputs: tuple[str, ...] = field(
        default=(), metadata=result("The files and folders that the pipeline reads.", NONE_EMPTY)
    )
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    subset: SubsetSettings = field(default_factory=SubsetSettings)


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    """In which order stages take shards forward and backward; see `orchestrator/pipelining`. Options as those of a topology."""

    name: str = field(
        default="1f1b",
        metadata=execution("With `cluster.stages`: in which order a worker takes shards forward and backward."),
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata=execution("The options of an order of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    address: str | None = field(
        default=None,
        metadata=execution("The running Ray to join, as host:port; null: a private one on this machine.", ADDRESS),
    )
    workers: Workers = field(
        default=Workers(start=1, least=1, most=1),
        metadata=execution(
            "How many workers host the shards; a range starts at its min, grows to its max and pauses below its min.",
            layout=True,
        ),
    )
    stages: int = field(
        default=1,
        metadata=execution(
            "Into how many stages the model is cut, each hosted by some of the workers; 1: every worker has all of it.",
            at_least(1),
        ),
    )
    pipeline: OrderSettings = field(default_factory=OrderSettings)
    spares: int = field(
        default=0, metadata=execution("Workers that are started and wait to take a lost one's place.", at_least(0))
    )
    cpus_per_worker: float = field(default=1.0, metadata=execution("CPUs that Ray sets aside for a worker.", POSITIVE))
    gpus_per_worker: float = field(
        default=0.0, metadata=execution("GPUs that Ray sets aside for a worker.", NOT_NEGATIVE)
    )
    start_timeout_s: float = field(
        default=120.0,
        metadata=execution(
            "Seconds without progress after which the start of Ray or of a worker is given up.", POSITIVE
        ),
    )
    step_timeout_s: float = field(
        default=600.0,
        metadata=execution("Seconds without progress after which a worker is killed and replaced.", POSITIVE),
    )
    lease_s: float = field(
        default=60.0,
        metadata=execution("Seconds after which a worker that hears nothing from the driver ends itself.", POSITIVE),
    )


@dataclass(frozen=True, kw_only=True)
class TopologySettings:
    """In YAML the options stand beside the name, `topology: {name: tree, arity: 3}`; the topology has defaults of its own."""

    name: str = field(
        default="ring", metadata=execution("Who sends what to whom when workers add up gradients.", layout=True)
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata=execution("The options of a topology of your own.", NO_NAME, layout=True)
    )


@dataclass(frozen=True, kw_only=True)
class SyncSettings:
    """When a replica may go on; see `orchestrator/synchrony`. Options as those of a topology."""

    name: str = field(default="bsp", metadata=result("When a replica may go on without the others; bsp is lockstep."))
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a mode of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """In YAML the options stand beside the name: `optimizer: {name: adamw, lr: 0.001}`."""

    name: str | None = field(
        default=None,
        metadata=result("The optimizer of torch; required unless the pipeline brings its own.", NOT_EMPTY),
    )
    options: dict[str, Any] = field(
        default_factory=dict,
        metadata=result("Any option of that optimizer, such as `lr`, `betas` or `weight_decay`.", NO_NAME),
    )


@dataclass(frozen=True, kw_only=True)
class ContributionSettings:
    """What a shard contributes to a step; see `orchestrator/updates/contributions.py`. Options as those of a topology."""

    name: str = field(default="gradient", metadata=result("What a shard makes of its gradient before the sum."))
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a contribution of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class CompressionSettings:
    """In which form gradients travel; see `orchestrator/updates/compressions`. Options as those of a topology."""

    name: str = field(default="none", metadata=result("In which form gradients travel between workers."))
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a compression of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class LocalOptimizerSettings:
    """As the section `optimizer`."""

    name: str | None = field(
        default=None, metadata=result("The optimizer of a shard's local steps; begins anew in each round.", NOT_EMPTY)
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("Any option of that optimizer, such as `lr` or `momentum`.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """What a shard does by itself in a step of the run, which is then a round; see `engine/compute/local_steps.py`."""

    steps: int | None = field(
        default=None, metadata=result("Local steps of each shard in a round; null: rounds have none.", at_least(1))
    )
    epochs: int | None = field(
        default=None,
        metadata=result("Instead of `local.steps`: passes of each shard over its own samples.", at_least(1)),
    )
    optimizer: LocalOptimizerSettings = field(default_factory=LocalOptimizerSettings)
    proximal_mu: float = field(
        default=0.0, metadata=result("How strongly local steps are drawn to where the round began.", NOT_NEGATIVE)
    )
    clip: float | None = field(
        default=None, metadata=result("As `gradient.clip`, of each gradient of a local step.", POSITIVE)
    )
    weight: Literal["rows", "uniform"] = field(
        default="rows", metadata=result("What a shard counts in a round's mean: the rows that it used, or the same.")
    )


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """How little is told of single clients; see `orchestrator/privacy`. `secret` says where the secret lies; which one it is
    belongs to the identity of a run, by a hash of it."""

    clipping_norm: float | None = field(
        default=None,
        metadata=result(
            "The largest L2 norm of what a shard or client contributes, which is then put on a fixed lattice; null: off.",
            POSITIVE,
        ),
    )
    noise_multiplier: float = field(
        default=0.0,
        metadata=result(
            "Standard deviation of the noise in each sum, in clipping norms; 0: none, and nothing is promised.", NOISE
        ),
    )
    delta: float | None = field(
        default=None, metadata=result("The chance, below 1, with which the promised epsilon may fail.", CHANCE)
    )
    clients: int | None = field(
        default=None,
        metadata=result(
            "How many clients there are, as everybody may know; null: `data.partition.clients`, or `data.shards`.",
            at_least(1),
        ),
    )
    secret: str | None = field(
        default=None,
        metadata=execution(
            "The file of the secret that noise and sampling come from, outside the project; null: the user's own.",
            ABSOLUTE,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class GradientSettings:
    clip: float | None = field(
        default=None, metadata=result("The largest global L2 norm of a gradient; longer ones are scaled.", POSITIVE)
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """How the learning rate changes; see `orchestrator/updates/schedules`. Options as those of a topology."""

    name: str = field(default="constant", metadata=result("How the learning rate goes on after the warm-up."))
    warmup: int = field(default=0, metadata=result("Steps in which the learning rate rises to its value.", at_least(0)))
    scale: Literal["none", "linear", "sqrt"] = field(
        default="none",
        metadata=result(
            "How the learning rate grows with `data.batch_size / schedule.base_batch`: in proportion, or as its root."
        ),
    )
    base_batch: int | None = field(
        default=None, metadata=result("The batch size for which the learning rate was chosen.", at_least(1))
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata=result("The options of a schedule of your own.", NO_NAME)
    )


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingSettings:
    metric: str = field(default="validation/loss", metadata=result("The metric to watch.", NOT_EMPTY))
    patience: int | None = field(
        default=None,
        metadata=result(
            "Evaluations in a row without improvement after which the run stops; null: never.", at_least(1)
        ),
    )
    mode: Literal["min", "max"] = field(default="min", metadata=result("Whether less or more is better."))
    min_change: float = field(default=0.0, metadata=result("What counts as an improvement.", NOT_NEGATIVE))


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    every: Every | None = field(
        default=None,
        metadata=execution("How often the validation set is evaluated; null: only at the end.", watched=True),
    )


@dataclass(frozen=True, kw_only=True)
class InitialSettings:
    name: str | None = field(
        default=None,
        metadata=result(
            "The model in MLflow whose weights training begins with; an alias is recorded as its version.",
            MODEL,
        ),
    )
    digest: str | None = field(
        default=None,
        metadata=result(
            "The digest of these weights: a launch fills it in, and where it is given, others are refused.", HEX_DIGEST
        ),
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    every: Every | None = field(
        default=Every(seconds=60.0),
        metadata=execution("How often a checkpoint is written; null: only at the end and when the run is interrupted."),
    )
    keep: int = field(default=2, metadata=execution("How many checkpoints are kept, the newest ones.", at_least(1)))
    uri: str | None = field(
        default=None,
        metadata=execution("Where checkpoints lie, any fsspec URL; null: in the run's folder.", NOT_EMPTY),
    )


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    digest_every: int = field(
        default=100,
        metadata=execution("Steps between two digests of all parameters; 0: only at the end.", at_least(0)),
    )
    tensors_every: int = field(
        default=0,
        metadata=execution(
            "Steps between two sets of digests, one of each tensor, so that a divergence names tensors; 0: never.",
            at_least(0),
        ),
    )
    timeline: bool = field(
        default=False,
        metadata=execution(
            "Whether timeline.json shows what each worker does when, for ui.perfetto.dev or chrome://tracing."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """What a launch decides by measuring; see `orchestrator/commands/tune.py`. `topology: auto` is short for naming it here."""

    auto: tuple[str, ...] = field(
        default=(),
        metadata=execution(
            "What a launch chooses: topology, cluster.workers, data.loaders, cluster.stages; `topology: auto` puts it here.",
            TUNABLE,
        ),
    )
    seconds: float = field(
        default=2.0, metadata=execution("For how long each layout runs that is measured for that.", POSITIVE)
    )


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    uri: str | None = field(default=None, metadata=execution("The MLflow store; null: the project's own.", NOT_EMPTY))
    every_s: float = field(default=1.0, metadata=execution("Seconds between two writes to the store.", POSITIVE))
    register: str | None = field(
        default=None,
        metadata=execution(
            "The name, or NAME@ALIAS, under which the trained model is registered; the alias is newest if not given.",
            REGISTERED,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole configuration of a run. Raises ConfigurationError, with every problem, when it is wrong."""

    run: RunSettings = field(default_factory=RunSettings)
    pipeline: PipelineSettings
    data: DataSettings = field(default_factory=DataSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)
    sync: SyncSettings = field(default_factory=SyncSettings)
    reduction: Literal["exact", "fast"] = field(
        default="exact", metadata=result("exact: sums free of order, the same bits on any layout; fast: plain sums.")
    )
    transport: Literal["auto", "shared_memory", "tcp"] = field(
        default="auto",
        metadata=execution(
            "How gradients travel between workers; auto: by shared memory on one node, by TCP between nodes."
        ),
    )
    initial: InitialSettings = field(default_factory=InitialSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    contribution: ContributionSettings = field(default_factory=ContributionSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    secure_aggregation: bool = field(
        default=False,
        metadata=execution("Whether workers mask what they send, so that servers and observers see only sums."),
    )
    gradient: GradientSettings = field(default_factory=GradientSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    trace: TraceSettings = field(default_factory=TraceSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    tuning: TuningSettings = field(default_factory=TuningSettings)
    strict: bool = field(default=False, metadata=execution("Refuse to start a run that could not be repeated exactly."))
    environment: Literal["check", "ignore", "rebuild"] = field(
        default="check",
        metadata=execution(
            "rerun=: whether an environment that differs keeps the verdict from being exact; rebuild: it is made anew."
        ),
    )
    output: Literal["text", "json"] = field(
        default="text", metadata=execution("json: the last line of stdout is one JSON object.")
    )

    def __post_init__(self) -> None:
        values = {key: key.value(self) for key in KEYS}
        problems = [f"{key.name}: {problem}" for key in KEYS if (problem := _unfit(key, values[key]))]
        for section, table in TABLES.items():
            problems += _unfit_options(table, section_of(self, section))
        if not problems:
            problems = [sentence for _, sentence in broken_rules(values)]
        if problems:
            raise ConfigurationError(problems)

    @property
    def has_local_steps(self) -> bool:
        """Whether a step of the run is a round of local steps."""
        return self.local.steps is not None or self.local.epochs is not None

    @property
    def is_private(self) -> bool:
        """Whether noise hides single clients, so that the run has a secret and an epsilon."""
        return self.privacy.noise_multiplier > 0

    @property
    def watches_a_metric(self) -> bool:
        """Whether the run state of the run depends on evaluations."""
        return self.early_stopping.patience is not None or self.schedule.name == "plateau"


@dataclass(frozen=True, eq=False)
class Key:
    """One field of the schema: `path` is where its value stands in YAML, `holder`, the dotted path of its section, and
    `attribute` where in Settings."""

    path: KeyPath
    holder: str | None
    attribute: str
    kind: Any  # with its bounds
    about: About
    default: Any
    table: Table[Any] | None = None  # of the options below it

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def is_open(self) -> bool:
        """Whether any key may stand below it."""
        return typing.get_origin(unwrap(self.kind)[0]) is dict

    @property
    def is_flat(self) -> bool:
        """Whether what is below it stands in its section itself."""
        return self.is_open and self.attribute == "options"

    @property
    def takes_mapping(self) -> bool:
        """Whether its value may be a mapping, which is then one value and no section."""
        return self.is_open or self.kind in (Steps, Workers)

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    def value(self, settings: Settings) -> Any:
        return getattr(settings if self.holder is None else section_of(settings, self.holder), self.attribute)

    def plain(self, settings: Settings) -> Any:
        """The value as plain data; below a table every option that one of its entries has, null where it is not given."""
        value = plain(self.value(settings))
        if self.table is None or is_reference(section_of(settings, self.table.key).name):
            return value
        return {**dict.fromkeys(self.table.known_options()), **value}


def section_of(settings: Settings, name: str) -> Any:
    """The section of this dotted path."""
    return operator.attrgetter(name)(settings)


@dataclass(frozen=True)
class Rule:
    """What values of several keys must be together. `broken` gets them in this order; the first is the one to blame."""

    keys: tuple[str, ...]
    broken: Callable[..., str | None]


def _length_is_given_once(steps: int | None, epochs: int | None) -> str | None:
    if steps is None and epochs is None:
        return "run.steps or run.epochs: one is required"
    if steps is not None and epochs is not None:
        return TWO_LENGTHS
    return None


def _workers_have_shards(workers: Workers, shards: int, number_of_stages: int) -> str | None:
    if workers.most <= shards * number_of_stages:
        return None
    if number_of_stages > 1:
        return (
            f"cluster.workers: {workers.most} workers for {shards} shards in each of {number_of_stages} stages; a worker hosts "
            "at least one shard: lower cluster.workers or raise data.shards (which changes the result)"
        )
    return (
        f"cluster.workers: {workers.most} workers for {shards} shards; a worker hosts at least one shard: "
        "lower cluster.workers or raise data.shards (which changes the result)"
    )


def _unfit_for_tuning(
    auto: tuple[str, ...], reduction: str, sync: str, number_of_stages: int, compression: str, multiplier: float
) -> str | None:
    measured = [key for key in auto if key != BY_MEMORY]
    if not measured:
        return None
    keys = " and ".join(measured)
    if reduction == "fast" and set(measured) != {"data.loaders"}:
        return (
            f"{keys}: with reduction=fast the layout determines the result, and a measurement may not; give it, or set "
            "reduction=exact"
        )
    if sync != "bsp":
        return f"{keys}: what is chosen by measuring is the layout of lockstep, not of sync={sync}; give it"
    if number_of_stages > 1:
        return (
            f"{keys}: what is chosen by measuring is the layout of whole models; give it, or leave cluster.stages out"
        )
    if compression != "none":
        return f"{keys}: what is chosen by measuring is the layout of dense sums, not of compression={compression}; give it"
    if multiplier:
        return f"{keys}: a measurement would train with the noise of the run; give it"
    return None


def _fast_needs_a_number(reduction: str, workers: Workers) -> str | None:
    if reduction == "exact" or workers.start == workers.most:
        return None
    return (
        "cluster.workers: reduction=fast adds up in the order of the layout, so a range of workers would give any of several "
        "results; give a number of workers, or reduction=exact"
    )


def _shards_have_rows(batch_size: Steps, shards: int) -> str | None:
    if batch_size.least >= shards:
        return None
    return (
        f"data.batch_size: {batch_size.least} rows for {shards} shards; a shard computes at least one row: "
        "raise data.batch_size or lower data.shards"
    )


def _sizes_are_reached(batch_size: Steps, steps: int | None) -> str | None:
    last, rows = batch_size.changes[-1]
    if steps is None or last < steps:
        return None
    return f"data.batch_size: {rows} rows from step {last} on, but the run has {steps} steps: lower {last}, or leave it out"


def _epochs_are_alike(batch_size: Steps, span: Span | None, key: str) -> str | None:
    """What counts epochs counts the steps of the first one."""
    if batch_size.is_constant or span is None or span.epochs is None:
        return None
    return f"{key}: {span} is no number of steps where data.batch_size changes with the step; give it in steps"


def _every_needs_alike_epochs(batch_size: Steps, every: Span | None) -> str | None:
    return _epochs_are_alike(batch_size, every, "schedule.every")


def _end_needs_alike_epochs(batch_size: Steps, end: Span | None) -> str | None:
    return _epochs_are_alike(batch_size, end, "schedule.end")


def _shards_have_clients(clients: int | None, shards: int) -> str | None:
    if clients is None or clients >= shards:
        return None
    return (
        f"data.partition.clients: {clients} clients for {shards} shards; in each step a shard plays a client of its own: raise "
        f"data.partition.clients, or set data.shards={clients} (which changes the result)"
    )


def _clients_keep_nothing(clients: int | None, shards: int, contribution: str) -> str | None:
    if clients is None or clients <= shards or contribution == "gradient":
        return None
    return (
        f"contribution: {contribution} may keep a state for each shard, but of {clients} clients a shard plays another one in "
        "each step; leave contribution out"
    )


def _local_length_is_given_once(steps: int | None, epochs: int | None) -> str | None:
    if steps is None or epochs is None:
        return None
    return "local.steps and local.epochs: only one can be set"


def _local_steps_have_an_optimizer(name: str | None, steps: int | None, epochs: int | None) -> str | None:
    if (name is None) == (steps is None and epochs is None):
        return None
    if name is None:
        return "local.optimizer: required by local steps; for example local.optimizer={name: sgd, lr: 0.05}"
    return f"local.optimizer: {name} has nothing to do without local.steps or local.epochs; set one of them, or leave it out"


def _proximity_needs_local_steps(mu: float, steps: int | None, epochs: int | None) -> str | None:
    return None if mu == 0 else _needs_local_steps("local.proximal_mu", steps, epochs)


def _local_clip_needs_local_steps(clip: float | None, steps: int | None, epochs: int | None) -> str | None:
    return None if clip is None else _needs_local_steps("local.clip", steps, epochs)


def _needs_local_steps(key: str, steps: int | None, epochs: int | None) -> str | None:
    if steps is not None or epochs is not None:
        return None
    return f"{key}: it counts for local steps only; set local.steps or local.epochs, or leave it out"


def _local_epochs_need_parts(epochs: int | None, partition: str) -> str | None:
    if epochs is None or partition != "shared":
        return None
    return (
        "local.epochs: without data.partition a shard has no samples of its own to go through; set local.steps, or "
        "data.partition"
    )


def _unfit_for_local_steps(
    steps: int | None,
    epochs: int | None,
    reduction: str,
    clip: float | None,
    batch_size: Steps,
    contribution: str,
    run_epochs: int | None,
) -> str | None:
    if steps is None and epochs is None:
        return None
    if reduction == "fast":
        return "reduction: with local steps changes of parameters are added exactly; set reduction=exact"
    if clip is not None:
        return f"gradient.clip: with local steps there is no gradient of a step; set local.clip={clip:g} instead"
    if not batch_size.is_constant:
        return (
            f"data.batch_size: with local steps it cannot change with the step; set data.batch_size={batch_size.least}"
        )
    if contribution != "gradient":
        return (
            f"contribution: with local steps a shard contributes no gradient for {contribution}; leave contribution out"
        )
    if run_epochs is not None:
        return "run.epochs: with local steps a step of the run is a round; set run.steps, the number of rounds"
    return None


def _span_fits_rounds(steps: int | None, epochs: int | None, span: Span | None, key: str) -> str | None:
    if (steps is None and epochs is None) or span is None or span.epochs is None:
        return None
    return f"{key}: {span} is no number of rounds, which steps are with local; give it in steps"


def _every_fits_rounds(steps: int | None, epochs: int | None, every: Span | None) -> str | None:
    return _span_fits_rounds(steps, epochs, every, "schedule.every")


def _end_fits_rounds(steps: int | None, epochs: int | None, end: Span | None) -> str | None:
    return _span_fits_rounds(steps, epochs, end, "schedule.end")


def _scale_has_a_base(scale: str, base: int | None) -> str | None:
    if (scale == "none") == (base is None):
        return None
    if base is not None:
        return "schedule.base_batch: it counts for schedule.scale=linear or sqrt only; set one of them, or leave it out"
    return (
        f"schedule.scale: {scale} needs schedule.base_batch, the batch size that optimizer.lr was chosen for, such as "
        "schedule.base_batch=64"
    )


def _cuda_needs_gpus(device: str, gpus: float) -> str | None:
    if device == "cpu" or gpus > 0:
        return None
    return (
        "run.device: with cluster.gpus_per_worker=0 all GPUs are hidden from the workers; set cluster.gpus_per_worker=1, or "
        "less where workers are to share one"
    )


def _tf32_needs_cuda(tf32: object, device: str) -> str | None:
    if not tf32 or device == "cuda":
        return None
    return "run.tf32: only GPUs have TF32; set run.device=cuda, or leave run.tf32 out"


def _portable_needs_cpu(arithmetic: str, device: str) -> str | None:
    if arithmetic == "native" or device == "cpu":
        return None
    return (
        "run.arithmetic: portable is for CPUs, whose operators are known; set run.device=cpu, or run.arithmetic=native"
    )


def _portable_needs_one_thread(arithmetic: str, threads: int) -> str | None:
    if arithmetic == "native" or threads == 1:
        return None
    return (
        "run.threads: portable is known for one thread, as torch divides sums among more of them (docs/portable.md); set "
        "run.threads=1 and cluster.workers higher, which changes no bit"
    )


def _compression_is_exact(compression: str, reduction: str) -> str | None:
    if compression == "none" or reduction == "exact":
        return None
    return f"compression: {compression} needs sums that are free of order; set reduction=exact, or leave one of the two out"


def _masks_have_a_scale(masked: object, clipping_norm: float | None) -> str | None:
    if not masked or clipping_norm is not None:
        return None
    return (
        "secure_aggregation: masks need integers on a lattice that never changes; set privacy.clipping_norm, the largest norm "
        "of a contribution"
    )


def _noise_has_a_scale(multiplier: float, clipping_norm: float | None, delta: float | None) -> str | None:
    if multiplier == 0:
        if delta is None:
            return None
        return "privacy.delta: without noise nothing is promised; set privacy.noise_multiplier, or leave it out"
    if clipping_norm is None:
        return "privacy.noise_multiplier: noise is measured in clipping norms; set privacy.clipping_norm"
    if delta is None:
        return "privacy.delta: required by privacy.noise_multiplier; for example 1e-4, less than 1 in so many clients"
    return None


def _unfit_for_clipping(
    clipping_norm: float | None, reduction: str, compression: str, contribution: str, weight: str, *local: int | None
) -> str | None:
    if clipping_norm is None:
        return None
    if reduction == "fast":
        return "reduction: with privacy.clipping_norm contributions are added as integers; set reduction=exact"
    if compression != "none":
        return (
            f"compression: {compression} rounds to what all shards have together, and with privacy.clipping_norm the lattice "
            "is fixed; leave one of the two out"
        )
    if contribution != "gradient":
        return f"contribution: {contribution} may keep of a shard what was clipped off; with privacy.clipping_norm leave it out"
    if weight == "rows" and any(local):
        return (
            "local.weight: with privacy.clipping_norm all count the same, whatever they own; set local.weight=uniform"
        )
    return None


def _unfit_for_noise(
    multiplier: float, partition: str, sampling: str, loaders: int, batch_size: Steps, shards: int
) -> str | None:
    if multiplier == 0:
        return None
    if partition == "shared":
        return (
            "data.partition: with privacy.noise_multiplier clients are hidden, and without a partition none has samples of its "
            "own; set data.partition"
        )
    if sampling != "uniform":
        return (
            f"data.sampling: {sampling} may tell of other clients' samples; with privacy.noise_multiplier leave it out"
        )
    if loaders:
        return (
            "data.loaders: which clients play is known to workers alone, round by round; with privacy.noise_multiplier set "
            "data.loaders=0"
        )
    if not batch_size.is_constant or batch_size.least % shards:
        return (
            f"data.batch_size: with privacy.noise_multiplier each client takes as many rows; set a constant multiple of "
            f"data.shards={shards}"
        )
    return None


def _subsets_are_not_private(multiplier: float, subset: str) -> str | None:
    if multiplier == 0 or subset == "all":
        return None
    return (
        f"data.subset: what {subset} leaves to a run tells of other runs on the same clients, whose epsilons would have to be "
        "added up; with privacy.noise_multiplier leave it out"
    )


def _clients_fit_the_sum(
    clipping_norm: float | None, clients: int | None, among: int | None, shards: int
) -> str | None:
    number = clients or among or shards
    if clipping_norm is None or number <= MOST_CLIENTS:
        return None
    key = "privacy.clients" if clients else "data.partition.clients" if among else "data.shards"
    return f"{key}: sums of 64 bits hold {MOST_CLIENTS} clients on the lattice, not {number}; lower it"


def _clients_are_said_once(multiplier: float, clients: int | None, among: int | None, shards: int) -> str | None:
    if clients is None:
        return None
    if multiplier == 0:
        return "privacy.clients: it counts with privacy.noise_multiplier only; leave it out"
    if among is not None and among != clients:
        return f"privacy.clients: data.partition.clients says {among}; leave one of the two out"
    if clients < shards:
        return f"privacy.clients: in each round data.shards={shards} clients play on average; raise it, or lower data.shards"
    return None


def _levels_are_left(compression: str, bits: int | None, shards: int) -> str | None:
    if compression != "quantize":
        return None
    bits = bits or COMPRESSIONS.resolve(compression, {})["bits"]
    if shards <= most_shards(bits):
        return None
    wider = "set compression.bits=16, or " if shards <= most_shards(16) else ""
    return (
        f"compression.bits: the sum of {shards} shards has to fit {bits} bits, which leaves too few levels for each (at most "
        f"{most_shards(bits)} shards): {wider}lower data.shards"
    )


def _end_is_behind_warmup(end: Span | None, warmup: int) -> str | None:
    """Of epochs nobody knows the steps yet."""
    if end is None or end.steps is None or end.steps > warmup:
        return None
    return f"schedule.end: {end} is not behind the warm-up, whose last step is {warmup - 1}; raise it above schedule.warmup"


def _watching_needs_steps(watching: str | None, every: Every | None) -> str | None:
    """What depends on evaluations has to know their steps beforehand, or the result would depend on the clock."""
    if watching is None or (every is not None and every.steps is not None):
        return None
    return f"{watching} needs evaluation.every in steps, such as evaluation.every=100"


def _stopping_needs_steps(patience: int | None, every: Every | None) -> str | None:
    return _watching_needs_steps(None if patience is None else "early_stopping.patience", every)


def _plateau_needs_steps(schedule: str, every: Every | None) -> str | None:
    return _watching_needs_steps("schedule=plateau" if schedule == "plateau" else None, every)


def _digest_has_a_model(digest: str | None, name: str | None) -> str | None:
    if digest is None or name is not None:
        return None
    return "initial.digest: it is the digest of a model's weights; set initial, such as initial=models:/NAME@ALIAS"


TWO_LENGTHS = "run.steps and run.epochs: only one can be set"
_LOCAL = ("local.steps", "local.epochs")

RULES = (
    Rule(("run.steps", "run.epochs"), _length_is_given_once),
    Rule(("cluster.workers", "data.shards", "cluster.stages"), _workers_have_shards),
    Rule(("reduction", "cluster.workers"), _fast_needs_a_number),
    Rule(
        ("tuning.auto", "reduction", "sync.name", "cluster.stages", "compression.name", "privacy.noise_multiplier"),
        _unfit_for_tuning,
    ),
    Rule(("data.batch_size", "data.shards"), _shards_have_rows),
    Rule(("data.batch_size", "run.steps"), _sizes_are_reached),
    Rule(("data.batch_size", "schedule.every"), _every_needs_alike_epochs),
    Rule(("data.batch_size", "schedule.end"), _end_needs_alike_epochs),
    Rule(("data.partition.clients", "data.shards"), _shards_have_clients),
    Rule(("data.partition.clients", "data.shards", "contribution.name"), _clients_keep_nothing),
    Rule(("local.steps", "local.epochs"), _local_length_is_given_once),
    Rule(("local.optimizer.name", *_LOCAL), _local_steps_have_an_optimizer),
    Rule(("local.proximal_mu", *_LOCAL), _proximity_needs_local_steps),
    Rule(("local.clip", *_LOCAL), _local_clip_needs_local_steps),
    Rule(("local.epochs", "data.partition.name"), _local_epochs_need_parts),
    Rule(
        (*_LOCAL, "reduction", "gradient.clip", "data.batch_size", "contribution.name", "run.epochs"),
        _unfit_for_local_steps,
    ),
    Rule((*_LOCAL, "schedule.every"), _every_fits_rounds),
    Rule((*_LOCAL, "schedule.end"), _end_fits_rounds),
    Rule(("schedule.scale", "schedule.base_batch"), _scale_has_a_base),
    Rule(("run.device", "cluster.gpus_per_worker"), _cuda_needs_gpus),
    Rule(("run.tf32", "run.device"), _tf32_needs_cuda),
    Rule(("run.arithmetic", "run.device"), _portable_needs_cpu),
    Rule(("run.arithmetic", "run.threads"), _portable_needs_one_thread),
    Rule(("compression.name", "reduction"), _compression_is_exact),
    Rule(("compression.name", "compression.bits", "data.shards"), _levels_are_left),
    Rule(("secure_aggregation", "privacy.clipping_norm"), _masks_have_a_scale),
    Rule(("privacy.noise_multiplier", "privacy.clipping_norm", "privacy.delta"), _noise_has_a_scale),
    Rule(
        ("privacy.clipping_norm", "reduction", "compression.name", "contribution.name", "local.weight", *_LOCAL),
        _unfit_for_clipping,
    ),
    Rule(
        (
            *("privacy.noise_multiplier", "data.partition.name", "data.sampling.name", "data.loaders"),
            *("data.batch_size", "data.shards"),
        ),
        _unfit_for_noise,
    ),
    Rule(("privacy.clipping_norm", "privacy.clients", "data.partition.clients", "data.shards"), _clients_fit_the_sum),
    Rule(
        ("privacy.noise_multiplier", "privacy.clients", "data.partition.clients", "data.shards"),
        _clients_are_said_once,
    ),
    Rule(("initial.digest", "initial.name"), _digest_has_a_model),
    Rule(("privacy.noise_multiplier", "data.subset.name"), _subsets_are_not_private),
    Rule(("schedule.end", "schedule.warmup"), _end_is_behind_warmup),
    Rule(("early_stopping.patience", "evaluation.every"), _stopping_needs_steps),
    Rule(("schedule.name", "evaluation.every"), _plateau_needs_steps),
    *(Rule(keys, broken) for keys, broken in stages.RULES),
)


def broken_rules(values: Mapping[Key, Any]) -> list[tuple[Rule, str]]:
    """The rules that the values break, each with its sentence; rules over keys without a value are left out."""
    named = {key.name: value for key, value in values.items() if not key.is_open}
    for key, options in values.items():
        known = key.table.known_options() if key.table else {}
        named.update({f"{key.name}.{option}": options.get(option) for option in known})
    rules = [rule for rule in RULES if all(name in named for name in rule.keys)]
    found = [(rule, rule.broken(*(named[name] for name in rule.keys))) for rule in rules]
    return [(rule, sentence) for rule, sentence in found if sentence is not None]


def _unfit(key: Key, value: Any) -> str | None:
    value = plain(value) if key.table else value
    try:
        kept = read(key.kind, Given(value))
    except MismatchError as mismatch:
        return str(mismatch)
    return None if kept == value else f"expected {show(kept)}, got {show(value)}"


def _unfit_options(table: Table[Any], chosen: Any) -> list[str]:
    """chosen: the section of this table."""
    if is_reference(chosen.name):
        return []
    kept, problems = table.read(chosen.name, {option: Given(value) for option, value in chosen.options.items()})
    if not problems and kept != chosen.options:
        problems = [("options", f"expected {show(kept)}, got {show(chosen.options)}")]
    return [f"{table.key}.{option}: {problem}" for option, problem in problems]


def _keys(holder: str | None, kind: type) -> list[Key]:
    hints = typing.get_type_hints(kind)
    above = () if holder is None else tuple(holder.split("."))
    found: list[Key] = []
    for entry in dataclasses.fields(kind):
        hint = hints[entry.name]
        if "about" not in entry.metadata:
            found += _keys(".".join((*above, entry.name)), hint)
            continue
        flat_options = entry.name == "options"
        about: About = entry.metadata["about"]
        default = entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()
        path = above if flat_options else (*above, entry.name)
        table = TABLES.get(holder or "") if flat_options else None
        bound = hint if about.must is None else Annotated[hint, about.must]
        found.append(Key(path, holder, entry.name, bound, about, default, table))
    return found


def _sections(above: KeyPath, kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if inspect.isclass(hint) and dataclasses.is_dataclass(hint) and not issubclass(hint, Notation):
            found[".".join((*above, name))] = hint
            found |= _sections((*above, name), hint)
    return found


KEYS: tuple[Key, ...] = tuple(_keys(None, Settings))
BY_PATH: dict[KeyPath, Key] = {key.path: key for key in KEYS}
SECTIONS: dict[str, Any] = _sections((), Settings)  # by dotted path, each before those within it


def path_of(section: str) -> KeyPath:
    return tuple(section.split("."))


def locate(path: KeyPath) -> tuple[Key, KeyPath] | None:
    """The key that a path in YAML belongs to, and what of the path lies below it; None when there is no such key."""
    key = next((BY_PATH[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in BY_PATH), None)
    if key is None or (key.path != path and not key.is_open):
        return None
    return key, path[len(key.path) :]


def kind_at(path: KeyPath) -> Any:
    """The type of what stands at a path in YAML; None where that is any YAML, or no key."""
    located = locate(path)
    if located is None or (located[0].is_open and located[0].table is None):
        return None
    key, rest = located
    if not key.is_open or key.table is None:
        return key.kind
    entries = key.table.known_options().get(".".join(rest), {})
    return next((option.kind for option in entries.values()), None)


def keys_of(section: str) -> list[str]:
    """What can stand in a section."""
    found: list[str] = []
    for key in KEYS:
        if key.holder == section:
            found += list(key.table.known_options() if key.table else ()) if key.is_flat else [key.attribute]
    within = [path_of(each) for each in SECTIONS]
    return found + [path[-1] for path in within if path[:-1] == path_of(section)]


def shorthand(path: KeyPath) -> KeyPath:
    """The path that a scalar given at `path` sets: `topology` is short for `topology.name`, `early_stopping` for its `mode`."""
    names = ("name", "mode") if ".".join(path) in SECTIONS else ()
    return next(((*path, name) for name in names if (*path, name) in BY_PATH), path)
