"""Weights are known by their digest: fetched when no file here has them, believed when one has, from wherever it came."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.config.settings import InitialSettings
from orchestrator.driver.preflight import initial
from orchestrator.errors import ConfigurationError
from orchestrator.numerics.digests import state_digest
from orchestrator.provenance.tracking import models
from orchestrator.provenance.tracking.store import user
from orchestrator.worker.model import initial as weights
from tests.refusals import refused


class Shelf:
    """A store with models by their pinned name, as far as `initial` asks it. reported: tags; fetched: what was asked for;
    user: of its runs."""

    uri = "http://there"

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}
        self.reported: dict[str, str] = {}
        self.fetched: list[str] = []
        self.user: str | None = user()

    def usable(self) -> Any:
        return contextlib.nullcontext()

    def fetch(self, _: Shelf, name: str, target: Path) -> None:
        self.fetched.append(name)
        if name not in self.files:
            raise ConfigurationError([f"initial: {name} has no weights"], "name another")
        target.write_bytes(self.files[name].read_bytes())


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Shelf()
    for number in (1, 2):
        file = tmp_path / f"{number}.safetensors"
        save_file({"weight": torch.full((3,), float(number))}, file)
        found.files[f"models:/m/{number}"] = file
    monkeypatch.setattr(models, "pin", lambda _, name: {"models:/m@newest": "models:/m/2"}.get(name, name))
    monkeypatch.setattr(models, "digest_of", lambda _, name: found.reported.get(name))
    monkeypatch.setattr(models, "user_of", lambda *_: found.user)
    monkeypatch.setattr(models, "location", lambda _, name: f"http://there/{name}")
    monkeypatch.setattr(models, "fetch_weights", found.fetch)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".orchestrator").mkdir()
    return tmp_path / ".orchestrator"


def digest(file: Path) -> str:
    return state_digest(weights.read(file, "of a test"))


def test_weights_are_fetched_once_and_an_alias_becomes_its_version(shelf: Any, folder: Path) -> None:
    found = initial.brought(InitialSettings(name="models:/m@newest"), shelf, folder)
    assert found == InitialSettings(name="models:/m/2", digest=digest(shelf.files["models:/m/2"]))
    assert initial.held_in(folder, found.digest)
    assert initial.brought(found, shelf, folder) == found
    assert shelf.fetched == ["models:/m/2"]


@pytest.mark.parametrize("user", ["mallory", None])
def test_the_model_of_another_is_named_and_fetched_when_that_is_trusted(
    shelf: Any, folder: Path, user: str | None
) -> None:
    shelf.user = user
    wanted = InitialSettings(name="models:/m/1")
    with refused("record.untrusted") as error:
        initial.brought(wanted, shelf, folder)
    assert "its weights: http://there/models:/m/1" in error.value.message
    assert shelf.fetched == []
    found = initial.brought(wanted, shelf, folder, trusted=True)
    assert initial.brought(found, shelf, folder) == found  # it is here


def test_what_its_run_has_reported_is_not_fetched_where_it_is_here(shelf: Any, folder: Path) -> None:
    first = initial.brought(InitialSettings(name="models:/m/1"), shelf, folder)
    shelf.reported = {"models:/m/1": str(first.digest), "models:/m/2": digest(shelf.files["models:/m/2"])}
    assert initial.brought(InitialSettings(name="models:/m/1"), shelf, folder) == first
    assert shelf.fetched == ["models:/m/1"]
    initial.brought(InitialSettings(name="models:/m/2"), shelf, folder)
    assert shelf.fetched == ["models:/m/1", "models:/m/2"]


@pytest.mark.parametrize("damage", [b"", b"no weights at all", None], ids=["empty", "torn", "others"])
def test_a_damaged_file_is_fetched_again(shelf: Any, folder: Path, damage: bytes | None) -> None:
    found = initial.brought(InitialSettings(name="models:/m/1"), shelf, folder)
    place = initial.place_of(folder, found.digest)
    place.write_bytes(shelf.files["models:/m/2"].read_bytes() if damage is None else damage)
    assert not initial.held_in(folder, found.digest)
    assert initial.brought(found, shelf, folder) == found
    assert digest(place) == found.digest


def test_recorded_weights_that_are_others_now_or_gone_are_refused_by_name(shelf: Any, folder: Path) -> None:
    one, two = (digest(shelf.files[f"models:/m/{number}"]) for number in (1, 2))
    with refused("initial.other-weights", f"{one} now, and the run began with {two}"):
        initial.brought(InitialSettings(name="models:/m/1", digest=two), shelf, folder)
    del shelf.files["models:/m/2"]
    with refused("initial.missing"):
        initial.brought(InitialSettings(name="models:/m/2", digest=two), shelf, folder)
    with pytest.raises(ConfigurationError, match="models:/m/2 has no weights"):
        initial.brought(InitialSettings(name="models:/m/2"), shelf, folder)
    assert not initial.held_in(folder, two)


def test_weights_that_came_with_a_record_are_kept_if_they_are_what_it_says(shelf: Any, folder: Path) -> None:
    one, two = shelf.files["models:/m/1"], shelf.files["models:/m/2"]
    with refused("initial.kept-weights", digest(two)):
        initial.keep(two, digest(one), folder, "of run.zip")
    (torn := one.with_name("torn")).write_bytes(one.read_bytes()[:20])
    with refused("initial.kept-weights"):
        initial.keep(torn, digest(one), folder, "of run.zip")
    initial.keep(one, digest(one), folder, "of run.zip")
    known = InitialSettings(name="models:/m/7", digest=digest(one))
    assert initial.brought(known, shelf, folder) == known
    assert shelf.fetched == []
    assert [file.name for file in (folder / "initial").iterdir()] == [f"{digest(one)}.safetensors"]


def test_a_work_tree_is_lent_what_is_here_and_nothing_else(shelf: Any, folder: Path, tmp_path: Path) -> None:
    found = initial.brought(InitialSettings(name="models:/m/1"), shelf, folder)
    (project := tmp_path / "restored").mkdir()
    initial.lend(found.digest, folder, project)
    initial.lend(None, folder, project)
    initial.lend("0" * 64, folder, project)
    lent = project / ".orchestrator"
    assert initial.held_in(lent, found.digest)
    assert {file.name for file in lent.iterdir()} == {".gitignore", "initial"}
    assert len(list((lent / "initial").iterdir())) == 1


def test_weights_of_a_checkpoint_for_which_there_is_no_room_are_refused(tmp_path: Path) -> None:
    """They come from a file of Lightning, which is read as it is."""
    torch.save({"state_dict": {"weight": torch.ones(1 << 18)}}, tmp_path / "a.ckpt")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with refused("initial.not-kept", "File too large"):
            initial._of_checkpoint(tmp_path / "a.ckpt", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert initial.held_in(tmp_path, initial._of_checkpoint(tmp_path / "a.ckpt", tmp_path))
