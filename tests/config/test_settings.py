"""Settings: what is loaded, what is refused and in which words, and that their text gives them back."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.synchronization import SYNCHRONY
from orchestrator.comm.topologies import TOPOLOGIES, asks_for_nodes
from orchestrator.config.plan import Variant
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import (
    CheckpointSettings,
    ClusterSettings,
    DataSettings,
    EvaluationSettings,
    Every,
    GradientSettings,
    OptimizerSettings,
    PipelineSettings,
    RunSettings,
    ScheduleSettings,
    Settings,
    Span,
    Steps,
    TraceSettings,
    TrackingSettings,
    TransportSettings,
    Workers,
    determining,
    document,
    flat,
    from_yaml,
    kept,
    load,
    names,
    origins,
    to_dict,
    to_yaml,
)
from orchestrator.config.settings.schema import KEYS, TABLES
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.errors import ConfigurationError
from orchestrator.optim.optimizer_names import OPTIMIZER_NAMES
from orchestrator.optim.optimizers import OPTIMIZERS
from orchestrator.optim.schedules import SCHEDULES
from tests.comm.topologies.cases import choices
from tests.refusals import refused

ROOT = Path(__file__).parents[2]


def there_are(key: str) -> str:
    return f"(there are {', '.join(TABLES[key])}, or your own as package.module:name)"


CLUSTER = ", ".join(
    [
        "address",
        "workers",
        "stages",
        "claims",
        "deal",
        "speeds",
        "spares",
        "cpus_per_worker",
        "gpus_per_worker",
        "gpu_gb",
        "accelerator_type",
        "start_timeout_s",
        "step_timeout_s",
    ]
    + ["lease_s", "unreachable_s", "pipeline"]
)
SMALLEST = ["pipeline.target=pipelines.digits:Digits", "run.steps=3"]
Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration and returns its path."""

    def write(name: str, text: str) -> str:
        file = tmp_path / name
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(file)

    return write


def problems(*overrides: str, conf: tuple[str, ...] = (), folder: Path = ROOT / "conf") -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(conf, [*SMALLEST, *overrides], folder=folder)
    assert all("\n" not in problem and "object_type" not in problem for problem in caught.value.problems)
    return caught.value.problems


def given_on_command_line(*overrides: str) -> Settings:
    return load([], [*SMALLEST, *overrides])


# Settings that are loaded


def test_the_example_is_what_it_says() -> None:
    settings = load(["digits"], [], folder=ROOT / "conf")
    assert settings == Settings(
        run=RunSettings(name="digits", steps=400, seed=1, arithmetic="portable"),
        pipeline=PipelineSettings(target="pipelines.digits:Digits"),
        data=DataSettings(shards=8, batch_size=Steps.constant(128), inputs=("data/digits",)),
        cluster=ClusterSettings(workers=Workers.parse(4)),
        topology=Variant(name="ring"),
        optimizer=OptimizerSettings(name="adamw", options={"lr": 0.002}),
        evaluation=EvaluationSettings(every=Every(steps=100)),
    )


def test_a_section_within_a_section_is_read_as_any_other() -> None:
    """By its keys, by a scalar that is its name, and in a mapping; a name in a later source leaves other options behind."""
    by_keys = given_on_command_line("data.partition.name=dirichlet", "data.partition.alpha=0.3")
    assert by_keys.data.partition == Variant(name="dirichlet", options={"alpha": 0.3})
    mapping = given_on_command_line("data={partition: {name: dirichlet, alpha: 0.3}, sampling: balanced}")
    assert mapping.data == replace(by_keys.data, sampling=Variant(name="balanced"))
    assert from_yaml(to_yaml(mapping)) == mapping
    files: list[Any] = [{"data": {"partition": {"name": "dirichlet", "alpha": 0.3, "clients": 4}, "shards": 4}}]
    later = load(files, [*SMALLEST, "data.partition=iid"])
    assert later.data.partition == Variant(name="iid", options={"clients": 4})
    assert determining(by_keys)["data.partition.alpha"] == 0.3
    own = given_on_command_line("data.partition=nowhere:bend", "data.partition.knee=3")
    assert determining(own)["data.partition.knee"] == 3


@pytest.mark.parametrize("typed", ["data.batch_size={0: 64, 2: 256}", "data={batch_size: {0: 64, 2: 256}}"])
def test_rows_may_be_given_by_step(typed: str) -> None:
    settings = given_on_command_line(typed)
    assert settings.data.batch_size == Steps(((0, 64), (2, 256)))
    assert from_yaml(to_yaml(settings)) == settings
    assert load([{"data": {"batch_size": {0: 64, 2: 256}}}], SMALLEST) == settings
    assert flat(settings)["data.batch_size"] == {0: 64, 2: 256}


@pytest.mark.parametrize("option", ["end", "every"])
def test_epochs_are_no_measure_where_the_batch_grows(option: str) -> None:
    name = {"end": "linear", "every": "steps"}[option]
    settings = ("data.batch_size={0: 64, 2: 256}", f"schedule={{name: {name}, {option}: 3epochs}}")
    with pytest.raises(ConfigurationError) as caught:
        given_on_command_line(*settings)
    assert f"schedule.{option}: 3epochs is no number of steps where data.batch_size changes with the step" in str(
        caught.value
    )


def test_later_sources_win_mappings_merge_and_lists_are_replaced(write: Write) -> None:
    first = write(
        "first.yaml",
        """
        run: {seed: 1, steps: 5}
        pipeline: {target: "a.b:C", args: {hidden: 64, layers: {kind: gelu, sizes: [1, 2]}}}
        data: {inputs: [x, y]}
        optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
        """,
    )
    second = write(
        "second.yaml",
        """
        run: {seed: 2, threads: 3}
        pipeline: {args: {layers: {sizes: [3]}}}
        data: {inputs: [z]}
        optimizer: {lr: 0.2}
        """,
    )
    settings = load([first, second], ["run.threads=4", "run.threads=5", "optimizer.lr=0.3", "pipeline.args.hidden=8"])
    assert (settings.run.seed, settings.run.steps, settings.run.threads) == (2, 5, 5)
    assert settings.pipeline.args == {"hidden": 8, "layers": {"kind": "gelu", "sizes": [3]}}
    assert settings.data.inputs == ("z",)
    assert settings.optimizer == OptimizerSettings(name="sgd", options={"lr": 0.3, "momentum": 0.9})


def test_below_an_open_key_a_scalar_and_a_mapping_replace_each_other() -> None:
    assert given_on_command_line("pipeline.args={a: {b: 1}}", "pipeline.args.a=2").pipeline.args == {"a": 2}
    assert given_on_command_line("pipeline.args.a=2", "pipeline.args.a.b=1").pipeline.args == {"a": {"b": 1}}
    assert given_on_command_line("pipeline.args.a.b=1", "pipeline.args={a: {}}").pipeline.args == {"a": {"b": 1}}
    assert given_on_command_line("pipeline.args.a={}", "pipeline.args={}").pipeline.args == {"a": {}}
    assert given_on_command_line("pipeline.args.a.b=1", "pipeline.args.a=").pipeline.args == {"a": None}


@given(st.text() | st.from_regex(r"[-+]?[0-9_]*\.?[0-9_]*([eE:][-+]?[0-9_]+)?", fullmatch=True))
def test_text_in_a_mapping_stays_text(text: str) -> None:
    """As the beginning of a hash, 12e5: it came as a number."""
    if "${" not in text and text.isprintable():
        mapping = {"run": {"steps": 3}, "pipeline": {"target": "a:B", "args": {"name": text}}}
        assert load([mapping], []).pipeline.args == {"name": text}


@pytest.mark.parametrize("earlier", ["steps", "epochs"])
def test_a_later_source_that_sets_one_length_clears_the_other(write: Write, earlier: str) -> None:
    later = {"steps": "epochs", "epochs": "steps"}[earlier]
    file = write("a.yaml", f"{{run: {{{earlier}: 3, {later}: null}}, pipeline: {{target: 'a:B'}}}}")
    run = load([file], [f"run.{later}=7"]).run
    assert (getattr(run, earlier), getattr(run, later)) == (None, 7)


