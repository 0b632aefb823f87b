"""The fields of the configuration, section by section.

Each field says in its metadata what it is, what its value must be, and whether it determines the result of a run or
only its execution (rule F2); identity, rerun and documentation derive from that. `layout` marks the keys that say how
workers and servers are laid out: under `reduction: fast` sums follow the layout's order, so these then determine the
result too. `monitored` marks what says when metrics are taken: it determines the result where early stopping or the plateau
schedule depend on one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from orchestrator.adapters.source import Source
from orchestrator.common.checked_values import (
    A_LINE,
    GIGABYTES,
    NONE_EMPTY,
    NOT_EMPTY,
    NOT_NEGATIVE,
    POSITIVE,
    Must,
    at_least,
    between,
    matching,
)
from orchestrator.common.registry import Variant, is_reference
from orchestrator.common.values import Every, Sites, Steps, Workers, are_labels, are_speeds
from orchestrator.data.sampling.mixtures import LONGEST, are_weights
from orchestrator.records.loggers import LOGGERS

MOST_NOISE = 1000.0  # with more, sums of `optim.privacy.quantization_grid` could exceed 64 bits
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class About:
    """The metadata of one setting. doc: one sentence; must: a bound beyond the type, see `values`; layout, monitored: see the
    head of this file."""

    doc: str
    determines: Literal["result", "execution"]
    must: Any = None
    layout: bool = False
    monitored: bool = False


Metadata = dict[str, About]  # of a field


def result(doc: str, must: Any = None) -> Metadata:
    """Metadata of a field that determines the result."""
    return {"about": About(doc, "result", must)}


def execution(doc: str, must: Any = None, *, layout: bool = False, monitored: bool = False) -> Metadata:
    """Metadata of a field that determines only how a run is executed."""
    return {"about": About(doc, "execution", must, layout, monitored)}


PORT = Must("from 1 to 65535", lambda port: bool(1 <= port <= 65535))
SEED = Must("at least 0 and below 2**63", lambda seed: bool(0 <= seed < 2**63))
TARGET = matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", "package.module:Class")
ADDRESS = matching(r"([^\s/:\[\]]+|\[[0-9a-fA-F:.]+\]):\d{1,5}", "host:port")
# The lattice of contributions is a 2**-40 of their clipping norm: with a larger one what is learned from counts as zero, and
# smaller noise would be rounded away.
CLIPPING = Must("from 1e-30 to 1e6", lambda norm: bool(1e-30 <= norm <= 1e6))
NOISE = Must("0, or from 1e-6 to 1000", lambda multiplier: bool(not multiplier or 1e-6 <= multiplier <= MOST_NOISE))
CHANCE = Must("greater than 0 and less than 1", lambda delta: bool(0 < delta < 1))
MODEL = matching(
    r"models:/[^/@:]+(@[^/@:]+|/\d+)|models:/m-[0-9a-f]+|runs:/[0-9a-z]+(/[^@:]+)?|[^@:]+\.ckpt",
    "models:/NAME@ALIAS, models:/NAME/VERSION, runs:/RUN_ID or a file of Lightning, FILE.ckpt",
)
LABELS = Must(
    "a list of NAME or NAME=VALUE, names of letters, digits and . - _ each once, on one line each", are_labels
)
WRITTEN = Must(
    f"a list of {', '.join(LOGGERS)} or your own as package.module:name, each once",
    lambda names: len({*names}) == len(names) and all(name in LOGGERS or is_reference(name) for name in names),
)
REGISTERED = matching(r"[^/@:]+(@[^/@:]+)?", "NAME or NAME@ALIAS, without / and :")
CHECKPOINT = matching(r"[0-9a-z]+(@(\d+|best))?", "RUN_ID, RUN_ID@STEP or RUN_ID@best")
HEX_DIGEST = matching(r"[0-9a-f]{64}", "a digest, 64 hexadecimal digits")
VARIABLES = Must("names of variables, without =", lambda names: all(re.fullmatch(r"[^=\0\s]+", name) for name in names))
ABSOLUTE = Must("an absolute path, or one from ~", lambda path: str(path).startswith(("/", "~")))
AUTO: dict[KeyPath, str] = {
    ("topology", "name"): "topology",
    ("cluster", "workers"): "cluster.workers",
    ("data", "loaders"): "data.loaders",
    ("cluster", "stages"): "cluster.stages",
}
BY_MEMORY = "cluster.stages"  # the one of them that is not chosen by a measurement
TUNABLE = Must(f"among {', '.join(AUTO.values())}", lambda names: set(names) <= set(AUTO.values()))
SPEEDS = Must("a list of ADDRESS=SPEED with numbers above 0, each address once", are_speeds)
MIXTURE = Must(
    f"numbers above 0 by name, whole ones in at most {LONGEST} rows (0.7 and 0.3: 7 and 3 in 10)", are_weights
)
MOST_LOADERS = MOST_SPARES = 1000  # processes: a digit too many would fill the machine
IN_SECONDS = Must("in seconds, such as 60s", lambda every: every.seconds is not None)
KINDS: tuple[Literal["kill"], Literal["pause"]] = ("kill", "pause")
DISTURBANCES = Must(
    f"a list of {' and '.join(KINDS)}, one of them or both",
    lambda kinds: len({*kinds}) == len(kinds) > 0 and {*kinds} <= {*KINDS},
)
NO_NAME = Must("a mapping without the key 'name'", lambda options: "name" not in options)


Within = dict[str, Metadata]


def variant(one: str, about: Metadata) -> Within:
    """Metadata of a section that names an entry of a table. In YAML the entry's options stand beside the name:
    `topology: {name: tree, arity: 3}`. one: what an entry is called; about: the name."""
    options = replace(about["about"], doc=f"The options of {one} of your own.", must=NO_NAME)
    return {"within": {"name": about["about"], "options": options}}


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """As a `Variant`, of an optimizer, which may be none: `optimizer: {name: adamw, lr: 0.001}`."""

    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def optimizer(doc: str, options: str) -> Within:
    """options: some, for an example."""
    of_options = About(f"Any option of that optimizer, such as {options}.", "result", NO_NAME)
    return {"within": {"name": About(doc, "result", NOT_EMPTY), "options": of_options}}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    name: str | None = field(
        default=None, metadata=execution("The name of the run in the tracker; null: the class of its pipeline.", A_LINE)
    )
    submission: str | None = field(
        default=None,
        metadata=execution("The id of the job that the run was launched by; once=ID finds it by this.", A_LINE),
    )
    experiment: str = field(
        default="default", metadata=execution("The experiment of the tracker that the run is filed under.", A_LINE)
    )
    note: str | None = field(
        default=None,
        metadata=execution("The purpose of this run, in words; above its results and on its card.", NOT_EMPTY),
    )
    tags: tuple[str, ...] = field(
        default=(),
        metadata=execution(
            "Labels of the run, NAME or NAME=VALUE; runs where=tag.NAME=VALUE finds it by them.", LABELS
        ),
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
        default="float32",
        metadata=result("The type in which products are computed, by autocast if bfloat16; parameters are float32."),
    )
    arithmetic: Literal["native", "portable"] = field(
        default="native",
        metadata=result(
            "portable: the same bits on every x86-64 processor with AVX2, Intel's and AMD's; native: the fastest of this one."
        ),
    )
    supervised: bool | None = field(
        default=None,
        metadata=execution(
            "Whether a small process goes on with the run when its driver dies; null: where an MLflow server keeps the record."
        ),
    )
    device: Literal["cpu", "cuda"] = field(
        default="cpu",
        metadata=result("The device of each worker; cuda: one GPU, which cluster.gpus_per_worker reserves."),
    )
    tf32: bool = field(
        default=False, metadata=result("cuda: whether float32 products may be computed in TF32, faster and coarser.")
    )
    graphs: Literal["auto", "false"] = field(
        default="auto",
        metadata=execution(
            "cuda: whether a shard's kernels are launched together, as a CUDA graph, where the model allows it."
        ),
    )
    compile: bool = field(
        default=False,
        metadata=result(
            "Whether the model is compiled by torch's compiler, which gives other bits, and most on a GPU."
        ),
    )
    recompute: bool = field(
        default=False,
        metadata=execution(
            "With `cluster.stages`: compute forward passes once more before backward, and keep no activations in between."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings:
    name: Literal["check", "ignore", "rebuild"] = field(
        default="check",
        metadata=execution(
            "rerun=: whether an environment that differs keeps the verdict from being exact; rebuild: it is made anew."
        ),
    )
    variables: tuple[str, ...] = field(
        default=(),
        metadata=execution(
            "The variables that the pipeline reads: recorded, brought to every node, set again by a rerun.", VARIABLES
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    target: str = field(metadata=result("The class of the pipeline, importable from the working directory.", TARGET))
    args: dict[str, Any] = field(
        default_factory=dict, metadata=result("The arguments with which the pipeline is built.")
    )
    data: str | None = field(
        default=None,
        metadata=result("The data module of a target of another framework; a pipeline has its `datasets()`.", TARGET),
    )
    data_args: dict[str, Any] = field(
        default_factory=dict, metadata=result("The arguments with which `pipeline.data` is built.")
    )

    @property
    def source(self) -> Source:
        return Source(self.target, dict(self.args), self.data, dict(self.data_args))


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    shards: int = field(
        default=8,
        metadata=result(
            "The slices of each batch, one forward and backward pass each; at most so many workers.", at_least(1)
        ),
    )
    batch_size: Steps = field(
        default=Steps.constant(64),
        metadata=result(
            "The global batch size: rows of a step, over all shards; `{0: 64, 400: 256}`: from these steps on."
        ),
    )
    loaders: int = field(
        default=0,
        metadata=execution(
            "Processes per worker that fetch batches ahead, as num_workers of a DataLoader; 0: the worker does.",
            between(0, MOST_LOADERS),
        ),
    )
    cache_gb: float = field(
        default=10.0,
        metadata=execution("How many gigabytes of files from elsewhere (`Files`) a node keeps on its disk.", GIGABYTES),
    )
    cache_folder: str | None = field(
        default=None,
        metadata=execution("The folder in which a node keeps them; null: the user's cache folder.", NOT_EMPTY),
    )
    store_timeout_s: float = field(
        default=600.0,
        metadata=execution("Seconds for which a store that does not answer is waited for, and asked again.", POSITIVE),
    )
    sites: Sites = field(
        default=Sites({}),
        metadata=execution(
            "Which shards' samples are read where only: by site, a resource of Ray that its nodes offer."
        ),
    )
    absent: Literal["wait", "sit_out"] | None = field(
        default=None,
        metadata=execution(
            "While a site is away: wait for it, or go on without it; null: with local, go on, else wait."
        ),
    )
    inputs: tuple[str, ...] = field(
        default=(), metadata=result("The files and folders that the pipeline reads.", NONE_EMPTY)
    )
    order: Variant = field(
        default_factory=partial(Variant, "shuffled"),
        metadata=variant("an order", result("In which order an epoch visits the training samples.")),
    )
    mixture: dict[str, Any] = field(
        default_factory=dict,
        metadata=result(
            "If `datasets()` returns several training sets by name, the weight of each: its share of the rows.",
            MIXTURE,
        ),
    )
    partition: Variant = field(
        default_factory=partial(Variant, "shared"),
        metadata=variant("a partition", result("How the training samples are divided among the shards.")),
    )
    sampling: Variant = field(
        default_factory=partial(Variant, "uniform"),
        metadata=variant("a sampling", result("How a shard draws from its samples.")),
    )
    subset: Variant = field(
        default_factory=partial(Variant, "all"),
        metadata=variant("a subset", result("Which of the training samples the run has at all.")),
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
    pipeline: Variant = field(
        default_factory=partial(Variant, "1f1b"),
        metadata=variant(
            "an order", execution("With `cluster.stages`: in which order a worker takes shards forward and backward.")
        ),
    )
    claims: bool | None = field(
        default=None,
        metadata=execution(
            "Whether a worker that is done claims shards of others on its host (work stealing); null: in lockstep, where "
            "shards keep nothing."
        ),
    )
    deal: Literal["measured", "equal"] = field(
        default="measured",
        metadata=execution(
            "How shards are dealt among workers: by how fast these are seen to be (in lockstep, with exact sums), or equally."
        ),
    )
    speeds: tuple[str, ...] = field(
        default=(),
        metadata=execution(
            "How fast nodes of a joined Ray are, as ADDRESS=SPEED, others 1: by that shards are dealt until times are known.",
            SPEEDS,
        ),
    )
    spares: int = field(
        default=0,
        metadata=execution("Workers that are started and wait to take a lost one's place.", between(0, MOST_SPARES)),
    )
    cpus_per_worker: float = field(default=1.0, metadata=execution("CPUs that Ray sets aside for a worker.", POSITIVE))
    gpus_per_worker: float = field(
        default=0.0, metadata=execution("GPUs that Ray sets aside for a worker.", NOT_NEGATIVE)
    )
    gpu_gb: float | None = field(
        default=None,
        metadata=execution("Of its GPU, how many gigabytes a worker may take; null: all that is there.", GIGABYTES),
    )
    accelerator_type: str | None = field(
        default=None,
        metadata=execution("The type of GPU that every worker gets, as Ray names it, such as H100; null: any."),
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
    unreachable_s: int = field(
        default=5,
        metadata=execution("Seconds after which a host that answers nothing any more is given up.", at_least(2)),
    )


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    name: Literal["auto", "shared_memory", "tcp"] = field(
        default="auto",
        metadata=execution(
            "How gradients travel between workers; auto: by shared memory on one node, by TCP between nodes."
        ),
    )
    tls: bool = field(
        default=False,
        metadata=execution("Whether what travels by TCP is encrypted, by a certificate that is made for the run."),
    )


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """The steps that a shard takes by itself in a step of the run, which is then a round; see
    `worker/step/local_steps.py`."""

    steps: int | None = field(
        default=None, metadata=result("Local steps of each shard in a round; null: rounds have none.", at_least(1))
    )
    epochs: int | None = field(
        default=None,
        metadata=result("Instead of `local.steps`: passes of each shard over its own samples.", at_least(1)),
    )
    optimizer: OptimizerSettings = field(
        default_factory=OptimizerSettings,
        metadata=optimizer("The optimizer of a shard's local steps; begins anew in each round.", "`lr` or `momentum`"),
    )
    proximal_mu: float = field(
        default=0.0, metadata=result("How strongly local steps are drawn to where the round began.", NOT_NEGATIVE)
    )
    clip: float | None = field(
        default=None, metadata=result("As `gradient.clip`, of each gradient of a local step.", POSITIVE)
    )
    weight: Literal["rows", "uniform"] = field(
        default="rows", metadata=result("The weight of a shard in a round's mean: the rows that it used, or the same.")
    )


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """How little is told of single clients; see `orchestrator/optim/privacy`. `secret` says where the secret lies; which one it
    is belongs to the identity of a run, by a hash of it."""

    clipping_norm: float | None = field(
        default=None,
        metadata=result(
            "The largest L2 norm of what a shard or client contributes, which is then put on a fixed lattice; null: off.",
            CLIPPING,
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
class UpdateSettings:
    """How the optimizer's step is computed; see `worker/model/sharded_optimizer.py`."""

    sharded: bool = field(
        default=False,
        metadata=execution("Whether the workers of a host divide the optimizer's step, and share its state."),
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """How the learning rate changes; see `orchestrator/optim/schedules.py`. Options as those of a topology."""

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
    min_change: float = field(
        default=0.0, metadata=result("The metric has improved if it is better by more than this.", NOT_NEGATIVE)
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    every: Every | None = field(
        default=None,
        metadata=execution("How often the validation set is evaluated; null: only at the end.", monitored=True),
    )


@dataclass(frozen=True, kw_only=True)
class InitialSettings:
    name: str | None = field(
        default=None,
        metadata=result(
            "The model in MLflow, or the `.ckpt` of Lightning, whose weights training begins with.",
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
class BeginSettings:
    """The place in another run at which this one begins. A rerun may name another run that has the same state, so only the
    digest determines the result."""

    name: str | None = field(
        default=None,
        metadata=execution(
            "The run whose checkpoint training goes on from, with its optimizer and its step, as RUN, RUN@STEP or RUN@best.",
            CHECKPOINT,
        ),
    )
    digest: str | None = field(
        default=None,
        metadata=result(
            "The digest of that state: a launch fills it in, and where it is given, others are refused.", HEX_DIGEST
        ),
    )

    @property
    def step(self) -> int:
        """The first step of the run; known once a launch has pinned the name."""
        step = (self.name or "").partition("@")[2]
        return int(step) if step.isdigit() else 0


@dataclass(frozen=True, kw_only=True)
class BestSettings:
    metric: str | None = field(
        default=None,
        metadata=execution(
            "The metric by which the checkpoints of the best evaluations are kept; null: of none.",
            NOT_EMPTY,
            monitored=True,
        ),
    )
    mode: Literal["min", "max"] = field(
        default="min", metadata=execution("Whether less or more of that metric is better.", monitored=True)
    )
    keep: int = field(default=1, metadata=execution("How many of the best ones are kept.", at_least(1)))


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    every: Every | None = field(
        default=Every(seconds=60.0),
        metadata=execution("How often a checkpoint is written; null: only at the end and when the run is interrupted."),
    )
    keep: int = field(default=2, metadata=execution("How many checkpoints are kept, the newest ones.", at_least(1)))
    best: BestSettings = field(default_factory=BestSettings)  # which checkpoints of evaluations stay too
    archive: int | None = field(
        default=None,
        metadata=execution("Steps between two checkpoints that are kept for ever; null: none.", at_least(1)),
    )
    model: Literal["last", "best"] = field(
        default="last",
        metadata=result(
            "Which parameters are the run's model, logged and served: the last, or those of the best evaluation."
        ),
    )
    uri: str | None = field(
        default=None,
        metadata=execution("The place of checkpoints, any fsspec URL; null: the run's folder.", NOT_EMPTY),
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
class CheckSettings:
    """Whether workers compute alike; see `orchestrator/worker/step/checking.py`."""

    every: int | None = field(
        default=None,
        metadata=execution(
            "Steps between two in which each worker computes a micro-batch of another one, too, and answers are compared.",
            at_least(1),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ChaosSettings:
    """How a user disturbs a run to see what that does; see `orchestrator/driver/run/fault_injection.py`."""

    every: Every | None = field(
        default=None,
        metadata=execution("Seconds between two disturbances of a worker, to rehearse losses; null: none.", IN_SECONDS),
    )
    kinds: tuple[str, ...] = field(
        default=KINDS,
        metadata=execution(
            "The kinds of disturbance: kill (SIGKILL), or pause (SIGSTOP, for up to 3 s).", DISTURBANCES
        ),
    )
    seed: int = field(
        default=0, metadata=execution("The seed from which disturbances are drawn: when, which, whom.", SEED)
    )


@dataclass(frozen=True, kw_only=True)
class TuningSettings:
    """The settings that a launch decides by measuring; see `orchestrator/cli/tune`. `topology: auto` is short for naming it
    here."""

    auto: tuple[str, ...] = field(
        default=(),
        metadata=execution(
            "Keys to be measured: topology, cluster.workers, data.loaders, cluster.stages; `topology: auto` puts it here.",
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
    metrics_port: int | None = field(
        default=None,
        metadata=execution("The port at which a private Ray shows the run's metrics to Prometheus; null: none.", PORT),
    )
    also: tuple[str, ...] = field(
        default=(),
        metadata=execution("Loggers that get the metrics, too, beside MLflow.", WRITTEN),
    )
    register: str | None = field(
        default=None,
        metadata=execution(
            "The name, or NAME@ALIAS, under which the trained model is registered; the alias is newest if not given.",
            REGISTERED,
        ),
    )
