"""The environment: what may change bits stands apart from what only describes, and two builds of a version are told apart."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.numerics import cuda
from orchestrator.provenance.environment import node, packages

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def found() -> node.Environment:
    return node.capture()


def test_packages_are_those_that_are_installed(found: node.Environment) -> None:
    known = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in importlib.metadata.distributions()}
    assert found.packages == dict(sorted(known.items()))
    assert list(found.packages) == sorted(found.packages)
    assert len(found.builds["torch"]["sha256"]) == 64


def test_what_pip_could_not_remove_is_no_package(tmp_path: Path) -> None:
    """On NFS an upgrade leaves `~umpy` beside numpy. It is on no other machine, and no index has it."""
    for name in ("numpy-2.0", "~umpy-1.26", "-umpy-1.25"):
        (tmp_path / f"{name}.dist-info").mkdir()
    assert packages.installed([str(tmp_path)]) == ({"numpy": "2.0"}, {"numpy": {}})


def test_what_python_does_as_it_starts_is_part_of_it_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does if it belongs to the installation. A module of that name on the search path is code."""
    module = ModuleType("sitecustomize")
    monkeypatch.setitem(sys.modules, "sitecustomize", module)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "lib"))
    for folder, content in (("lib", "a"), ("lib", "b"), ("elsewhere", "b")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "sitecustomize.py").write_text(content)
        module.__file__ = str(tmp_path / folder / "sitecustomize.py")
        expected = {} if folder == "elsewhere" else {"sitecustomize": hashlib.sha256(content.encode()).hexdigest()}
        assert node._customized() == ({"customized": expected} if expected else {})


@pytest.mark.long
def test_a_process_without_torch_tells_the_same_of_packages_and_of_conda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "name": "deep",
        "version": "1.0",
        "build": "py_0",
        "url": "https://a.invalid/deep-1.0-py_0.conda",
        "md5": "a" * 32,
    }
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "history").write_text("")
    for place in (sys.base_prefix, str(tmp_path)):
        monkeypatch.setattr("sys.base_prefix", place)
        whole, part = node.capture().as_dict(), node.surroundings()
        assert (part["packages"], part["builds"], part["conda"]) == (
            whole["packages"],
            whole["builds"],
            whole.get("conda", []),
        )
        assert part["bits"] == {name: whole["bits"][name] for name in part["bits"]}
        (tmp_path / "conda-meta" / "deep.json").write_text(json.dumps(told))
    assert [each["name"] for each in part["conda"]] == ["deep"]


def test_it_is_plain_data_and_the_same_each_time(found: node.Environment) -> None:
    record = json.loads(json.dumps(found.as_dict()))
    assert record == found.as_dict() == node.capture().as_dict()
    assert record["bits"]["packages_sha256"] == found.packages_sha256
    assert found.host["cores"] >= 1
    assert found.bits["cpu"]
    assert found.bits["python"] == sys.version


def test_the_hash_depends_on_every_version_and_build(found: node.Environment) -> None:
    def total(name: str, version: str, **build: str) -> str:
        builds = {**found.builds, name: {**found.builds[name], **build}}
        return packages.sha256_of({**found.packages, name: version}, builds)

    torch = found.packages["torch"]
    assert total("torch", torch) == found.packages_sha256
    assert total("torch", "0") != found.packages_sha256
    assert total("torch", torch, sha256="other") != found.packages_sha256
    assert total("torch", torch, location="/elsewhere") == found.packages_sha256
    assert total("orchestrator", "0") == found.packages_sha256  # its source is hashed where it is read from


def install(folder: Path, name: str, record: str, **files: str) -> Path:
    place = folder / f"{name}.dist-info"
    place.mkdir(parents=True)
    (place / "RECORD").write_text(record)
    for file, text in files.items():
        (place / file.replace("__", ".")).write_text(text)
    return folder


RECORD = "a/__init__.py,sha256=1,1\na-1.dist-info/METADATA,sha256=2,2\n"
PLACES = [
    "../../../bin/a,sha256=of-its-interpreter,9\n",
    "a/__pycache__/__init__.cpython-311.pyc,,\n",
    "a-1.dist-info/RECORD,,\n",
    "a-1.dist-info/INSTALLER,sha256=pip,4\n",
    "a-1.dist-info/direct_url.json,sha256=path,4\n",
    "a-1.dist-info/uv_cache.json,sha256=path,4\n",
    "a-1.dist-info/REQUESTED,sha256=,0\n",
]


@given(st.lists(st.sampled_from(PLACES), unique=True), st.booleans())
def test_the_place_of_an_installation_is_not_its_build(extra: list[str], windows: bool) -> None:
    lines = (RECORD + "".join(extra)).replace("\n", "\r\n" if windows else "\n").encode().splitlines()
    assert [line for line in lines if packages._is_of_the_build(line)] == RECORD.encode().splitlines()