def test_and_so_does_one_of_a_round(write: Write) -> None:
    federated = "data: {partition: iid}, local: {epochs: 5, optimizer: {name: sgd, lr: 0.1}}"
    file = write("a.yaml", f"{{run: {{steps: 3}}, pipeline: {{target: 'a:B'}}, {federated}}}")
    local = load([file], ["local.steps=7"]).local
    assert (local.steps, local.epochs) == (7, None)


def test_a_later_source_that_sets_another_topology_clears_the_options_of_the_one_before(write: Write) -> None:
    file = write(
        "a.yaml", "topology: {name: tree, arity: 3}\noptimizer: sgd\nrun: {steps: 1}\npipeline: {target: 'a:B'}"
    )
    assert load([file], ["topology=ring"]).topology == Variant(name="ring")
    assert load([file], ["topology={name: parameter_server, servers: 2}"]).topology.options == {"servers": 2}
    assert load([file], ["topology=tree"]).topology == Variant(name="tree", options={"arity": 3})
    with refused("settings.no-such-option", "topology.arity"):
        load([file], ["topology=ring", "topology.arity=3"])


OF_ONES_OWN = ["schedule=a:b schedule.end=2 schedule.warmup=2", "data.partition=a:b data.partition.clients=x"]


@pytest.mark.parametrize("typed", OF_ONES_OWN)
def test_an_option_of_a_variant_of_ones_own_may_mean_anything(typed: str) -> None:
    """Rules about options of that name took the value for one of theirs, and raised."""
    resolve(given_on_command_line(*typed.split(), "privacy.clipping_norm=1"))


def test_options_of_a_variant_without_a_name_break_no_rule(write: Write) -> None:
    file = write("a.yaml", "topology: tree")
    for typed in (
        "topology=[]",
        "schedule=[a] schedule.end=3 schedule.warmup=4",
        "data.partition=[] data.partition.clients=x",
    ):
        (problem,) = problems(*typed.split(), conf=(file,))
        assert ".name: expected text, got [" in problem


@pytest.mark.parametrize(("typed", "meant"), [("tree", "tree"), ("{name: tree, arity: 3}", "tree")])
def test_a_scalar_sets_the_name_or_the_mode_of_its_section(write: Write, typed: str, meant: str) -> None:
    file = write(
        "a.yaml", f"topology: {typed}\nsync: bsp\noptimizer: sgd\nrun: {{steps: 1}}\npipeline: {{target: 'a:B'}}"
    )
    for settings in (load([file], []), given_on_command_line(f"topology={typed}", "sync=bsp", "optimizer=sgd")):
        assert (settings.topology.name, settings.sync.name, settings.optimizer.name) == (meant, "bsp", "sgd")


@pytest.mark.parametrize("text", ["1e3", "012", "0x10", "true", "on", "a: b", "[a", "'x'", "a=b", "#5", "1:30", " x "])
def test_text_stays_as_typed(text: str) -> None:
    assert given_on_command_line(f"run.name={text}").run.name == text


def test_text_stays_as_typed_in_files(write: Write) -> None:
    file = write(
        "a.yaml", "run: {name: 012, experiment: 1e3, steps: 1}\npipeline: {target: 'a:B'}\ndata: {inputs: [010, on]}"
    )
    settings = load([file], [])
    assert (settings.run.name, settings.run.experiment, settings.data.inputs) == ("012", "1e3", ("010", "on"))


def test_open_keys_take_any_yaml() -> None:
    settings = given_on_command_line(
        "optimizer.lr=1e-3",
        "optimizer.betas=[0.9, 0.99]",
        "pipeline.args.a=text",
        "pipeline.args.b=true",
        "pipeline.args.c=",
    )
    assert settings.optimizer.options == {"lr": 0.001, "betas": [0.9, 0.99]}
    assert settings.pipeline.args == {"a": "text", "b": True, "c": None}


@pytest.mark.parametrize("nothing", ["", "null", "~"])
def test_nothing_is_null_where_the_key_allows_it(nothing: str) -> None:
    settings = load(["digits"], [f"run.name={nothing}", f"evaluation.every={nothing}"], folder=ROOT / "conf")
    assert (settings.run.name, settings.evaluation.every) == (None, None)


@pytest.mark.parametrize(
    ("typed", "every", "back"),
    [
        ("20", Every(steps=20), 20),
        ("'20'", Every(steps=20), 20),
        ("30s", Every(seconds=30.0), "30s"),
        ("0.5s", Every(seconds=0.5), "0.5s"),
        ("1epoch", Every(epochs=1), "1epoch"),
        ("5epochs", Every(epochs=5), "5epochs"),
    ],
)
def test_every_is_steps_epochs_or_seconds(typed: str, every: Every, back: int | str) -> None:
    settings = given_on_command_line(f"evaluation.every={typed}")
    assert settings.evaluation.every == every
    assert to_dict(settings)["evaluation"]["every"] == back
    assert str(every) == str(back)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"steps": 1, "seconds": 1.0},
        {"steps": 1, "epochs": 1},
        {"steps": 0},
        {"epochs": 0},
        {"seconds": 0.0},
        {"seconds": math.inf},
    ],
)
def test_every_is_exactly_one_positive_number(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"steps|seconds|epochs"):
        Every(**arguments)


@pytest.mark.parametrize(
    ("typed", "span", "back"),
    [
        ("20", Span(steps=20), 20),
        ("'20'", Span(steps=20), 20),
        ("1epoch", Span(epochs=1), "1epoch"),
        ("1epochs", Span(epochs=1), "1epoch"),
        ("5epochs", Span(epochs=5), "5epochs"),
    ],
)
def test_a_span_is_steps_or_epochs(typed: str, span: Span, back: int | str) -> None:
    settings = given_on_command_line("schedule=steps", f"schedule.every={typed}", "run.steps=21")
    assert settings.schedule.options == {"every": span}
    assert to_dict(settings)["schedule"]["every"] == back
    assert (str(span), from_yaml(to_yaml(settings))) == (str(back), settings)


@pytest.mark.parametrize("arguments", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"epochs": 0}])
def test_a_span_is_exactly_one_positive_number(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="steps or epochs, at least 1"):
        Span(**arguments)


