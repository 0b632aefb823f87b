"""The conditions of a private run before it starts, and the times at which its keys change."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings, load
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.preflight import checks, private
from orchestrator.driver.preflight.private import Private
from orchestrator.errors import ConfigurationError
from orchestrator.optim.privacy.secret import Secret
from orchestrator.provenance.environment import node
from tests.driver.test_preflight import RUN
from tests.driver.test_preflight import project as project
from tests.refusals import refused

pytestmark = pytest.mark.slow

BASE = {
    **RUN,
    "data": {"shards": 4, "batch_size": 8, "partition": {"name": "iid", "clients": 20}},
    "local": {"epochs": 1, "optimizer": {"name": "sgd", "lr": 0.1}, "weight": "uniform"},
    "privacy": {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.001},
    "cluster": {"workers": 3},
    "secure_aggregation": True,
}

# An override -> what the message says, and what to do.
REFUSED = {
    "reduction=fast": "reduction: with privacy.clipping_norm contributions are added as integers; set reduction=exact",
    "compression=quantize": "compression: quantize rounds to what all shards have together",
    "contribution=a:B": "contribution: a:B may keep of a shard what was clipped off; with privacy.clipping_norm leave it out",
    "local.weight=rows": "local.weight: with privacy.clipping_norm all count the same, whatever they own; set local."
    "weight=uniform",
    "privacy.clipping_norm=null": "secure_aggregation: masks need integers on a lattice that never changes; set "
    "privacy.clipping_norm",
    "secure_aggregation=false privacy.clipping_norm=null": "privacy.noise_multiplier: noise is measured in clipping norms",
    "privacy.delta=null": "privacy.delta: required by privacy.noise_multiplier",
    "privacy.noise_multiplier=0": "privacy.delta: without noise nothing is promised",
    "privacy.noise_multiplier=0 privacy.delta=null privacy.clients=9": "privacy.clients: it counts with",
    "privacy.noise_multiplier=1001": "privacy.noise_multiplier: must be 0, or from 1e-6 to 1000",
    "privacy.noise_multiplier=1e-7": "privacy.noise_multiplier: must be 0, or from 1e-6 to 1000",
    "privacy.noise_multiplier=-1": "privacy.noise_multiplier: must be 0, or from 1e-6 to 1000",
    "privacy.delta=1": "privacy.delta: must be greater than 0 and less than 1",
    "privacy.clipping_norm=0": "privacy.clipping_norm: must be from 1e-30 to 1e6",
    "privacy.clipping_norm=1e9": "privacy.clipping_norm: must be from 1e-30 to 1e6",
    "privacy.clients=21": "privacy.clients: data.partition.clients says 20; leave one of the two out",
    "data.partition.clients=524289": "data.partition.clients: sums of 64 bits hold 524288 clients",
    "data.sampling=balanced": "data.sampling: balanced may tell of other clients' samples",
    "data.loaders=1": "data.loaders: which clients play is known to workers alone",
    "data.batch_size=10": "data.batch_size: with privacy.noise_multiplier each client takes as many rows; set a constant "
    "multiple of data.shards=4",
    "privacy.secret=here": "privacy.secret: must be an absolute path, or one from ~",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_pairs_that_cannot_work_are_refused_with_what_to_do(overrides: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load([BASE], overrides.split())
    assert any(REFUSED[overrides] in problem for problem in raised.value.problems), raised.value.problems


def test_without_a_partition_there_are_no_clients() -> None:
    given: dict[str, Any] = {**BASE, "data": {"shards": 4, "batch_size": 8}, "local": {}}
    with refused("privacy.partition"):
        load([given], [])


def test_fewer_clients_than_play_are_refused() -> None:
    given = {**BASE, "data": {"shards": 4, "batch_size": 8, "partition": "natural"}}
    with refused("privacy.clients-of-shards", "privacy.clients"):
        load([given], ["privacy.clients=3"])


@pytest.mark.parametrize("sync", ["ssp", "asp", "bap", "gossip"])
def test_other_modes_are_refused(project: Path, sync: str) -> None:
    given = {**BASE, "local": {}, "data": {"shards": 4, "batch_size": 8, "partition": {"name": "iid"}}}
    with refused("sync.clipping", "privacy.clipping_norm"):
        checks.check(load([given], [f"sync={sync}"]), project)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process imports what no launch does: the tests."""
    monkeypatch.setattr(checks, "_imported_obstacles", lambda *_: [])


@pytest.mark.usefixtures("clean")
def test_all_of_it_together_is_fine_and_layouts_do_not_matter(project: Path, tmp_path: Path) -> None:
    settings = load([BASE], [f"privacy.secret={tmp_path}/s", "transport=tcp", "topology=tree"])
    assert checks.check(settings, project).obstacles == []


