"""An environment of conda is told as `conda list --explicit` tells it, and a lock leaves its packages to micromamba."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provenance.environment import conda, container, lock
from orchestrator.records.comparison import compare
from tests.refusals import refused

URL = "https://somewhere.invalid/conda-forge/linux-64/numpy-2.3.1-py311h0_0.conda"
FILES = ["lib/python3.11/site-packages/numpy-2.3.1.dist-info/METADATA", "lib/python3.11/site-packages/numpy/a.py"]
BUILT = {"version": "2.3.1", "build": "py311h0_0"}
NUMPY: dict[str, Any] = {"name": "numpy", "url": URL, "md5": "a" * 32, "sha256": "b" * 64, "files": FILES} | BUILT
SQL = {
    "name": "libsql",
    "version": "3",
    "build": "h1_2",
    "url": "https://u:p@somewhere.invalid/t/abc/c/libsql-3-h1_2.tar.bz2",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "history").write_text("")
    for told in (NUMPY, SQL, {"name": "of-pip", "version": "1", "build": "pypi_0", "url": None}):
        (tmp_path / "conda-meta" / f"{told['name']}.json").write_text(json.dumps(told))
    (tmp_path / "conda-meta" / "broken.json").write_text("{")
    return tmp_path


def test_it_is_told_with_build_strings_and_without_credentials(place: Path) -> None:
    found = conda.installed(place)
    assert [(each.name, each.version, each.build) for each in found] == [
        ("libsql", "3", "h1_2"),
        ("numpy", "2.3.1", "py311h0_0"),
    ]
    plain = "https://somewhere.invalid/c/libsql-3-h1_2.tar.bz2"
    assert conda.explicit(found) == f"@EXPLICIT\n{plain}\n{URL}#{'a' * 32}\n"
    assert conda.from_record(conda.as_record(found)) == tuple(found)
    assert conda.python_packages(place) == {"numpy": "numpy 2.3.1 py311h0_0"}


def test_another_build_of_a_version_is_another_package(place: Path) -> None:
    found = conda.installed(place)
    others = [found[0], conda.Package("numpy", "2.3.1", "py311h0_1", URL, "a" * 32, "c" * 64)]
    assert conda.differing(found, found) == []
    assert conda.differing(found, others) == ["numpy"]
    assert conda.differing(found, found[:1]) == ["numpy"]
    assert conda.sha256_of(found) == conda.sha256_of(reversed(found)) != conda.sha256_of(others)
    nodes = [
        {"conda": conda.as_record(each), "bits": {"conda_sha256": conda.sha256_of(each)}} for each in (found, others)
    ]
    (one,) = compare({"environments": nodes[:1]}, {"environments": nodes[1:]}).inputs(check_environment=True)
    assert one == f"package numpy of conda: 2.3.1 py311h0_0 ({'b' * 12}) -> 2.3.1 py311h0_1 ({'c' * 12})"


def test_pip_is_left_what_pip_had_installed(place: Path) -> None:
    """conda's own packages name the folder in which they were built, as if they had been installed from there."""
    origins = {"numpy": {"conda": "numpy 2.3.1 py311h0_0"}}
    node = {
        "packages": {"numpy": "2.3.1", "scales": "1.0"},
        "builds": {},
        "origins": origins,
        "bits": {"python": "3.11.7 x"},
    }
    told = {**node, "conda": conda.as_record(conda.installed(place))}
    found = lock.of([told])
    assert [each.name for each in found.pinned] == ["scales"]
    assert found.of_conda == tuple(conda.installed(place))
    assert found.key("3.11.7 x") != lock.of([node]).key("3.11.7 x")
    assert container.dockerfile("0123", [told]) is None


def test_the_first_program_that_reads_such_a_list_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAMBA_EXE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("environment.no-conda"):
        conda.command(tmp_path / "e", tmp_path / "l")
    for name in ("conda", "micromamba"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        wanted = [
            str(tmp_path / name),
            "create",
            "--yes",
            "--prefix",
            str(tmp_path / "e"),
            "--file",
            str(tmp_path / "l"),
        ]
        assert conda.command(tmp_path / "e", tmp_path / "l") == wanted


def test_an_interpreter_that_is_not_of_conda_has_none(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr("sys.base_prefix", str(place))
    assert conda.prefix() == place
    (place / "conda-meta" / "history").unlink()
    assert conda.prefix() is None


@pytest.mark.parametrize(
    "url", ["https://host.invalid/a.conda\n-e .", "--file /tmp/evil", "a b", "", None, "/tmp/a.conda"]
)
def test_no_package_of_a_record_is_more_than_a_line(url: str | None) -> None:
    with refused("environment.conda-address"):
        conda.from_record([{"name": "a", "version": "1", "build": "0", "url": url}])