def test_interpolations_see_the_merged_configuration_and_its_defaults(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TEST", "1e-3")
    file = write(
        "a.yaml",
        r"""
        run: {name: "seed-${.seed}-${oc.env:ORCHESTRATOR_TEST}", experiment: "\\${run.seed}", steps: "${data.shards}"}
        pipeline: {target: "a:B", args: {rows: "${data.batch_size}", deep: ["${run.seed}", {x: "${run.experiment}"}]}}
        cluster: {workers: "${data.shards}"}
        data: {inputs: [012, "${run.seed}"]}
        """,
    )
    settings = load([file], ["run.seed=5", "optimizer.lr=${oc.decode:${oc.env:ORCHESTRATOR_TEST}}"])
    assert settings.run.name == "seed-5-1e-3"
    assert settings.run.experiment == "${run.seed}"
    assert (settings.run.steps, settings.cluster.workers.start) == (8, 8)
    assert settings.pipeline.args == {"rows": 64, "deep": [5, {"x": "${run.seed}"}]}
    assert settings.data.inputs == ("012", "5")
    assert settings.optimizer.options == {"lr": 0.001}


def test_merge_keys_and_anchors_are_yaml(write: Write) -> None:
    file = write(
        "a.yaml",
        """
        run: {steps: 1}
        pipeline:
          target: "a:B"
          args: {first: &base {x: 1, y: 2}, second: {<<: *base, y: 3}, third: *base}
        """,
    )
    args = load([file], []).pipeline.args
    assert args == {"first": {"x": 1, "y": 2}, "second": {"x": 1, "y": 3}, "third": {"x": 1, "y": 2}}


def test_a_later_schedule_keeps_the_options_that_it_has_too(write: Write) -> None:
    file = write(
        "a.yaml", "schedule: {name: linear, final: 0.5, warmup: 3}\nrun: {steps: 4}\npipeline: {target: 'a:B'}"
    )
    kept = ScheduleSettings(name="cosine", warmup=3, options={"final": 0.5})
    assert load([file], ["schedule=cosine"]).schedule == kept
    assert load([file], ["schedule=exponential"]).schedule == ScheduleSettings(name="exponential", warmup=3)


def test_text_of_an_option_stays_as_typed() -> None:
    plateau = given_on_command_line(
        "schedule=plateau", "schedule.metric=1e3", "evaluation.every=1", "run.steps=4"
    ).schedule
    assert plateau.options == {"metric": "1e3"}


def test_an_option_without_a_value_is_left_to_its_entry() -> None:
    """Recorded settings have every option that any entry of the table has."""
    settings = given_on_command_line("topology={name: tree, arity: null, servers: null}", "schedule.gamma=")
    assert (settings.topology.options, settings.schedule.options) == ({}, {})
    assert to_dict(settings)["topology"] == {"name": "tree", **dict.fromkeys(TOPOLOGIES.known_options())}
    assert set(to_dict(settings)["schedule"]) == {"name", "warmup", "scale", "base_batch", *SCHEDULES.known_options()}


def test_options_of_a_variant_of_the_users_own_wait_until_it_is_imported() -> None:
    settings = given_on_command_line("topology=nowhere:star", "topology.rim=[1, x]", "topology={center: 2}")
    assert settings.topology == Variant(name="nowhere:star", options={"rim": [1, "x"], "center": 2})
    assert from_yaml(to_yaml(settings)) == settings
    assert to_dict(settings)["topology"] == {"name": "nowhere:star", "rim": [1, "x"], "center": 2}
    names = {"topology.name", "topology.rim", "topology.center"}
    assert {key for key in flat(settings) if key.startswith("topology.")} == names
    fast = given_on_command_line("topology=nowhere:star", "topology.rim=[1, x]", "reduction=fast")
    assert (determining(fast)["topology.name"], determining(fast)["topology.rim"]) == ("nowhere:star", [1, "x"])
    schedule = given_on_command_line("schedule=nowhere:bend", "schedule.knee=3")
    assert determining(schedule)["schedule.knee"] == 3


def test_the_mode_of_synchronisation_determines_the_result_with_its_options() -> None:
    plain, short = given_on_command_line(), given_on_command_line("sync=ssp")
    assert (plain.sync, short.sync) == (Variant("bsp"), Variant("ssp"))
    found = determining(given_on_command_line("sync={name: ssp, staleness: 5}"))
    others = dict.fromkeys(f"sync.{option}" for option in SYNCHRONY.known_options())
    sync = {key: value for key, value in found.items() if key.startswith("sync.")}
    assert sync == {**others, "sync.name": "ssp", "sync.staleness": 5}
    assert resolve(given_on_command_line("sync={name: ssp, staleness: 5}")).sync == Variant("ssp", {"staleness": 5})


# Settings that are refused, and in which words

WORKERS = (
    "9 workers for 8 shards; a worker hosts at least one shard: "
    "lower cluster.workers or raise data.shards (which changes the result)"
)
WRONG = {
    "foo": "'foo': expected key=value",
    "=3": "'=3': expected key=value",
    "run..seed=3": "'run..seed=3': expected key=value",
    "lr=0.1": "lr: no such key; did you mean optimizer.lr?",
    "run.weight_decay=0.1": "run.weight_decay: no such key; did you mean optimizer.weight_decay?",
    "workers=4": "workers: no such key; did you mean cluster.workers?",
    "optimiser.lr=0.1": "optimiser.lr: no such key; did you mean optimizer.lr?",
    "run.sed=3": "run.sed: no such key; did you mean run.seed?",
    "topolgy=ring": "topolgy: no such key; did you mean topology?",
    "digest_every=3": "digest_every: no such key; did you mean trace.digest_every?",
    "--run.seed=3": "--run.seed: no such key; did you mean run.seed?",
    "run.seed.x=3": "run.seed.x: no such key; did you mean run.seed?",
    "data.foo=3": "data.foo: no such key; data has shards, batch_size, loaders, cache_gb, cache_folder, store_timeout_s, "
    "sites, absent, inputs, mixture, order, partition, sampling, subset",
    "zzz=3": "zzz: no such key; there are run, pipeline, data, cluster, topology, sync, reduction, transport, "
    "initial, begin, optimizer, contribution, compression, local, privacy, secure_aggregation, gradient, update, "
    "schedule, early_stopping, checkpoint, evaluation, trace, check, chaos, tracking, tuning, strict, environment, output",
    "run.seed=abc": "run.seed: expected a whole number, got 'abc'",
    "run.seed=1.5": "run.seed: expected a whole number, got 1.5",
    "run.seed=true": "run.seed: expected a whole number, got true",
    "run.seed=#5": "run.seed: expected a whole number, got '#5'",
    "run.seed=": "run.seed: has no value; expected a whole number",
    "run.seed={}": "run.seed: expected a whole number, got {}",
    "run.seed=-1": "run.seed: must be at least 0 and below 2**63, got -1",
    f"run.seed={2**63}": f"run.seed: must be at least 0 and below 2**63, got {2**63}",
    "run.steps=0": "run.steps: must be at least 1, got 0",
    "run.threads=0": "run.threads: must be at least 1, got 0",
    "data.loaders=2147483648": "data.loaders: must be at least 0 and at most 1000, got 2147483648",
    "cluster.spares=1000000": "cluster.spares: must be at least 0 and at most 1000, got 1000000",
    f"topology={{name: parameter_server, servers: {10**30}}}": "topology.servers: must be at least 1 and at most 1000, "
    f"got {10**30}",
    "data.cache_gb=1e308": "data.cache_gb: must be greater than 0 and at most 1000000000, got 1e+308",
    "cluster.gpu_gb=1e308": "cluster.gpu_gb: must be greater than 0 and at most 1000000000, got 1e+308",
    "run.precision=float64": "run.precision: expected one of float32, bfloat16, got 'float64'",
    "run.device=tpu": "run.device: expected one of cpu, cuda, got 'tpu'",
    "run.graphs=true": "run.graphs: expected one of auto, false, got 'true'",
    "run.compile=2": "run.compile: expected true or false, got 2",
    "run.device=cuda": "run.device: with cluster.gpus_per_worker=0 all GPUs are hidden from the workers; "
    "set cluster.gpus_per_worker=1, or less where workers are to share one",
    "run.tf32=true": "run.tf32: only GPUs have TF32; set run.device=cuda, or leave run.tf32 out",
    "run.name=a\nb": "run.name: must be not empty, on one line, got 'a\\nb'",
    "data.inputs=['']": "data.inputs: must be a list without empty texts, got ('',)",
    "run.experiment=": "run.experiment: has no value; expected text",
    "pipeline.target=a.b": "pipeline.target: must be of the form package.module:Class, got 'a.b'",
    "pipeline.args=3": "pipeline.args: expected a mapping such as {key: value}, got 3",
    "pipeline.args=": "pipeline.args: has no value; expected a mapping such as {key: value}",
    "pipeline.args={a: {1: 2}}": "pipeline.args.a.1: this key is not text; put it in quotes",
    "pipeline.args.a=[{1: 2}]": "pipeline.args: the key a.0.1 is not text; put it in quotes",
    "pipeline.args.a=!!binary aGk=": "pipeline.args: a is of type bytes; "
    "values are text, numbers, true, false, null, lists and mappings",
    "pipeline.args.a=[1": "pipeline.args.a: not valid YAML: did not find expected ',' or ']'",
    "pipeline.args.a=!!int x": "pipeline.args.a: not valid YAML: invalid literal for int() with base 10: 'x'",
    "data.inputs=data/digits": "data.inputs: expected a list of texts such as [a, b], got 'data/digits'",
    "data.inputs=[[a]]": "data.inputs: expected a list of texts such as [a, b], got [['a']]",
    "data.batch_size=7": "data.batch_size: 7 rows for 8 shards; a shard computes at least one row: "
    "raise data.batch_size or lower data.shards",
    "data.batch_size={0: 64, 2: 7}": "data.batch_size: 7 rows for 8 shards; a shard computes at least one row: "
    "raise data.batch_size or lower data.shards",
    "data.batch_size={0: 64, 3: 128}": "data.batch_size: 128 rows from step 3 on, but the run has 3 steps: lower 3, or leave "
    "it out",
    "data.batch_size={2: 64}": "data.batch_size: expected a whole number such as 64, at least 1, or one from each of some "
    "steps on such as {0: 64, 400: 256}, got {2: 64}",
    "data.sites={a: 0}": "data.sites: expected the shards of each site such as {hospital_a: [0, 1], hospital_b: [2]}, a "
    "shard at one at most, got {'a': 0}",
    "data.sites=": "data.sites: has no value; expected the shards of each site such as {hospital_a: [0, 1], hospital_b: [2]}, "
    "a shard at one at most",
    "data.partition={name: iid, clients: 7}": "data.partition.clients: 7 clients for 8 shards; in each step a shard plays a "
    "client of its own: raise data.partition.clients, or set data.shards=7 (which changes the result)",
    "local.steps=2": "local.optimizer: required by local steps; for example local.optimizer={name: sgd, lr: 0.05}",
    "local.optimizer={name: sgd, lr: 0.1}": "local.optimizer: sgd has nothing to do without local.steps or local.epochs; set "
    "one of them, or leave it out",
    "local.steps=0": "local.steps: must be at least 1, got 0",
    "local.clip=1": "local.clip: it counts for local steps only; set local.steps or local.epochs, or leave it out",
    "local.proximal_mu=0.1": "local.proximal_mu: it counts for local steps only; set local.steps or local.epochs, or leave "
    "it out",
    "local={epochs: 2, optimizer: sgd}": "local.epochs: without data.partition a shard has no samples of its own to go "
    "through; set local.steps, or data.partition",
    "data.partition={name: dirichlet, alhpa: 1}": "data.partition.alhpa: dirichlet has no alhpa; did you mean alpha?",
    "data.partition={name: dirichlet, alpha: 0}": "data.partition.alpha: must be greater than 0, got 0.0",
    "data.partition=dirichlett": "data.partition.name: 'dirichlett' is not on offer; did you mean dirichlet? "
    + there_are("data.partition"),
    "data.partition.alpha=1": "data.partition.alpha: shared has no alpha; dirichlet has",
    "data.partition.name.deep=1": "data.partition.name.deep: no such key; did you mean data.partition.name?",
    "data.partition=": "data.partition: has no value; give it keys "
    f"({', '.join(['name', *PARTITIONS.known_options()])}) or leave it out",
    "data.sampling=balance": "data.sampling.name: 'balance' is not on offer; did you mean balanced? "
    + there_are("data.sampling"),
    "schedule.scale=sqrt": "schedule.scale: sqrt needs schedule.base_batch, the batch size that optimizer.lr was chosen for, "
    "such as schedule.base_batch=64",
    "schedule.base_batch=64": "schedule.base_batch: it counts for schedule.scale=linear or sqrt only; set one of them, or "
    "leave it out",
    "data.shards=65": "data.batch_size: 64 rows for 65 shards; a shard computes at least one row: "
    "raise data.batch_size or lower data.shards",
    "cluster.workers=9": f"cluster.workers: {WORKERS}",
    "cluster.cpus_per_worker=0": "cluster.cpus_per_worker: must be greater than 0, got 0.0",
    "cluster.start_timeout_s=.inf": "cluster.start_timeout_s: must be finite, got inf",
    "cluster.step_timeout_s=soon": "cluster.step_timeout_s: expected a number, got 'soon'",
    "cluster.gpus_per_worker=-1": "cluster.gpus_per_worker: must be at least 0, got -1.0",
    "cluster.address=ray://here:10001": "cluster.address: must be of the form host:port, got 'ray://here:10001'",
    "cluster.address=here": "cluster.address: must be of the form host:port, got 'here'",
    "cluster=4": f"cluster: expected keys ({CLUSTER}), got 4",
    "cluster=": f"cluster: has no value; give it keys ({CLUSTER}) or leave it out",
    "topology=rign": "topology.name: 'rign' is not on offer; did you mean ring? " + there_are("topology"),
    "topology={name: tree, aritty: 3}": "topology.aritty: tree has no aritty; did you mean arity?",
    "schedule={name: linear, gama: 3}": "schedule.gama: linear has no gama; it has final, end",
    "schedule=steps": "schedule.every: required by schedule=steps",
    "topology=": "topology: has no value; give it keys "
    f"({', '.join(['name', *TOPOLOGIES.known_options()])}) or leave it out",
    "topology.arity=2": "topology.arity: ring has no arity; tree has",
    "topology={name: tree, servers: 2}": "topology.servers: tree has no servers; parameter_server has",
    "topology={name: tree, arity: 0}": "topology.arity: must be at least 1, got 0",
    "sync=sps": "sync.name: 'sps' is not on offer; did you mean ssp? " + there_are("sync"),
    "sync={name: bap, staleness: 3}": "sync.staleness: bap has no staleness; ssp and asp have",
    "sync={name: ssp, staleness: -1}": "sync.staleness: must be at least 0, got -1",
    "sync={name: gossip, graph: star}": "sync.graph: expected one of ring, exponential, complete, got 'star'",
    "sync.rest_every=5": "sync.rest_every: bsp has no rest_every; it has no options",
    "compression=zip": "compression.name: 'zip' is not on offer " + there_are("compression"),
    "compression.bits=8": "compression.bits: none has no bits; quantize has",
    "compression={name: quantize, bits: 4}": "compression.bits: must be 8 or 16, got 4",
    "reduction=quick": "reduction: expected one of exact, fast, got 'quick'",
    "transport=rdma": "transport.name: expected one of auto, shared_memory, tcp, got 'rdma'",
    "gradient.clip=0": "gradient.clip: must be greater than 0, got 0.0",
    "evaluation=20": "evaluation: expected keys (every), got 20",
    "evaluation.every=0": "evaluation.every: "
    "expected a number of steps such as 20, of epochs such as 1epoch, or of seconds such as 30s, got 0",
    "evaluation.every=5m": "evaluation.every: "
    "expected a number of steps such as 20, of epochs such as 1epoch, or of seconds such as 30s, got '5m'",
    "trace.digest_every=-1": "trace.digest_every: must be at least 0, got -1",
    "strict=maybe": "strict: expected true or false, got 'maybe'",
    "tuning.auto=[run.seed]": (
        "tuning.auto: must be among topology, cluster.workers, data.loaders, cluster.stages, got ('run.seed',)"
    ),
    "tuning.seconds=0": "tuning.seconds: must be greater than 0, got 0.0",
    "output=xml": "output: expected one of text, json, got 'xml'",
    "run.epochs=3": "run.steps and run.epochs: only one can be set",
    "local={steps: 2, epochs: 3, optimizer: sgd}": "local.steps and local.epochs: only one can be set",
    "run.steps=": "run.steps or run.epochs: one is required",
    "run.name=${nope}": "run.name: cannot resolve '${nope}': Interpolation key 'nope' not found",
    "run.name=${run.name}": "run.name: cannot resolve '${run.name}': Recursive interpolation detected",
    "run.name=${a": "run.name: cannot resolve '${a': no viable alternative at input '${a'",
    "run.name=${oc.env:ORCHESTRATOR_NOT_SET}": "run.name: cannot resolve '${oc.env:ORCHESTRATOR_NOT_SET}': "
    "\"Environment variable 'ORCHESTRATOR_NOT_SET' not found\"",
    "pipeline.args.a.b=${nope}": "pipeline.args.a.b: cannot resolve '${nope}': Interpolation key 'nope' not found",
    "run.seed=${run.device}": "run.seed: expected a whole number, got 'cpu'",
}


@pytest.mark.parametrize(("override", "problem"), WRONG.items())
def test_a_wrong_override_is_told_in_one_line(override: str, problem: str) -> None:
    assert problems(override) == (f"command line: {problem}",)


WRONG_FILES = {
    "": "a.yaml: is empty; expected keys such as run and pipeline",
    "- 1\n- 2\n": "a.yaml: expected keys such as run and pipeline, got [1, 2]",
    "digits\n": "a.yaml: expected keys such as run and pipeline, got 'digits'",
    "run:\n  seed: 1\n  seed: 2\n": "a.yaml:3:3: not valid YAML: found duplicate key seed",
    "run:\n  seed: [1\n": "a.yaml:3:1: not valid YAML: did not find expected ',' or ']'",
    "run: &a\n  x: *a\n": "a.yaml:1:6: not valid YAML: YAML recursive aliases are not supported.",
    "run: {seed: !!python/name:os.system }\n": "a.yaml:1:13: not valid YAML: "
    "could not determine a constructor for the tag 'tag:yaml.org,2002:python/name:os.system'",
    "run:\n  seed: 1\n--- \nrun: {}\n": "a.yaml:3:1: not valid YAML: but found another document",
    "run:\n  seed: 1\n  sed: 2\n": "a.yaml:3: run.sed: no such key; did you mean run.seed?",
    "run.seed: 1\n": "a.yaml:1: run.seed: keys are nested in a file: write run: {seed: ...}",
    "run:\n  seed: x\n": "a.yaml:2: run.seed: expected a whole number, got 'x'",
    "cluster:\n": f"a.yaml:1: cluster: has no value; give it keys ({CLUSTER}) or leave it out",
    "1: 2\n": "a.yaml:1: 1: this key is not text; put it in quotes",
    "run: {steps: 3, epochs: 4}": "a.yaml:1: run.steps and run.epochs: only one can be set",
    "run: {name: 'a\x01'}": "a.yaml: not valid YAML: unacceptable character #x0001: control characters are not allowed",
}


@pytest.mark.parametrize(("text", "problem"), WRONG_FILES.items())
def test_a_wrong_file_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text)
    assert problems(conf=("a.yaml",)) == (problem,)


