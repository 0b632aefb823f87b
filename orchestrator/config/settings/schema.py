"""The whole configuration, its keys, and how a key is found.

Behind `topology`, `sync`, `schedule` and `contribution`, behind `data.order`, `data.partition`, `data.sampling` and
`data.subset` and behind `cluster.pipeline` stands a table each (`orchestrator.common.registry`): their sections have a name,
and the options of what it names. Which options there are, and what they must be, says the table's entry. A section is known by
its dotted path: `data.partition` is one within `data`. Settings are validated where they are built, in
`Settings.__post_init__`, whoever builds them.

It does not check what needs torch or the user's code: options of the optimizer, the target of the pipeline, variants of the
user's own.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

from orchestrator.comm.pipeline_schedules import PIPELINING
from orchestrator.comm.synchronization import SYNCHRONY
from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.common.checked_values import Given, MismatchError, plain, read, show, unwrap
from orchestrator.common.registry import Table, Variant, is_reference
from orchestrator.common.values import Notation, Sites, Steps, Workers
from orchestrator.config.settings.rules import RULES
from orchestrator.config.settings.rules.rule import Rule
from orchestrator.config.settings.sections import (
    About,
    BeginSettings,
    ChaosSettings,
    CheckpointSettings,
    CheckSettings,
    ClusterSettings,
    DataSettings,
    EarlyStoppingSettings,
    EnvironmentSettings,
    EvaluationSettings,
    GradientSettings,
    InitialSettings,
    KeyPath,
    LocalSettings,
    OptimizerSettings,
    PipelineSettings,
    PrivacySettings,
    RunSettings,
    ScheduleSettings,
    TraceSettings,
    TrackingSettings,
    TransportSettings,
    TuningSettings,
    UpdateSettings,
    execution,
    optimizer,
    result,
    variant,
)
from orchestrator.data.sampling.orders import ORDERS
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.data.sampling.samplings import SAMPLINGS
from orchestrator.data.sampling.subsets import SUBSETS
from orchestrator.errors import ConfigurationError, code_of, coded
from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.contributions import CONTRIBUTIONS
from orchestrator.optim.schedules import SCHEDULES

TABLES: dict[str, Table[Any]] = {
    table.key: table
    for table in (
        TOPOLOGIES,
        SYNCHRONY,
        SCHEDULES,
        CONTRIBUTIONS,
        COMPRESSIONS,
        ORDERS,
        PARTITIONS,
        SAMPLINGS,
        SUBSETS,
        PIPELINING,
    )
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The whole configuration of a run. Raises ConfigurationError, with every problem, when it is wrong."""

    run: RunSettings = field(default_factory=RunSettings)  # what is trained, for how long, and with which arithmetic
    pipeline: PipelineSettings  # the user's pipeline
    data: DataSettings = field(default_factory=DataSettings)  # which samples a step holds, and where they come from
    cluster: ClusterSettings = field(default_factory=ClusterSettings)  # where workers run, and how many
    topology: Variant = field(
        default_factory=partial(Variant, "ring"),
        metadata=variant("a topology", execution("The messages by which workers add up gradients.", layout=True)),
    )
    sync: Variant = field(
        default_factory=partial(Variant, "bsp"),
        metadata=variant("a mode", result("When a replica may go on without the others; bsp is lockstep.")),
    )
    reduction: Literal["exact", "fast"] = field(
        default="exact", metadata=result("exact: sums free of order, the same bits on any layout; fast: plain sums.")
    )
    transport: TransportSettings = field(default_factory=TransportSettings)  # how gradients travel between workers
    initial: InitialSettings = field(default_factory=InitialSettings)  # the weights that training begins with
    begin: BeginSettings = field(default_factory=BeginSettings)  # the state of another run that this one begins with
    optimizer: OptimizerSettings = field(
        default_factory=OptimizerSettings,
        metadata=optimizer(
            "The optimizer of torch; required unless the pipeline brings its own.", "`lr`, `betas` or `weight_decay`"
        ),
    )
    contribution: Variant = field(
        default_factory=partial(Variant, "gradient"),
        metadata=variant("a contribution", result("The change that a shard makes to its gradient before the sum.")),
    )
    compression: Variant = field(
        default_factory=partial(Variant, "none"),
        metadata=variant("a compression", result("In which form gradients travel between workers.")),
    )
    local: LocalSettings = field(default_factory=LocalSettings)  # what a shard does by itself in a step
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # how single clients are hidden
    secure_aggregation: bool = field(
        default=False,
        metadata=execution("Whether workers mask what they send, so that servers and observers see only sums."),
    )
    gradient: GradientSettings = field(default_factory=GradientSettings)  # what is done to a gradient before the update
    update: UpdateSettings = field(default_factory=UpdateSettings)  # how the optimizer's step is computed
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)  # how the learning rate changes
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)  # the metric that ends the run
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)  # when state is written, and what stays
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)  # when the model is evaluated
    trace: TraceSettings = field(default_factory=TraceSettings)  # which digests and times of steps are recorded
    check: CheckSettings = field(default_factory=CheckSettings)  # when workers check each other
    chaos: ChaosSettings = field(default_factory=ChaosSettings)  # how the run is disturbed on purpose
    tracking: TrackingSettings = field(default_factory=TrackingSettings)  # where the record of the run goes
    tuning: TuningSettings = field(default_factory=TuningSettings)  # which settings are measured at launch
    strict: bool = field(default=False, metadata=execution("Refuse to start a run that could not be repeated exactly."))
    # whether a rerun needs the same environment, and which variables the pipeline reads
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    output: Literal["text", "json"] = field(
        default="text", metadata=execution("json: the last line of stdout is one JSON object.")
    )

    def __post_init__(self) -> None:
        values = {key: key.value(self) for key in KEYS}
        unfit = [(key.name, problem) for key in KEYS if (problem := _unfit(key, values[key])) is not None]
        problems: list[str] = [coded(code_of(problem), f"{name}: {problem}") for name, problem in unfit]
        for section, table in TABLES.items():
            problems += _unfit_options(table, section_of(self, section))
        if not problems:
            problems = self.broken(RULES)
        if problems:
            raise ConfigurationError(problems)

    def broken(self, rules: Sequence[Rule]) -> list[str]:
        """The sentences of those rules that these values break."""
        return [sentence for _, sentence in broken_rules({key: key.value(self) for key in KEYS}, rules)]

    @property
    def has_local_steps(self) -> bool:
        """Whether a step of the run is a round of local steps."""
        return self.local.steps is not None or self.local.epochs is not None

    @property
    def is_private(self) -> bool:
        """Whether noise hides single clients, so that the run has a secret and an epsilon."""
        return self.privacy.noise_multiplier > 0

    @property
    def monitors_a_metric(self) -> bool:
        """Whether the run state of the run, or what its model is, depends on evaluations."""
        own = self.early_stopping.patience is not None or self.schedule.name == "plateau"
        return own or self.checkpoint.model == "best"


