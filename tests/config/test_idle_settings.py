"""Settings without effect are refused where somebody describes a run, and pass where a record gives them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.settings import from_yaml, load, to_yaml
from orchestrator.config.settings.rules import IDLE
from orchestrator.config.settings.rules.rule import Idle
from orchestrator.errors import ConfigurationError
from orchestrator.experiments.search.sweeps import load_sweep
from tests.products import thinned
from tests.projects import REPOSITORY
from tests.refusals import refused

BASE: dict[str, Any] = {"run": {"steps": 40}, "pipeline": {"target": "a:B"}}
EVERY_TEN = "evaluation.every=10"
# By the key that has no effect: what is typed, and with what beside it it has one.
WITHOUT_EFFECT: dict[str, tuple[str, str]] = {
    "schedule.warmup": ("schedule.warmup=41", "schedule.warmup=40"),
    "compression.warmup": ("compression={name: topk, warmup: 41}", "compression={name: topk, warmup: 40}"),
    "compression.reset": (
        "compression={name: powersgd, warmup: 5, reset: 36}",
        "compression={name: powersgd, warmup: 5, reset: 35}",
    ),
    "schedule.every": (
        "schedule={name: steps, warmup: 5, every: 35}",
        "schedule={name: steps, warmup: 5, every: 34}",
    ),
    "early_stopping.patience": (
        f"early_stopping.patience=4 {EVERY_TEN}",
        f"early_stopping.patience=3 {EVERY_TEN}",
    ),
    "schedule.patience": (
        f"schedule=plateau schedule.patience=4 {EVERY_TEN}",
        f"schedule=plateau schedule.patience=3 {EVERY_TEN}",
    ),
    "early_stopping.metric": (
        "early_stopping.metric=validation/accuracy",
        f"early_stopping.metric=validation/accuracy early_stopping.patience=1 {EVERY_TEN}",
    ),
    "early_stopping.mode": ("early_stopping=max", f"early_stopping=max early_stopping.patience=1 {EVERY_TEN}"),
    "early_stopping.min_change": (
        "early_stopping.min_change=0.1",
        f"early_stopping.min_change=0.1 early_stopping.patience=1 {EVERY_TEN}",
    ),
    "checkpoint.best.mode": (
        "checkpoint.best.mode=max",
        f"checkpoint.best.mode=max checkpoint.best.metric=validation/accuracy {EVERY_TEN}",
    ),
    "checkpoint.best.keep": (
        "checkpoint.best.keep=3",
        f"checkpoint.best.keep=3 checkpoint.best.metric=validation/loss {EVERY_TEN}",
    ),
    "checkpoint.archive": ("checkpoint.archive=41", "checkpoint.archive=40"),
    "cluster.claims": ("cluster.claims=true", "cluster.claims=true cluster.workers=2"),
    "run.recompute": ("run.recompute=true", "run.recompute=true cluster.stages=2 cluster.workers=2"),
    "cluster.pipeline.name": (
        "cluster.pipeline=gpipe",
        "cluster.pipeline=gpipe cluster.stages=2 cluster.workers=2",
    ),
    "local.weight": ("local.weight=uniform", "local.weight=uniform local.steps=2 local.optimizer=sgd"),
    "privacy.secret": (
        "privacy.secret=/a/b",
        "privacy={secret: /a/b, noise_multiplier: 1.0, clipping_norm: 1.0, delta: 0.1} data.partition=iid",
    ),
    "trace.tensors_every": ("trace.tensors_every=41", "trace.tensors_every=40"),
    "chaos.kinds": ("chaos.kinds=[pause]", "chaos.kinds=[pause] chaos.every=5s"),
    "chaos.seed": ("chaos.seed=1", "chaos={seed: 1, every: 5s, kinds: [pause]}"),
    "check.every": ("check.every=41", "check.every=40"),
    "transport.tls": ("transport.tls=true", "transport.tls=true cluster.address=head:6379"),
    "tuning.seconds": ("tuning.seconds=1", "tuning.seconds=1 topology=auto"),
    "environment.name": ("environment=ignore", "environment=check"),
    "cluster.speeds": ("cluster.speeds=[h=2]", "cluster.speeds=[h=2] cluster.address=h:1"),
    "data.absent": (
        "data.absent=wait",
        "data.absent=wait data.sites={a: [0]} data.partition=natural cluster.address=h:1",
    ),
}
OTHERS = {
    "schedule.warmup": "schedule={name: cosine, warmup: 40}",
    "schedule.patience": "schedule=plateau evaluation.every=14",  # three, where it is not given
    "tuning.seconds": "tuning.seconds=1 cluster.stages=auto cluster.workers=2",
}
SWITCHED = {  # what a later source leaves behind
    "checkpoint.archive": ("checkpoint.archive=30", "run.steps=10"),
    "checkpoint.best.mode": (WITHOUT_EFFECT["checkpoint.best.mode"][1], "checkpoint.best.metric=null"),
    "checkpoint.best.keep": (WITHOUT_EFFECT["checkpoint.best.keep"][1], "checkpoint.best.metric=null"),
    "compression.reset": ("compression={name: powersgd, reset: 30}", "run.steps=10"),
    "schedule.every": ("schedule={name: steps, every: 30}", "run.steps=10"),
    "early_stopping.patience": (f"early_stopping.patience=3 {EVERY_TEN}", "run.steps=10"),
    "schedule.patience": (f"schedule=plateau {EVERY_TEN}", "run.steps=10"),
    "early_stopping.mode": (
        f"early_stopping=max early_stopping.patience=1 {EVERY_TEN}",
        "early_stopping.patience=null",
    ),
    "local.weight": ("local={weight: uniform, steps: 2, optimizer: sgd}", "local.steps=null local.optimizer.name=null"),
    "privacy.secret": (WITHOUT_EFFECT["privacy.secret"][1], "privacy={noise_multiplier: 0, delta: null}"),
    "trace.tensors_every": ("trace.tensors_every=20", "run.steps=10"),
    "cluster.claims": (WITHOUT_EFFECT["cluster.claims"][1], "cluster.workers=1"),
    "run.recompute": (WITHOUT_EFFECT["run.recompute"][1], "cluster.stages=1"),
    "cluster.pipeline.name": (WITHOUT_EFFECT["cluster.pipeline.name"][1], "cluster.stages=1"),
    "cluster.speeds": (WITHOUT_EFFECT["cluster.speeds"][1], "cluster.deal=equal"),
    "data.absent": (WITHOUT_EFFECT["data.absent"][1], "data.sites={} cluster.address=null"),
    "tuning.seconds": ("tuning.seconds=1 topology=auto", "topology=tree"),
    "transport.tls": ("transport={name: tcp, tls: true}", "transport=auto"),
}


def loaded(overrides: str, *conf: Any) -> None:
    load([BASE, *conf], _split(overrides))


def _split(overrides: str) -> list[str]:
    """At blanks, but for those within braces."""
    found: list[str] = []
    for word in overrides.split():
        if found and found[-1].count("{") > found[-1].count("}"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def test_every_rule_is_tried() -> None:
    assert {rule.keys[0] for rule in IDLE} == set(WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("key", "overrides"), [*((key, typed) for key, (typed, _) in WITHOUT_EFFECT.items()), *OTHERS.items()]
)
def test_a_setting_without_effect_is_refused_with_the_remedy(key: str, overrides: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(overrides)
    (problem,) = caught.value.problems
    assert key.removesuffix(".name") in problem
    assert any(remedy in problem for remedy in ("lower it", "leave"))


@pytest.mark.slow
@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_and_passes_where_it_has_one(key: str) -> None:
    loaded(WITHOUT_EFFECT[key][1])


@pytest.mark.slow
@pytest.mark.parametrize("key", SWITCHED)
def test_who_switches_something_off_leaves_its_settings_behind(key: str, tmp_path: Path) -> None:
    before, later = SWITCHED[key]
    file = tmp_path / "a.yaml"
    file.write_text(to_yaml(load([BASE], _split(before))))
    load([str(file)], _split(later))


def test_a_shortened_run_never_gets_to_its_rate(tmp_path: Path) -> None:
    """Unlike the others a warm-up has an effect then, and not the one that is meant."""
    file = tmp_path / "a.yaml"
    file.write_text("run: {steps: 40}\npipeline: {target: 'a:B'}\nschedule: {warmup: 20}\n")
    with refused("idle.warmup", "a.yaml"):
        load([str(file)], ["run.steps=10"])


@pytest.mark.slow
@pytest.mark.parametrize("key", thinned(WITHOUT_EFFECT, 5))
def test_what_a_record_holds_passes(key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that was launched before there was a rule is repeated and gone on with as it is."""
    monkeypatch.setattr("orchestrator.config.settings.loading.IDLE", ())
    old = load([BASE], _split(WITHOUT_EFFECT[key][0]))
    monkeypatch.undo()
    file = tmp_path / "settings.yaml"
    file.write_text(to_yaml(old))
    assert from_yaml(file.read_text()) == old
    with pytest.raises(ConfigurationError):  # a file like others
        load([str(file)], [])
    (tmp_path / "data.json").touch()
    assert load([str(file)], []) == old
    assert load([str(file)], ["cluster.spares=1"]).cluster.spares == 1


def test_rungs_are_shorter_than_what_is_described(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(
        "run: {steps: 40}\npipeline: {target: 'a:B'}\nschedule: {warmup: 20}\nspace: {run.seed: {choices: [1, 2, 3]}}\n"
        "search: {name: grid}\nhalving: {rungs: [10]}\n"
    )
    described = load_sweep(str(file), [])
    assert described.settings_of({"run.seed": 1}, 0).run.steps == 10
    with refused("idle.warmup"):
        load_sweep(str(file), ["run.steps=15"])


@pytest.mark.parametrize("file", sorted((REPOSITORY / "conf").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_configurations_here_have_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    if "\nconf:" in file.read_text():
        load_sweep(str(file), [])
    else:
        load([str(file)], [])


def test_an_idle_rule_counts_unless_a_switch_came_later() -> None:
    for rule in IDLE:
        assert isinstance(rule, Idle)
        assert set(rule.switches) < set(rule.keys)