def test_a_file_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("conf")
    assert problems(conf=("digitz",), folder=folder) == (
        "conf=digitz: there is no file conf/digitz.yaml, nor any other in conf",
    )
    folder.mkdir()
    (folder / "digits.yaml").touch()
    (folder / "language.yaml").touch()
    assert problems(conf=("digitz", "zzz", "", "./digits", "x.yml", "./"), folder=folder) == (
        "conf=digitz: there is no file conf/digitz.yaml; conf has digits, language; did you mean digits?",
        "conf=zzz: there is no file conf/zzz.yaml; conf has digits, language",
        "conf= names no file; conf has digits, language",
        "conf=./digits: there is no such file",
        "conf=x.yml: there is no such file",
        ".: cannot be read: Is a directory",
    )


def test_a_name_may_have_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a path stays one, with `./` also where both are there."""
    monkeypatch.chdir(tmp_path)
    for place, seed in {"conf/small/a.yaml": 1, "small/a": 2, "small/b": 3}.items():
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).write_text(f"run: {{steps: 1, seed: {seed}}}\npipeline: {{target: 'a:B'}}\noptimizer: sgd")
    found = [load([name], []).run.seed for name in ("small/a", "./small/a", "small/b")]
    assert found == [1, 2, 3]


def test_a_file_that_is_not_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_bytes(b"run: \xff")
    assert problems(conf=("a.yaml",)) == ("a.yaml: is not text in UTF-8 (byte 5)",)


def test_all_problems_are_told_at_once_each_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("run: {seed: -1}\ncluster:\n  workers: 9\n  worker: 3\nlr: 1\n")
    with pytest.raises(ConfigurationError) as caught:
        load(["a.yaml"], ["sync=lax", "data.batch_size=4", "foo", "run.name=${nope}"])
    assert caught.value.problems == (
        "a.yaml:4: cluster.worker: no such key; did you mean cluster.workers?",
        "a.yaml:5: lr: no such key; did you mean optimizer.lr?",
        "command line: 'foo': expected key=value",
        "command line: run.name: cannot resolve '${nope}': Interpolation key 'nope' not found",
        "a.yaml:1: run.seed: must be at least 0 and below 2**63, got -1",
        "pipeline.target: required; must be of the form package.module:Class",
        "command line: sync.name: 'lax' is not on offer " + there_are("sync"),
        "run.steps or run.epochs: one is required",
        "command line: data.batch_size: 4 rows for 8 shards; a shard computes at least one row: "
        "raise data.batch_size or lower data.shards",
        f"a.yaml:3: cluster.workers: {WORKERS}",
    )
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("command", [{}, {"fit": {"trainer": {"max_epochs": 3}}}])
def test_a_file_of_lightning_is_told_where_its_keys_are_translated(command: dict[str, Any]) -> None:
    content = command or {"seed_everything": 42, "trainer": {"max_epochs": 3}, "model": {"class_path": "package.Lit"}}
    with pytest.raises(ConfigurationError) as caught:
        load([content], [])
    assert "docs/coming-from.md#lightning" in caught.value.remedy
    with pytest.raises(ConfigurationError) as caught:
        load([{"max_epochs": 3}], [])
    assert not caught.value.remedy


def test_nothing_counts_as_missing_when_a_file_could_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load([str(tmp_path / "no.yaml")], ["cluster.workers=100", "run.seed=x"])
    assert caught.value.problems == (
        f"conf={tmp_path}/no.yaml: there is no such file",
        "command line: run.seed: expected a whole number, got 'x'",
    )


@pytest.mark.parametrize("override", ["cluster.workers={min: 2, max: 4}", "cluster={workers: {min: 2, max: 4}}"])
def test_workers_may_be_a_range(override: str) -> None:
    settings = given_on_command_line(override)
    assert settings.cluster.workers == Workers(start=2, least=2, most=4)
    assert from_yaml(to_yaml(settings)) == settings


@pytest.mark.parametrize(
    "workers", ["{min: 2}", "{min: 3, max: 2}", "{min: 0, max: 2}", "{min: 1, max: 2, most: 3}", "0"]
)
def test_a_wrong_number_of_workers_is_told(workers: str) -> None:
    (problem,) = problems(f"cluster.workers={workers}")
    assert problem.startswith(
        "command line: cluster.workers: expected a number of workers such as 4, at least 1, or a range"
    )


def test_fast_sums_need_a_fixed_number_of_workers() -> None:
    (problem,) = problems("cluster.workers={min: 1, max: 2}", "reduction=fast")
    assert "reduction=fast adds up in the order of the layout" in problem


def test_compressed_sums_are_exact_ones() -> None:
    (problem,) = problems("compression=quantize", "reduction=fast")
    assert "compression: quantize needs sums that are free of order; set reduction=exact" in problem


def test_every_shard_has_levels() -> None:
    enough = {8: 16, 16: 4096}
    for bits, shards in enough.items():
        given_on_command_line(
            f"compression={{name: quantize, bits: {bits}}}", f"data={{shards: {shards}, batch_size: 5000}}"
        )
    (problem,) = problems("compression=quantize", "data={shards: 17, batch_size: 5000}")
    assert "the sum of 17 shards has to fit 8 bits" in problem
    assert problem.endswith("(at most 16 shards): set compression.bits=16, or lower data.shards")
    (problem,) = problems("compression={name: quantize, bits: 16}", "data={shards: 4097, batch_size: 5000}")
    assert problem.endswith("(at most 4096 shards): lower data.shards")


def test_a_compression_begins_before_the_run_ends() -> None:
    (problem,) = problems("compression={name: powersgd, warmup: 20}", "run.steps=20")
    assert "compression.warmup: 20 steps of exact sums, but the run has 20" in problem
    assert problem.endswith("lower it, or leave compression out")
    for fits in ("{name: powersgd, warmup: 19}", "{name: topk, warmup: 20}"):
        assert given_on_command_line(f"compression={fits}", "run.steps=20").run.steps == 20


def test_settings_are_validated_where_they_are_built() -> None:
    pipeline = PipelineSettings(target="a:B")
    assert Settings(run=RunSettings(steps=1), pipeline=pipeline).data.shards == 8
    with pytest.raises(ConfigurationError) as caught:
        Settings(
            run=RunSettings(steps=1, seed=-1),
            pipeline=PipelineSettings(target="a:B", args={"sizes": (1, 2)}),
            data=DataSettings(inputs=["a"]),  # type: ignore[arg-type]
            optimizer=OptimizerSettings(options={"name": "sgd"}),
        )
    assert caught.value.problems == (
        "run.seed: must be at least 0 and below 2**63, got -1",
        "pipeline.args: sizes is of type tuple; values are text, numbers, true, false, null, lists and mappings",
        "data.inputs: expected ('a',), got ['a']",
        "optimizer: must be a mapping without the key 'name', got {'name': 'sgd'}",
    )
    with pytest.raises(ConfigurationError) as caught:
        Settings(run=RunSettings(steps=1), pipeline=pipeline, cluster=ClusterSettings(workers=Workers.parse(9)))
    assert caught.value.problems == (f"cluster.workers: {WORKERS}",)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        given_on_command_line().run.seed = 3  # type: ignore[misc]


# Their text gives them back

texts = st.text(min_size=1) | st.sampled_from(
    [
        "1e3",
        "on",
        "null",
        "~",
        "012",
        "0x1F",
        "1:30",
        ".inf",
        "2020-01-01",
        "???",
        "=",
        "<<",
        "- a",
        "a: b",
        "#",
        " x ",
        "\n",
    ]
    + [
        "${x}",
        r"\${x}",
        r"\\${x}",
        "${",
        "a\\${b\\",
        "'${x}' \\",
        "\\",
        "\ufeffx",
        "\x85",
        "\u2028",
        "\U0001f600",
        "\x7f",
    ]
)
floats = st.floats(allow_nan=False)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
counts = st.integers(min_value=1)
scalars = st.none() | st.booleans() | st.integers() | floats | texts | st.just("")
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
lines = texts.filter(lambda text: text.splitlines() == [text])
mappings = st.dictionaries(texts.filter(lambda key: key != "name"), trees, max_size=3)


@st.composite
def all_settings(draw: st.DrawFn) -> Settings:
    shards = draw(st.integers(1, 100))
    name = draw(st.sampled_from(sorted(TOPOLOGIES)))
    options = {
        option.name: draw(st.sampled_from(choices(option.kind)) if choices(option.kind) else st.integers(1, 1000))
        for option in TOPOLOGIES.options(name).values()
        if draw(st.booleans())
    }
    length = {draw(st.sampled_from(["steps", "epochs"])): draw(counts)}
    run = st.builds(
        RunSettings,
        name=st.none() | lines,
        experiment=lines,
        seed=st.integers(0, 2**63 - 1),
        threads=counts,
        **{key: st.just(value) for key, value in length.items()},
    )
    data = st.builds(
        DataSettings,
        shards=st.just(shards),
        batch_size=st.integers(shards, 10**9).map(Steps.constant),
        inputs=st.lists(texts).map(tuple),
    )
    cluster = st.builds(
        ClusterSettings,
        workers=st.integers(1, shards).map(Workers.parse),
        spares=st.integers(0, 3),
        address=st.none() | st.just("10.0.0.1:6379") | st.just("[::1]:6379"),
        cpus_per_worker=positive,
        gpus_per_worker=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]),
        start_timeout_s=positive,
        step_timeout_s=positive,
    )
    every = (
        st.none()
        | st.builds(Every, steps=counts)
        | st.builds(Every, seconds=positive)
        | st.builds(Every, epochs=counts)
    )
    return Settings(
        run=draw(run),
        pipeline=PipelineSettings(target="a.b:C", args=draw(mappings)),
        data=draw(data),
        cluster=draw(cluster),
        topology=Variant(name=name, options=options),
        optimizer=draw(st.builds(OptimizerSettings, name=texts, options=mappings)),
        gradient=draw(st.builds(GradientSettings, clip=st.none() | positive)),
        evaluation=EvaluationSettings(every=draw(every)),
        checkpoint=draw(st.builds(CheckpointSettings, every=every, keep=counts, uri=st.none() | texts)),
        trace=draw(st.builds(TraceSettings, digest_every=st.integers(0), tensors_every=st.integers(0))),
        tracking=draw(st.builds(TrackingSettings, uri=st.none() | texts, every_s=positive)),
        reduction="exact" if asks_for_nodes(name) else draw(st.sampled_from(["exact", "fast"])),
        transport=draw(
            st.builds(TransportSettings, name=st.sampled_from(["auto", "shared_memory", "tcp"]))
            | st.builds(TransportSettings, name=st.sampled_from(["auto", "tcp"]), tls=st.booleans())
        ),
        strict=draw(st.booleans()),
        output=draw(st.sampled_from(["text", "json"])),
    )


def test_auto_is_left_to_a_measurement_until_a_later_source_gives_a_value() -> None:
    first = {
        "run": {"steps": 3},
        "pipeline": {"target": "a:B"},
        "topology": {"name": "tree", "arity": 3},
        "cluster": {"workers": "auto"},
    }
    settings = load([first], ["topology=auto"])
    assert settings.tuning.auto == ("cluster.workers", "topology")
    assert (settings.topology.name, settings.topology.options) == ("ring", {})
    assert from_yaml(to_yaml(settings)) == settings
    assert load([first], ["topology=auto", "topology=tree", "cluster.workers=3"]).tuning.auto == ()
    assert load([first], ["cluster.workers={min: 1, max: 2}"]).tuning.auto == ()
    assert load([], [*SMALLEST, "data.loaders=auto"]).tuning.auto == ("data.loaders",)
    with refused("settings.auto-by-measuring"):
        resolve(settings)


def test_stages_are_left_to_the_memory_that_is_there_whatever_no_measurement_may_choose() -> None:
    settings = load([], [*SMALLEST, "cluster.stages=auto", "sync=ssp", "reduction=exact"])
    assert (settings.tuning.auto, settings.cluster.stages) == (("cluster.stages",), 1)
    assert load([], [*SMALLEST, "cluster.stages=auto", "cluster.stages=1"]).tuning.auto == ()
    with refused("settings.auto-by-memory"):
        resolve(settings)
    with refused("tuning.sync", "topology"):
        load([], [*SMALLEST, "cluster.stages=auto", "topology=auto", "sync=ssp"])


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ("reduction=fast", "tuning.fast-layout"),
        ("sync=ssp", "tuning.sync"),
        ("cluster.stages=2", "tuning.stages"),
        ("compression=topk", "tuning.compression"),
    ],
)
def test_what_no_measurement_may_choose_is_refused(override: str, code: str) -> None:
    with refused(code, "topology"):
        load([], [*SMALLEST, "topology=auto", "cluster.workers=2", override])
    if override == "reduction=fast":
        assert load([], [*SMALLEST, "data.loaders=auto", override]).tuning.auto == ("data.loaders",)


@pytest.mark.slow
@given(all_settings())
def test_the_text_of_settings_gives_equal_settings(settings: Settings) -> None:
    again = from_yaml(to_yaml(settings))
    assert again == settings
    assert repr(flat(again)) == repr(flat(settings))  # 1 and 1.0, 0.0 and -0.0 stay apart
    assert to_yaml(again) == to_yaml(settings)


def test_the_text_as_a_file_gives_equal_settings_and_takes_overrides(write: Write) -> None:
    settings = load(["digits"], ["strict=true", "output=json", "run.name=${oc.env:HOME}"], folder=ROOT / "conf")
    file = write("settings.yaml", to_yaml(settings))
    assert load([file], []) == settings
    assert load([file], ["run.epochs=2"]).run == dataclasses.replace(settings.run, steps=None, epochs=2)


def test_a_launch_by_the_settings_of_a_jobs_run_is_no_part_of_the_job(write: Write) -> None:
    """A job that is started again takes the newest run of its id, so it went on with that launch, or took it for its end."""
    settings = load(["digits"], ["run.submission=job-1"], folder=ROOT / "conf")
    file, _ = write("settings.yaml", to_yaml(settings)), write("data.json", "{}")
    assert load([file], []).run == dataclasses.replace(settings.run, submission=None)
    assert load([file], ["run.submission=job-2"]).run.submission == "job-2"
    assert kept.as_held(Path(file)).run.submission == "job-1"


# Views


def test_flat_has_a_dotted_key_for_every_leaf() -> None:
    settings = given_on_command_line(
        "pipeline.args={hidden: 64, deep: {x: [1, 2], none: {}}}",
        "optimizer.lr=1e-3",
        "evaluation.every=30s",
        "data.inputs=[a]",
    )
    leaves = flat(settings)
    assert leaves["pipeline.args.hidden"] == 64
    assert leaves["pipeline.args.deep.x"] == [1, 2]
    assert leaves["pipeline.args.deep.none"] == {}
    assert (leaves["optimizer.name"], leaves["optimizer.lr"]) == (None, 0.001)
    assert (leaves["evaluation.every"], leaves["data.inputs"], leaves["run.name"]) == ("30s", ["a"], None)
    assert {key.name for key in KEYS if not key.is_open} <= set(leaves)


def test_flat_keeps_a_key_with_a_dot_apart_from_nested_keys() -> None:
    dotted = dataclasses.replace(given_on_command_line(), pipeline=PipelineSettings(target="a:B", args={"a.b": 1}))
    nested = dataclasses.replace(given_on_command_line(), pipeline=PipelineSettings(target="a:B", args={"a": {"b": 1}}))
    assert flat(dotted) != flat(nested)


def test_views_are_copies() -> None:
    settings = given_on_command_line("pipeline.args.sizes=[1]")
    to_dict(settings)["pipeline"]["args"]["sizes"].append(2)
    flat(settings)["pipeline.args.sizes"].append(2)
    assert settings.pipeline.args == {"sizes": [1]}


EXECUTION = (
    ["run.name=x", "run.experiment=x", "cluster.workers=3", "cluster.cpus_per_worker=2", "cluster.start_timeout_s=1"]
    + [
        "cluster.step_timeout_s=1",
        "cluster.address=head:6379",
        "cluster.gpus_per_worker=0.5",
        "topology={name: tree, arity: 3}",
        "topology=parameter_server",
        "transport=shared_memory",
        "transport={name: tcp, tls: true}",
    ]
    + [
        "evaluation.every=3",
        "trace.digest_every=1",
        "trace.tensors_every=1",
        "tracking.uri=x",
        "tracking.every_s=2",
        "strict=true",
        "output=json",
    ]
)
RESULT = ["run.seed=3", "run.steps=4", "run.threads=2", "pipeline.target=a:B", "pipeline.args.x=1", "data.shards=4"] + [
    "data.batch_size=32",
    "data.inputs=[a]",
    "sync=ssp",
    "reduction=fast",
    "optimizer=sgd",
    "optimizer.lr=1",
    "gradient.clip=1",
    "compression=quantize",
    "compression={name: quantize, bits: 16}",
]


@pytest.mark.slow
@pytest.mark.parametrize("override", EXECUTION)
def test_what_determines_the_execution_is_no_part_of_the_identity(override: str) -> None:
    settings = given_on_command_line(override)
    assert settings != given_on_command_line()
    assert determining(settings) == determining(given_on_command_line())


def test_stages_are_no_part_of_the_identity() -> None:
    staged = given_on_command_line(
        "cluster.stages=2", "cluster.workers=2", "cluster.pipeline=gpipe", "run.recompute=true"
    )
    assert determining(staged) == determining(given_on_command_line())


@pytest.mark.slow
@pytest.mark.parametrize("override", RESULT)
def test_what_determines_the_result_is_part_of_the_identity(override: str) -> None:
    assert determining(given_on_command_line(override)) != determining(given_on_command_line())


def test_what_a_gpu_computes_is_another_result() -> None:
    gpu = ("run.device=cuda", "cluster.gpus_per_worker=0.5")
    settings = given_on_command_line(*gpu, "run.tf32=true")
    assert from_yaml(to_yaml(settings)) == settings
    runs = [determining(given_on_command_line(*given)) for given in ([], gpu, [*gpu, "run.tf32=true"])]
    assert len({str(run) for run in runs}) == 3
    assert determining(given_on_command_line(gpu[0], "cluster.gpus_per_worker=1")) == runs[1]
    assert determining(given_on_command_line(*gpu, "run.graphs=false")) == runs[1]
    assert determining(given_on_command_line("run.compile=true")) not in runs


@pytest.mark.parametrize(
    ("given", "graphs"), [((), True), (("run.graphs=false",), False), (("run.graphs=auto", "run.device=cpu"), False)]
)
def test_graphs_are_for_gpus_and_may_be_switched_off(given: tuple[str, ...], graphs: bool) -> None:
    settings = given_on_command_line("run.device=cuda", "cluster.gpus_per_worker=1", *given)
    assert resolve(settings).run.compute.graphs is graphs
    assert from_yaml(to_yaml(settings)) == settings


def test_whoever_compiles_may_take_as_long_to_start_as_to_step() -> None:
    timeouts = [resolve(given_on_command_line(*given)).cluster.timeouts for given in ((), ("run.compile=true",))]
    assert timeouts[0].start_s < timeouts[1].start_s == timeouts[1].step_s


@pytest.mark.parametrize("override", ["cluster.workers=3", "topology=tree", "topology={name: tree, arity: 3}"])
def test_fast_sums_make_the_layout_part_of_the_identity(override: str) -> None:
    fast = given_on_command_line("reduction=fast")
    assert determining(given_on_command_line("reduction=fast", override)) != determining(fast)
    assert set(determining(fast)) - set(determining(given_on_command_line())) == {
        "cluster.workers",
        "topology.name",
        *(f"topology.{option}" for option in TOPOLOGIES.known_options()),
    }


def test_every_key_says_what_it_is() -> None:
    for key in KEYS:
        assert key.about.doc.endswith("."), key.name
        assert "|" not in key.about.doc, key.name


def test_the_page_of_documentation_is_current() -> None:
    command = "python -c \"import orchestrator.config.settings as s; print(s.document(), end='')\" > docs/settings.md"
    assert (ROOT / "docs/settings.md").read_text() == document(), f"run: {command}"


def test_every_key_and_section_of_the_page_can_be_linked_to() -> None:
    page = document()
    anchors = re.findall(r'<a id="([^"]+)">', page) + re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    assert {name.removesuffix(".*") for name in names()} <= set(anchors)
    first = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(first) == 10
    assert set(first) <= set(anchors)


def test_every_name_that_a_key_can_be_set_to_says_what_it_does() -> None:
    page = document()
    assert list(OPTIMIZER_NAMES) == list(OPTIMIZERS)
    for named in (*(table.sentences() for table in TABLES.values()), OPTIMIZER_NAMES):
        for name, does in named.items():
            assert re.fullmatch(r"[A-Z0-9`][^|]{15,118}\.", does), (
                f"{name}: {does!r} has 17 to 120 characters and ends with a full stop"
            )
            assert f"| `{name}` | {does} |\n" in page


@pytest.mark.slow
def test_loading_settings_needs_no_torch() -> None:
    check = (
        "import sys, orchestrator.config.settings; assert not {'torch', 'ray', 'mlflow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True)


def test_it_is_known_where_each_value_was_given(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("run: {steps: 3}\npipeline:\n  target: a:B\n  args: {x: 1, y: 2}\n")
    found = origins(["a", {"optimizer": {"lr": 1.0}}], ["pipeline.args.y=3", "run.epochs=2"], folder=tmp_path)
    file = tmp_path / "a.yaml"
    assert found == {
        "pipeline.target": f"{file}:3",
        "pipeline.args.x": f"{file}:4",
        "pipeline.args.y": "command line",
        "optimizer.lr": found["optimizer.lr"],
        "run.epochs": "command line",
    }
    assert found["optimizer.lr"].startswith("the mapping")


LOCAL = ("local={steps: 3, optimizer: {name: sgd, lr: 0.1}}",)
UNFIT_FOR_LOCAL_STEPS = {
    ("reduction=fast",): "reduction: with local steps changes of parameters are added exactly; set reduction=exact",
    ("gradient.clip=2",): "gradient.clip: with local steps there is no gradient of a step; set local.clip=2 instead",
    ("data.batch_size={0: 64, 2: 80}",): "data.batch_size: with local steps it cannot change with the step; set "
    "data.batch_size=64",
    (
        "contribution=a:B",
    ): "contribution: with local steps a shard contributes no gradient for a:B; leave contribution out",
    (
        "run.steps=",
        "run.epochs=1",
    ): "run.epochs: with local steps a step of the run is a round; set run.steps, the number of rounds",
    (
        "schedule={name: steps, every: 2epochs}",
    ): "schedule.every: 2epochs is no number of rounds, which steps are with local; give it in steps",
}


@pytest.mark.parametrize(("overrides", "sentence"), UNFIT_FOR_LOCAL_STEPS.items())
def test_what_does_not_go_with_local_steps_is_refused_with_the_remedy(
    overrides: tuple[str, ...], sentence: str
) -> None:
    (problem,) = problems(*LOCAL, *overrides)
    assert problem.removeprefix("command line: ") == sentence


STAGED = ("cluster.stages=2", "cluster.workers=3")
UNFIT_FOR_STAGES = {
    "cluster.workers=1": "cluster.workers: 1 worker for 2 stages; a worker hosts one stage: raise it to 2 or more, or lower "
    "cluster.stages",
    "cluster.workers={min: 1, max: 4}": "cluster.workers: 1 worker for 2 stages; a worker hosts one stage: raise it to 2 or "
    "more, or lower cluster.stages",
    "cluster.workers=17": "cluster.workers: 17 workers for 8 shards in each of 2 stages; a worker hosts at least one shard: "
    "lower cluster.workers or raise data.shards (which changes the result)",
    "topology=parameter_server": "topology: with cluster.stages a stage is added up by the workers that host it, without "
    "servers, so parameter_server is not on offer; set topology=ring, or cluster.stages=1",
    "sync=ssp": "sync: with cluster.stages all stages of a model take a step together, so ssp is not on offer; set sync=bsp, "
    "or cluster.stages=1",
    "local={steps: 3, optimizer: {name: sgd, lr: 0.1}}": "local: with cluster.stages no worker has a whole model to train by "
    "itself; leave local out, or set cluster.stages=1",
    "compression=quantize": "compression: with cluster.stages a worker has a gradient of its stage only, so quantize is not "
    "on offer; set compression=none, or cluster.stages=1",
    "privacy.clipping_norm=1": "privacy.clipping_norm: with cluster.stages no worker has a whole contribution to clip, so 1 is "
    "not on offer; set privacy.clipping_norm=null, or cluster.stages=1",
    "contribution=a:B": "contribution: with cluster.stages a worker has a gradient of its stage only, so a:B is not on offer; "
    "set contribution=gradient, or cluster.stages=1",
    "reduction=fast": "reduction: with cluster.stages a stage's gradient is added up exactly, so fast is not on offer; set "
    "reduction=exact, or cluster.stages=1",
    "run.compile=true": "run.compile: with cluster.stages a worker computes a part of the model, which is not found in "
    "compiled code, so true is not on offer; set run.compile=false, or cluster.stages=1",
    "optimizer=a:B": "optimizer: with cluster.stages an optimizer of your own may look at all parameters, so a:B is not on "
    "offer; set one of torch's, as optimizer=adamw, or cluster.stages=1",
}


@pytest.mark.parametrize(("override", "sentence"), UNFIT_FOR_STAGES.items())
def test_what_does_not_go_with_stages_is_refused_with_the_remedy(override: str, sentence: str) -> None:
    (problem,) = problems(*STAGED, override)
    assert problem.removeprefix("command line: ") == sentence
    assert given_on_command_line(override.replace("17", "7"), "cluster.stages=1").cluster.stages == 1


def test_stages_are_computed_on_gpus_too() -> None:
    plan = resolve(given_on_command_line(*STAGED, "run.device=cuda", "cluster.gpus_per_worker=1"))
    assert (plan.run.compute.device, plan.cluster.members.stages) == ("cuda", 2)


def test_a_stage_needs_a_worker() -> None:
    plan = resolve(given_on_command_line("cluster.stages=3", "cluster.workers=4"))
    assert (plan.cluster.members.stages, plan.cluster.members.least) == (3, 3)
    assert resolve(given_on_command_line("cluster.workers=4")).cluster.members.least == 1
    assert plan.pipelining == Variant("1f1b", {})
    gpipe = given_on_command_line("cluster.stages=2", "cluster.workers=2", "cluster.pipeline=gpipe")
    assert resolve(gpipe).pipelining == Variant("gpipe", {})


IDLE_WITHOUT_STAGES = {
    "run.recompute=true": "run.recompute: it counts for a model in stages only; set cluster.stages to 2 or more, or leave it "
    "out",
    "cluster.pipeline=gpipe": "cluster.pipeline: the order gpipe counts for a model in stages only; set cluster.stages to 2 or "
    "more, or leave it out (cluster.pipeline=1f1b)",
}


@pytest.mark.parametrize(("override", "sentence"), IDLE_WITHOUT_STAGES.items())
def test_what_counts_for_stages_only_is_refused_without_them(override: str, sentence: str) -> None:
    assert [each.removeprefix("command line: ") for each in problems(override)] == [sentence]
    assert given_on_command_line(override, "cluster.stages=auto").tuning.auto == ("cluster.stages",)


IDLE_SPEEDS = {
    "cluster.spares=0": "a private Ray is this machine, on which all workers are equally fast; set cluster.address",
    "cluster.deal=equal": "with cluster.deal=equal nobody asks for speeds",
    "reduction=fast": "with reduction=fast the layout determines the result, so shards are dealt equally; set reduction=exact",
    "sync=bap": "under sync=bap who hosts a shard is part of the record, so shards are dealt equally; set sync=bsp",
    "local.steps=2": "with local steps shards differ in size, and are dealt by that",
}


@pytest.mark.parametrize(("override", "why"), IDLE_SPEEDS.items())
def test_speeds_that_count_for_nothing_are_refused(override: str, why: str) -> None:
    joined = [] if override == "cluster.spares=0" else ["cluster.address=h:1"]
    found = problems("cluster.speeds=[10.0.0.7=0.5]", *joined, override)
    assert f"command line: cluster.speeds: {why}, or leave cluster.speeds out" in found


@pytest.mark.parametrize("speeds", ["[a]", "[a=0]", "[a=x]", "[=1]", "[a=1, a=2]", "[a=inf]", "[a=nan]", "[a=-1]"])
def test_speeds_are_numbers_by_address(speeds: str) -> None:
    (problem,) = problems(f"cluster.speeds={speeds}", "cluster.address=h:1")
    assert "a list of ADDRESS=SPEED with numbers above 0, each address once" in problem


def test_a_number_of_workers_that_a_measurement_may_not_choose_is_one_problem() -> None:
    (problem,) = problems("cluster.workers=auto", "cluster.stages=2")
    assert "cluster.workers: measuring chooses the layout of whole models" in problem


def test_clients_that_are_drawn_have_no_state() -> None:
    (problem,) = problems("data.partition={name: iid, clients: 9}", "contribution=a:B")
    assert "contribution: a:B may keep a state for each shard, but of 9 clients a shard plays another one" in problem