def test_builds_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_of(number: int, record: str, **files: str) -> dict[str, object]:
        folder = install(tmp_path / str(number), "A_b.c-1+cpu", record, **files)
        monkeypatch.setattr(sys, "path", [str(folder)])
        versions, builds = packages.installed()
        assert versions == {"a-b-c": "1+cpu"}
        return builds["a-b-c"]

    one, same, other = build_of(1, RECORD), build_of(2, RECORD + PLACES[0]), build_of(3, RECORD.replace("=1", "=3"))
    assert one == same != other
    commit = {"url": "https://host/a", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert build_of(4, RECORD, direct_url__json=json.dumps(commit)) == {**one, "commit": "abc"}
    editable = {"url": "file:///src/a", "dir_info": {"editable": True}}
    assert build_of(5, RECORD, direct_url__json=json.dumps(editable)) == {"editable": True, "location": "/src/a"}
    assert build_of(6, RECORD, direct_url__json="{") == one


ORIGINS = [
    ({"url": "file:///src/a%20b", "dir_info": {"editable": True}}, {"directory": "/src/a b", "editable": True}),
    ({"url": "file:///src/a", "dir_info": {}}, {"directory": "/src/a"}),
    (
        {"url": "https://me:word@host/a", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "x"},
        {"url": "https://host/a", "vcs": "git", "commit": "abc", "subdirectory": "x"},
    ),
    (
        {"url": "https://host/a.whl?sig=abcdef", "archive_info": {"hashes": {"sha256": "12"}}},
        {"url": "https://host/a.whl?sig=***", "sha256": "12"},
    ),
    ({"url": "file:///a.whl", "archive_info": {"hash": "sha256=34"}}, {"url": "file:///a.whl", "sha256": "34"}),
]


@pytest.mark.parametrize(("told", "origin"), ORIGINS)
def test_where_a_package_came_from_is_told_without_passwords(
    told: dict[str, object], origin: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "from", "a-1", RECORD, direct_url__json=json.dumps(told))
    install(folder, "b-1", RECORD)
    monkeypatch.setattr(sys, "path", [str(folder)])
    assert packages.origins() == {"a": origin}


def test_the_first_of_a_name_counts_and_the_working_directory_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An egg-info in the project is in no clean checkout of it."""
    folders = [install(tmp_path / str(number), f"a-{number}", RECORD) for number in range(3)]
    monkeypatch.chdir(folders[0])
    monkeypatch.setattr(sys, "path", ["", *map(str, folders), str(tmp_path / "none")])
    (folders[1] / "developed-1.egg-info").mkdir()
    assert packages.installed()[0] == {"a": "1"}


def test_variables_that_change_bits_are_kept_and_secrets_never(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    kept = {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONHASHSEED": "0", "LD_PRELOAD": "/x.so"}
    kept |= {"CUBLASLT_WORKSPACE_SIZE": "0", "DISABLE_ADDMM_CUDA_LT": "1", "PYTHONOPTIMIZE": "1"}
    described = {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "1", "TORCH_HOME": "/t", "TZ": "UTC", "LC_ALL": "C"}
    secret = {"TORCH_TOKEN": "s", "NVIDIA_API_KEY": "s", "CUDA_PASSWORD": "s", "MKL_AUTHOR": "s", "MY_SECRET": "s"}
    other = {"HOME": "/h", "USER": "u", "PATH": "/p", "XMKL_CBWR": "1", "PYTHONPATH": "/q"}
    for name, value in {**kept, **described, **secret, **other}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCH_INDEX", "https://me:word@host/x")
    assert node.variables() == {**kept, "TORCH_INDEX": "https://host/x"}
    assert node._host()["variables"] == described


def test_the_graphics_card_counts_only_where_it_computes(
    found: node.Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "describe", lambda: {"models": ["X"]})
    assert "gpu" not in found.bits
    assert node.capture("cuda").bits["gpu"] == {"models": ["X"]}


def test_containers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/run/.containerenv": 'engine="podman"\nimage="docker.io/a:1"\nimageid="12"\n'}
    monkeypatch.setattr(node, "_text", lambda path: texts.get(path, ""))
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in texts)
    for name in ("KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CONTAINER_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    assert node._container() == {"kind": "podman", "image": "docker.io/a:1", "imageid": "12"}
    texts.clear()
    assert node._container() is None
    monkeypatch.setenv("CONTAINER_IMAGE", "a:2")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "h")
    assert node._container() == {"kind": "kubernetes", "image": "a:2"}
    monkeypatch.setenv("APPTAINER_CONTAINER", "/a.sif")
    assert node._container() == {"kind": "apptainer", "image": "/a.sif"}


@pytest.mark.long
def test_bits_do_not_depend_on_who_and_where(tmp_path: Path, found: node.Environment) -> None:
    """Another folder, time zone, locale, user name and home, in a process of its own."""
    script = "import json; from orchestrator.provenance.environment import node as e; print(json.dumps(e.capture().as_dict()))"
    strange = {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "LC_ALL": "C", "USER": "other", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, **strange, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    other = json.loads(done.stdout)
    assert other["bits"] == found.as_dict()["bits"]
    assert other["host"]["variables"]["TZ"] == "Asia/Tokyo"
