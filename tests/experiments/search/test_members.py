"""An ensemble as its file says: its members are the trials of one batch, whatever else is wrong is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.settings import determining, flat
from orchestrator.errors import ConfigurationError
from orchestrator.experiments.search.members import OWN, seed_of
from orchestrator.experiments.search.outlook import Ended, look, verify
from orchestrator.experiments.search.sweeps import load_sweep
from tests.projects import REPOSITORY
from tests.refusals import refused

pytestmark = pytest.mark.slow

RUNS: dict[str, Any] = {
    "run": {"steps": 6, "seed": 4},
    "pipeline": {"target": "pipelines.digits:Digits"},
    "optimizer": {"name": "adamw"},
}


@pytest.fixture
def described(tmp_path: Path) -> Any:
    def load(section: dict[str, Any], *overrides: str, **kind: Any) -> Any:
        file = tmp_path / "e.yaml"
        file.write_text(yaml.safe_dump({**RUNS, "ensemble": section}, sort_keys=False))
        return load_sweep(str(file), overrides, **kind)

    return load


def test_the_demo_is_what_its_page_says() -> None:
    found = load_sweep("ensemble", [])
    assert found.ensemble is not None
    assert (found.ensemble.members, found.ensemble.data, found.ensemble.combine) == (5, "disjoint", "mean")
    assert (found.settings.run.steps, found.parallel, found.kind, found.noun) == (100, 2, "ensemble", "member")


@pytest.mark.parametrize("data", ["all", "bagging", "disjoint"])
def test_members_are_trials_of_one_batch_with_seeds_and_samples_of_their_own(described: Any, data: str) -> None:
    sweep = described({"members": 4, "data": data})
    outlook = look(sweep.course, {})
    assert outlook.due == [(number, 0) for number in range(4)]
    settings = [sweep.settings_of(trial.point) for trial in outlook.trials]
    assert [each.run.seed for each in settings] == [seed_of(4, number) for number in range(4)]
    assert len({each.run.seed for each in settings}) == 4
    assert {each.data.subset.name for each in settings} == {data}
    assert {each.data.subset.options["shared_seed"] for each in settings} == {4}
    if data != "all":
        assert [each.data.subset.options["member"] for each in settings] == [0, 1, 2, 3]
    kept = [
        {key: value for key, value in flat(each).items() if not key.startswith(("data.subset", "run.seed"))}
        for each in settings
    ]
    assert all(each == kept[0] for each in kept)
    ended = {(number, 0): Ended(str(number), 0.5, "d") for number in range(4)}
    complete = look(sweep.course, ended)
    assert not complete.due
    verify(sweep.course, complete)


def test_the_seeds_of_members_do_not_change_from_version_to_version() -> None:
    assert [seed_of(1, number) for number in range(3)] == [3032071501, 1014542232, 1792055853]


def test_the_recorded_file_describes_the_same_ensemble(described: Any, tmp_path: Path) -> None:
    first = described({"members": 3, "data": "bagging", "combine": {"name": "weighted", "rounds": 7}, "register": "d"})
    file = tmp_path / "again.yaml"
    file.write_text(first.as_yaml())
    second = load_sweep(str(file), [])
    assert second == first
    assert second.determining() == first.determining()


def test_what_determines_the_result(described: Any) -> None:
    one = {"members": 5}
    before = described(one).determining()
    assert described(one, "parallel=5", "cluster.workers=3", "ensemble.register=x").determining() == before
    for other in ("ensemble.members=4", "ensemble.data=all", "ensemble.combine=vote", "run.seed=5", "run.steps=7"):
        found = described({"data": "bagging"}, other)
        assert found.determining() != described({"data": "bagging"}).determining()
    assert before["settings"] == determining(described(one).settings)


def test_any_configuration_can_be_trained_as_an_ensemble(tmp_path: Path) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text(yaml.safe_dump(RUNS))
    assert load_sweep(str(file), [], kind="ensemble").ensemble.members == 5  # type: ignore[union-attr]
    assert load_sweep(str(file), ["ensemble.combine=weighted"], kind="ensemble").ensemble.options == {}  # type: ignore[union-attr]


def test_another_combination_leaves_the_options_of_the_first_behind(described: Any) -> None:
    section = {"combine": {"name": "weighted", "rounds": 7}}
    assert described(section).ensemble.options == {"rounds": 7}
    assert described(section, "ensemble.combine=mean").ensemble.options == {}


WRONG = {
    "ensemble.members=1": "ensemble.members: must be at least 2",
    "ensemble.data=some": "ensemble.data: expected one of all, bagging, disjoint",
    "ensemble.combine=vot": "ensemble.combine.name: 'vot' is not on offer; did you mean vote?",
    "ensemble.combine.rounds=3": "mean has no rounds; weighted has",
    "ensemble.member=3": "ensemble.member: no such key",
    "search=tpe": "an ensemble is trained and not searched; leave search out",
    "space.optimizer.lr=[0.1,0.2]": "an ensemble is trained and not searched; leave space out",
    "halving.rungs=[2]": "leave halving out",
    "data.subset={name: bagging, member: 1}": "leave data.subset out",
    "tracking.register=digits": "ensemble.register=NAME registers the whole",
    "run.steps=0": "run.steps: must be at least 1",
    "parallel=0": "parallel: must be at least 1",
}


@pytest.mark.parametrize("override", WRONG)
def test_what_is_wrong_is_told(described: Any, override: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        described({}, override)
    assert WRONG[override] in str(error.value)


def test_everything_wrong_is_told_at_once_and_privacy_is_refused(described: Any) -> None:
    with pytest.raises(ConfigurationError) as error:
        described({"members": 0, "data": "x", "combine": "vote", "output": "values"}, "run.steps=0")
    assert len(error.value.problems) == 4
    private = ("privacy.clipping_norm=1", "privacy.noise_multiplier=1", "privacy.delta=1e-5", "data.partition=iid")
    with refused("ensemble.noise"):
        described({}, *private, "data.batch_size=64")
    with refused("sweep.of-ensemble"):
        described({}, kind="sweep")


def test_the_page_names_every_key() -> None:
    page = (REPOSITORY / "docs" / "sweeps.md").read_text()
    for key, (_, _, sentence, determines) in OWN.items():
        row = [line for line in page.splitlines() if line.startswith(f"| `{key}` |")][-1]
        assert sentence in row
        assert row.endswith(f"| {determines} |")


def test_a_file_that_is_not_there_is_named_by_what_was_typed() -> None:
    for kind in ("sweep", "ensemble"):
        with refused("settings.no-such-file", f"{kind}=nothing.yaml"):
            load_sweep("nothing.yaml", [], kind=kind)
