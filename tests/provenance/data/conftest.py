"""The DVC project that tests of data share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.provenance.data import dvc_project


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project in `p` and its remote in `far`; nobody changes them."""
    folder = tmp_path_factory.mktemp("dvc")
    (folder / "p").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_SITE_CACHE_DIR", str(folder / "site"))
        dvc_project.make(folder / "p", folder / "far")
    return folder


@pytest.fixture
def tracked(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project for one test, with a remote of its own beside it."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    shutil.copytree(made_once / "p", tmp_path / "p", symlinks=True)
    shutil.copytree(made_once / "far", tmp_path / "far")
    settings = tmp_path / "p" / ".dvc" / "config"
    settings.write_text(settings.read_text().replace(str(made_once / "far"), str(tmp_path / "far")))
    return tmp_path / "p"