@dataclass(frozen=True, eq=False)
class Key:
    """One field of the schema."""

    path: KeyPath  # where its value stands in YAML
    holder: str | None  # the dotted path of its section in Settings; None for Settings itself
    attribute: str  # its name in that section
    kind: Any  # the type of its value, with its bounds
    about: About  # what it is, and what it determines
    default: Any  # MISSING where it is required
    table: Table[Any] | None = None  # of the options below it; None where it has none

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
        return self.is_open or self.kind in (Sites, Steps, Workers)

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


def broken_rules(values: Mapping[Key, Any], among: Sequence[Rule]) -> list[tuple[Rule, str]]:
    """The rules that the values break, each with its sentence; rules over keys without a value are left out."""
    named = {key.name: value for key, value in values.items() if key.table is None or not key.is_open}
    for key, options in values.items():
        if key.table is None or (entry := BY_PATH[*key.path, "name"]) not in values:
            continue
        own = values[entry] is not None and is_reference(values[entry])
        for option, kinds in key.table.known_options().items():
            given = options.get(option)
            counts = not own or any(_is_of(each.kind, given) for each in kinds.values())
            named[f"{key.name}.{option}"] = given if counts else None
    rules = [rule for rule in among if all(name in named for name in rule.keys)]
    found = [(rule, rule.problem(*(named[name] for name in rule.keys))) for rule in rules]
    return [(rule, sentence) for rule, sentence in found if sentence is not None]


def _is_of(kind: Any, value: Any) -> bool:
    """Whether an option of a variant of the user's own, which takes what it likes, says what the table's entries say by it."""
    try:
        return bool(read(kind, Given(value)) == value)
    except MismatchError:
        return False


def _unfit(key: Key, value: Any) -> str | None:
    value = plain(value) if key.table else value
    try:
        kept = read(key.kind, Given(value))
    except MismatchError as mismatch:
        return coded("settings.value", str(mismatch))
    return None if kept == value else coded("settings.value-form", f"expected {show(kept)}, got {show(value)}")


def _unfit_options(table: Table[Any], chosen: Any) -> list[str]:
    """chosen: the section of this table."""
    if is_reference(chosen.name):
        return []
    kept, problems = table.read(chosen.name, {option: Given(value) for option, value in chosen.options.items()})
    if not problems and kept != chosen.options:
        problems = [("options", coded("settings.value-form", f"expected {show(kept)}, got {show(chosen.options)}"))]
    return [coded(code_of(problem), f"{table.key}.{option}: {problem}") for option, problem in problems]


def _keys(
    holder: str | None, kind: type, within: Mapping[str, About] = MappingProxyType({}), whole: Any = None
) -> list[Key]:
    """The keys of a section. within: what its fields are, if they do not say it themselves; whole: the section by default,
    then."""
    hints = typing.get_type_hints(kind)
    above = () if holder is None else tuple(holder.split("."))
    found: list[Key] = []
    for entry in dataclasses.fields(kind):
        hint = hints[entry.name]
        default = entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()
        about: About | None = entry.metadata.get("about") or within.get(entry.name)
        if about is None:
            found += _keys(".".join((*above, entry.name)), hint, entry.metadata.get("within", {}), default)
            continue
        if within:
            default = getattr(whole, entry.name)
        flat_options = entry.name == "options"
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
    """The keys that a section can have."""
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