def test_without_the_accountant_the_command_that_installs_it_is_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "dp_accounting" else found(name))
    with refused("privacy.no-accounting"):
        checks.check(load([BASE], []), project)
    checks.check(load([BASE], ["privacy.noise_multiplier=0", "privacy.delta=null"]), project)  # has no epsilon


@pytest.mark.parametrize("place", ["s", "ignored/s", ".orchestrator/s"])
def test_a_secret_among_what_is_recorded_is_refused(project: Path, place: str) -> None:
    settings = load([BASE], [f"privacy.secret={project / place}"])
    with refused("privacy.secret-in-code"):
        checks.check(settings, project)


def test_code_that_is_not_recorded_is_refused(project: Path, tmp_path: Path) -> None:
    """Noise is bound to it."""
    settings = load([BASE], [f"privacy.secret={tmp_path}/s"])
    (project / ".git").rename(tmp_path / "away")
    with refused("privacy.unrecorded-code", "privacy.noise_multiplier"):
        checks.check(settings, project)


def test_imported_code_that_is_not_recorded_is_refused_too(project: Path, tmp_path: Path) -> None:
    with refused("privacy.unrecorded-code", "privacy.noise_multiplier"):
        checks.check(load([BASE], [f"privacy.secret={tmp_path}/s"]), project)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("workers", "words"), [(1, "nothing to mask"), (2, "take its own sum off"), (3, None)])
def test_few_workers_are_told_what_masks_hide(project: Path, tmp_path: Path, workers: int, words: str | None) -> None:
    settings = load([BASE], [f"cluster.workers={workers}", f"privacy.secret={tmp_path}/s"])
    notes = [note for note in checks.check(settings, project).notes if "secure_aggregation" in note]
    assert [words in note for note in notes if words] == [True] * (words is not None)
    assert len(notes) == (words is not None)


def test_a_secret_that_cannot_be_used_is_refused_before_a_launch_makes_one(tmp_path: Path, project: Path) -> None:
    secret = tmp_path / "s"
    settings = load([BASE], [f"privacy.secret={secret}"])
    assert private.unusable(settings) == []
    assert not secret.exists()
    secret.write_text("no secret")
    secret.chmod(0o600)
    with refused("privacy.secret-unusable", str(secret)):
        checks.check(settings, project)


# --- the secret of a recorded run

MANIFEST = {"initial_parameters": "i", "reference": "r", "samples": 9, "machine": {}, "compute": {}, "steps": 3}


def a_private(tmp_path: Path, settings: Settings, **facts: Any) -> Private:
    privacy = resolve(settings).data.privacy
    assert privacy is not None
    return Private(Secret(bytes(32), tmp_path / "s"), privacy, RunFolder(tmp_path, "run"), {"code": "c", **facts})


def test_keys_are_bound_to_what_the_run_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "capture", functools.cache(node.capture))  # a second each
    found = set()
    for number, (facts, changed) in enumerate([({}, {}), ({"code": "d"}, {}), ({}, {"reference": "other"})]):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = a_private(folder, load([BASE], []), **facts)
        keys = one.keys({**MANIFEST, **changed})
        assert one.keys({**MANIFEST, **changed}).key("noise") == keys.key("noise")
        again = a_private(folder, load([BASE], []), **facts).keys({**MANIFEST, **changed})
        assert again.key("noise") == keys.key("noise")
        found.add(keys.key("noise"))
    assert len(found) == 3


def test_a_run_that_comes_to_other_keys_does_not_go_on(tmp_path: Path) -> None:
    a_private(tmp_path, load([BASE], [])).keys(MANIFEST)
    with refused("privacy.changed"):
        a_private(tmp_path, load([BASE], [])).keys({**MANIFEST, "reference": "other"})


def test_what_is_written_leads_to_no_key(tmp_path: Path) -> None:
    one = a_private(tmp_path, load([BASE], []))
    keys = one.keys(MANIFEST)
    text = (tmp_path / "run" / "privacy.json").read_text()
    assert set(json.loads(text)) == {"commitment", "bound_to"}
    assert not any(secret in text for secret in (bytes(32).hex(), keys.key("noise").hex()))
    assert one.epsilon(3) > one.epsilon(1) > 0


def test_a_record_knows_its_secret(tmp_path: Path) -> None:
    a_private(tmp_path, load([BASE], []))
    files, path = RunFolder(tmp_path, "run"), tmp_path / "s"
    settings = load([BASE], [f"privacy.secret={path}"])
    with refused("privacy.secret-missing"):
        private.of_record(settings, files, "x")
    path.write_text("1" * 64)
    path.chmod(0o600)
    with refused("privacy.other-secret"):
        private.of_record(settings, files, "x")
    path.write_text("0" * 64)
    found = private.of_record(settings, files, "x")
    assert found is not None
    assert found.value == bytes(32)
    assert private.of_record(load([RUN], []), files, "x") is None
