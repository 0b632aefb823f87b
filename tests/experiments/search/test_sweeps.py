"""The file of a sweep: what it says is what is tried, and whatever is wrong with it is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.settings import determining, flat
from orchestrator.errors import ConfigurationError
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.space import Range, corners
from orchestrator.experiments.search.sweeps import OWN, RUNGS, SECTIONS, load_sweep
from tests.projects import REPOSITORY
from tests.refusals import refused

pytestmark = pytest.mark.slow

RUNS: dict[str, Any] = {
    "run": {"steps": 60, "name": "s"},
    "pipeline": {"target": "pipelines.digits:Digits"},
    "optimizer": {"name": "adamw"},
}
SPACE = {
    "optimizer.lr": {"low": 1e-4, "high": 0.1, "log": True},
    "pipeline.args.hidden": {"choices": [32, 64]},
    "pipeline.args.dropout": {"low": 0.0, "high": 0.5, "step": 0.1},
}
GOOD: dict[str, Any] = {**RUNS, "space": SPACE, "search": {"name": "random", "trials": 6, "batch": 9}}


@pytest.fixture
def described(tmp_path: Path) -> Any:
    def load(content: dict[str, Any], *overrides: str) -> Sweep:
        file = tmp_path / "s.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        return load_sweep(str(file), overrides)

    return load


def test_the_demo_is_what_its_page_says() -> None:
    sweep = load_sweep("conf/sweep.yaml", [])
    assert (sweep.course.search.trials, sweep.settings.run.steps, sweep.course.search.name) == (12, 60, "tpe")


def test_each_point_becomes_the_settings_of_its_run(described: Any) -> None:
    sweep = described(GOOD, "run.seed=3")
    for point in corners(sweep.course.space):
        settings = sweep.settings_of(point)
        found = flat(settings)
        assert {key: found[key] for key in point} == point
        assert settings.run.seed == 3
        assert all(found[key] == value for key, value in flat(sweep.settings).items() if key not in point)


@given(
    lr=st.floats(1e-12, 1e12, allow_subnormal=False),
    text=st.sampled_from(["1e-3", "true", "null", "a: b", "${x}", "ring", "012"]),
)
def test_the_recorded_file_describes_the_same_sweep(
    tmp_path_factory: pytest.TempPathFactory, lr: float, text: str
) -> None:
    """Every bit of a number, and text that looks like something else."""
    file = tmp_path_factory.getbasetemp() / "first.yaml"
    space = {"optimizer.lr": {"low": lr, "high": 1e13}, "run.seed": {"low": 1, "high": 5}}
    escaped = text.replace("${", "\\${")
    content = {**RUNS, "pipeline": {**RUNS["pipeline"], "args": {"note": escaped}}, "space": space}
    file.write_text(yaml.safe_dump({**content, "search": {"trials": 5, "seed": 2}}, sort_keys=False))
    first = load_sweep(str(file), [])
    again = tmp_path_factory.getbasetemp() / "again.yaml"
    again.write_text(first.as_yaml())
    second = load_sweep(str(again), [])
    assert second == first
    assert second.course.space["optimizer.lr"].ends == (lr, 1e13)
    assert second.determining() == first.determining()


def test_slots_do_not_determine_the_trials_and_everything_else_does(described: Any) -> None:
    before = described(GOOD).determining()
    assert described(GOOD, "parallel=5", "cluster.workers=3").determining() == before
    for other in ("search.seed=1", "search.batch=10", "search.trials=7", "run.steps=61", "objective.metric=train/loss"):
        assert described(GOOD, other).determining() != before


def test_a_rung_has_its_own_length(described: Any) -> None:
    sweep = described({**GOOD, "halving": {"rungs": [7, 20]}})
    point = next(iter(corners(sweep.course.space)))
    assert [sweep.settings_of(point, rung).run.steps for rung in range(3)] == [7, 20, 60]
    assert [sweep.course.steps_of(rung) for rung in range(3)] == [7, 20, 60]


def test_the_command_line_has_the_last_word(described: Any) -> None:
    content = {**GOOD, "search": {"name": "tpe", "trials": 6, "startup": 3}}
    assert described(content).course.search.options["startup"] == 3
    assert described(content, "search=random").course.search.options == {}
    assert described(content, "space.optimizer.lr.high=0.2").course.space["optimizer.lr"] == Range(1e-4, 0.2, log=True)
    found = described(content, "space.optimizer.lr=[0.1, 0.2]", "search=grid", "search.trials=null").course
    assert found.space["optimizer.lr"].values() == [0.1, 0.2]
    assert found.search.trials == 2 * 2 * 6


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


WRONG = {
    "no space": (without("space"), [], "space: required"),
    "no trials": ({**GOOD, "search": {"name": "tpe"}}, [], "search.trials: required by search=tpe"),
    "an unknown key": (GOOD, ["space.optimiser.lr=[0.1]"], "optimiser.lr: no such key; did you mean optimizer.lr?"),
    "an unknown part": (GOOD, ["space.run.seed.hig=3"], "did you mean high?"),
    "a bare value": (GOOD, ["space.run.seed=3"], "space.run.seed: expected a range such as"),
    "half a range": (GOOD, ["space.run.seed.low=3"], "space.run.seed: high is missing"),
    "a text in a range": (GOOD, ["space.optimizer.lr.low=small"], "space.optimizer.lr: low: expected a number, got 'small'"),
    "a value out of bounds": (GOOD, ["space.run.seed=[-1, 2]"], "run.seed: must be at least 0"),
    "an execution setting": (GOOD, ["space.cluster.workers=[1,2]"], "it changes how a run is executed"),
    "given and searched": (GOOD, ["optimizer.lr=0.1"], "optimizer.lr: it is searched"),
    "an endless grid": (GOOD, ["search=grid"], "space.optimizer.lr: a grid has to end"),
    "an unknown search": (GOOD, ["search=tp"], "search.name: 'tp' is not on offer; did you mean tpe?"),
    "an unknown option": (GOOD, ["search.startup=3"], "search.startup: random has no startup"),
    "a mistyped key": (GOOD, ["search.trails=3"], "search.trails: no such key; did you mean search.trials?"),
    "a mistyped section": (GOOD, ["serach.trials=3"], "serach.trials: no such key; did you mean search.trials?"),
    "a mistyped own key": (GOOD, ["objective.metrc=x"], "objective.metrc: no such key; did you mean objective.metric?"),
    "no slot": (GOOD, ["parallel=0"], "parallel: must be at least 1, got 0"),
    "a wrong direction": (GOOD, ["objective.direction=up"], "expected one of minimize, maximize"),
    "rungs that fall": (GOOD, ["halving.rungs=[20,10]"], "the steps have to rise"),
    "rungs beyond the run": (GOOD, ["halving.rungs=[20,60]"], "the last rung is run.steps=60"),
    "no rungs": (GOOD, ["halving.factor=2"], "halving.rungs: required by halving.factor"),
    "rungs that are none": (GOOD, ["halving.rungs=many"], "halving.rungs: expected numbers of steps"),
    "rungs of epochs": (GOOD, ["halving.rungs=[20]", "run.epochs=2"], "halving.rungs: needs run.steps"),
    "a searched length": (GOOD, ["halving.rungs=[20]", "space.run.steps=[30,60]"], "is what halving chooses"),
    "a small batch": (GOOD, ["halving.rungs=[20]", "search.batch=2"], "set search.batch=9"),
    "a registered model": (GOOD, ["tracking.register=best"], "each trial would become a version"),
    "a setting of the runs": (GOOD, ["run.sed=3"], "run.sed: no such key; did you mean run.seed?"),
    "a search of nowhere": (GOOD, ["search=nowhere:x"], "there is no module 'nowhere'"),
    "two rules between keys": (
        {**GOOD, "space": {"data.shards": {"choices": [8, 128]}}}, [], "64 rows for 128 shards",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told(described: Any, wrong: str) -> None:
    content, overrides, message = WRONG[wrong]
    with pytest.raises(ConfigurationError) as error:
        described(content, *overrides)
    assert message in str(error.value)


def test_everything_is_told_at_once(described: Any) -> None:
    overrides = ["search=tp", "serach.trials=3", "parallel=0", "run.sed=3", "space.run.seed=[-1]", "objective.metrc=x"]
    with pytest.raises(ConfigurationError) as error:
        described(GOOD, *overrides)
    assert len(error.value.problems) == len(overrides)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("conf: nowhere\nspace: {run.seed: [1, 2]}\n")
    with refused("settings.no-such-name"):
        load_sweep("sweeep", [], folder=tmp_path)
    with refused("settings.no-such-name", "conf=nowhere"):
        load_sweep("sweep", [], folder=tmp_path)


def test_the_page_names_every_key() -> None:
    page = (REPOSITORY / "docs" / "sweeps.md").read_text()
    assert [key for key in [*OWN, RUNGS, *SECTIONS] if f"`{key}`" not in page] == []
    for key, (_, _, sentence, _) in OWN.items():
        assert sentence in page, key


def test_nothing_that_determines_the_result_is_lost(described: Any) -> None:
    sweep = described(GOOD)
    assert sweep.determining()["settings"] == determining(sweep.settings)
