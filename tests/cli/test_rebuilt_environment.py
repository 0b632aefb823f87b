"""pip makes an environment of what a record names, from a folder of wheels; what it cannot make is refused."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import Interrupted, NotRerunnable
from orchestrator.experiments.rerun import rebuild
from orchestrator.experiments.rerun.rebuild import Rebuilt
from orchestrator.provenance.code.checkout import Restored
from orchestrator.provenance.environment import conda, layers, own_wheel, packages
from orchestrator.provenance.tracking import Past
from tests.refusals import refused

PAST = Past("a" * 32, "a", "e", "FINISHED", 0, 1, {}, None)


@dataclass
class Said:
    """A display that keeps what is said."""

    lines: list[str] = field(default_factory=list)

    def start(self, steps: int) -> None: ...
    def step(self, done: int, loss: float | None, epsilon: float | None = None) -> None: ...
    def close(self) -> None: ...
    def say(self, text: str) -> None:
        self.lines.append(text)


@dataclass
class Scene:
    """A record in a folder, and the folder that stands for the index."""

    folder: Path
    wheels: Path
    said: Said = field(default_factory=Said)

    def rebuild(self, **packages_: str) -> Rebuilt:
        return rebuild.rebuild(self.recorded(**packages_), self.folder, [self.wheels], self.said)

    def recorded(self, **packages_: str) -> Recorded:
        """The environment of a run with these packages: name -> the wheel that was installed."""
        builds: dict[str, Any] = {}
        found: dict[str, str] = {}
        for name, wheel in packages_.items():
            place = self.folder / "unpacked"
            with zipfile.ZipFile(self.wheels / wheel) as archive:
                archive.extractall(place)
            found |= {name: wheel.split("-")[1]}
            builds |= {name: packages.installed([str(place)])[1][name]}
            shutil.rmtree(place)
        bits = {
            "python": sys.version,
            "implementation": platform.python_implementation(),
            "orchestrator": packages.own_sha256(),
        }
        node = {"bits": bits, "packages": {**found, "orchestrator": "0.1.0"}, "builds": builds, "origins": {}}
        files = RunFolder(self.folder, PAST.run_id)
        files.environment.write_text(json.dumps({"nodes": {"here": node}}))
        return Recorded(PAST, files)


def write_wheel(folder: Path, name: str, version: str, text: str, **told: str) -> str:
    """A wheel with one module; told: the hash that its RECORD tells instead of the true one."""
    place = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{place}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{place}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{file},sha256={told.get(name) or own_wheel._hash(content.encode())},{len(content)}\n"
        for file, content in files.items()
    ]
    files[f"{place}/RECORD"] = "".join(rows) + f"{place}/RECORD,,\n"
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(file), content)
    return wheel


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Without an index, and with a search path that would lead elsewhere."""
    for name in ("folder", "wheels", "elsewhere"):
        (tmp_path / name).mkdir()
    write_wheel(tmp_path / "wheels", "scales", "1.0", "SCALE = 1\n")
    write_wheel(tmp_path / "wheels", "scales", "1.1", "SCALE = 2\n")
    write_wheel(tmp_path / "wheels", "plus", "1.0", "X = 1\n")
    (tmp_path / "elsewhere" / "scales.py").write_text("SCALE = 0\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    return Scene(tmp_path / "folder", tmp_path / "wheels")


def code(restored: Restored) -> None:
    subprocess.run(["git", "init", "--quiet", "--initial-branch=a"], cwd=restored.root, check=True)
    (restored.root / "a.txt").write_text("a\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for command in (["add", "--all"], [*who, "commit", "--quiet", "--message", "a"]):
        subprocess.run(["git", *command], cwd=restored.root, check=True)


def evaluated(rebuilt: Rebuilt, restored: Restored, expression: str) -> str:
    command = [rebuilt.python(restored), "-c", f"import sys, scales; print({expression})"]
    environment = rebuilt.variables({"PYTHONPATH": "/none", "PATH": "/usr/bin:/bin"}, restored)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.long
def test_it_is_made_once_as_recorded_and_layers_stand_above_it(scene: Scene, tmp_path: Path) -> None:
    first = scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    assert first.as_recorded
    assert layers.found_in(first.kept)[0] == {"scales": "1.0"}
    assert 'name = "scales-1.0-py3-none-any.whl"' in first.pylock
    marks = (first.kept / "complete.json").stat().st_mtime_ns
    again = scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    assert (again.kept, (first.kept / "complete.json").stat().st_mtime_ns) == (first.kept, marks)
    assert [line.split(":")[0] for line in scene.said.lines][
        -1
    ] == f"the environment of run {PAST.run_id} is the one in {first.kept}"
    other = scene.rebuild(scales="scales-1.1-py3-none-any.whl")
    assert other.kept != first.kept
    (tmp_path / "place" / "code").mkdir(parents=True)
    restored = Restored(tmp_path / "place" / "code", tmp_path / "place" / "code", "t", "c", None)
    code(restored)
    first.build_above(restored)
    above = first.above(restored)
    assert evaluated(first, restored, "scales.SCALE") == "1"
    assert evaluated(first, restored, "sys.prefix") == str(above)
    assert layers.own_sha256(above) == packages.own_sha256()
    assert layers.found_in(first.kept)[0] == {"scales": "1.0"}


# In the place of micromamba: unpacks what an explicit list names, checks md5, writes conda-meta; the interpreter is ours.
STAND_IN = """\
#!{python}
import hashlib, json, pathlib, sys, tarfile
create, yes, _, prefix, _, listed = sys.argv[1:]
assert (create, yes) == ("create", "--yes")
place = pathlib.Path(prefix)
(place / "conda-meta").mkdir(parents=True)
(place / "bin").mkdir()
(place / "bin" / "python").symlink_to({base!r})
head, *lines = pathlib.Path(listed).read_text().splitlines()
assert head == "@EXPLICIT"
for line in lines:
    url, _, md5 = line.partition("#")
    file = pathlib.Path(url.removeprefix("file://"))
    if hashlib.md5(file.read_bytes()).hexdigest() != md5:
        sys.exit(f"error: {{file.name}} is not what was asked for")
    with tarfile.open(file) as archive:
        archive.extractall(place, filter="data")
    told = json.loads((place / "info" / "index.json").read_text())
    told |= {{"url": url, "md5": md5, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}
    (place / "conda-meta" / f"{{told['name']}}.json").write_text(json.dumps(told))
"""


def write_conda(folder: Path, name: str, text: str) -> conda.Package:
    """A package with one module, in the format of conda."""
    files = {
        f"lib/python{'.'.join(map(str, sys.version_info[:2]))}/site-packages/{name}.py": text,
        "info/index.json": json.dumps({"name": name, "version": "1.0", "build": "py_0"}),
    }
    file = folder / f"{name}-1.0-py_0.tar.bz2"
    with tarfile.open(file, "w:bz2") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    md5, sha256 = (hashlib.new(kind, file.read_bytes()).hexdigest() for kind in ("md5", "sha256"))
    return conda.Package(name, "1.0", "py_0", f"file://{file}", md5, sha256)


@pytest.mark.slow
@pytest.mark.long
def test_an_environment_of_conda_is_made_anew_below_what_pip_installs(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept; a file of the channel that was replaced is refused, with nothing left of it."""
    tool = tmp_path / "micromamba"
    tool.write_text(
        STAND_IN.format(
            python=sys.executable, base=str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        )
    )
    tool.chmod(0o755)
    recorded, deep = scene.recorded(scales="scales-1.0-py3-none-any.whl"), write_conda(tmp_path, "deep", "DEEP = 3\n")
    told = json.loads(recorded.files.environment.read_text())
    told["nodes"]["here"]["conda"] = conda.as_record([deep])
    recorded.files.environment.write_text(json.dumps(told))
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path / "none"))
        without.delenv("MAMBA_EXE", raising=False)
        with refused("environment.no-conda"):
            rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    monkeypatch.setenv("MAMBA_EXE", str(tool))
    rebuilt = rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    assert rebuilt.of_conda is not None
    assert conda.installed(rebuilt.of_conda) == [deep]
    (tmp_path / "place" / "code").mkdir(parents=True)
    restored = Restored(tmp_path / "place" / "code", tmp_path / "place" / "code", "t", "c", None)
    code(restored)
    rebuilt.build_above(restored)
    assert evaluated(rebuilt, restored, "scales.SCALE, __import__('deep').DEEP") == "1 3"
    again = rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    assert f"the environment of conda is the one in {again.of_conda}" in scene.said.lines
    shutil.rmtree(rebuilt.of_conda)
    write_conda(tmp_path, "deep", "DEEP = 4\n")
    with refused("environment.tool-refused", "error: deep-1.0-py_0.tar.bz2 is not what was asked for"):
        rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    assert not rebuilt.of_conda.exists()


@pytest.mark.slow
@pytest.mark.long
def test_what_was_changed_or_left_half_done_is_made_anew(scene: Scene) -> None:
    first = scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    (site,) = (first.kept / "lib").glob("*/site-packages")
    (site / "more-1.dist-info").mkdir()
    assert layers.built_in(first.kept) is None
    second = scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    assert second.kept == first.kept
    assert layers.found_in(second.kept)[0] == {"scales": "1.0"}
    (second.kept / "complete.json").unlink()
    assert layers.built_in(second.kept) is None


@pytest.mark.long
@pytest.mark.slow
def test_what_pip_cannot_have_is_refused_with_its_words(scene: Scene) -> None:
    recorded = scene.recorded(scales="scales-1.0-py3-none-any.whl")
    (scene.wheels / "scales-1.0-py3-none-any.whl").unlink()
    with pytest.raises(NotRerunnable) as error:
        rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    assert "Could not find a version that satisfies the requirement scales==1.0" in error.value.message
    assert "wheels=FOLDER" in error.value.remedy
    assert list((scene.folder / rebuild.FOLDER).iterdir()) == []


@pytest.mark.slow
@pytest.mark.long
def test_another_build_is_named_and_one_that_is_not_the_locks_is_refused(scene: Scene) -> None:
    recorded = scene.recorded(scales="scales-1.0-py3-none-any.whl", plus="plus-1.0-py3-none-any.whl")
    first = rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    write_wheel(scene.wheels, "scales", "1.0", "SCALE = 7\n")
    shutil.rmtree(first.kept)
    other = rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)
    assert not other.as_recorded
    assert scene.said.lines[-1].startswith("note: of scales there are other builds")
    recorded.files.pylock.write_text(first.pylock)
    shutil.rmtree(first.kept)
    with refused("environment.tool-refused", "DO NOT MATCH THE HASHES"):
        rebuild.rebuild(recorded, scene.folder, [scene.wheels], scene.said)


@pytest.mark.slow
@pytest.mark.long
def test_files_that_are_not_what_their_wheel_says_are_refused(scene: Scene) -> None:
    write_wheel(scene.wheels, "scales", "1.0", "SCALE = 7\n", scales="x" * 43)
    with refused("environment.wheel-files", "METADATA and 2 more files"):
        scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    assert list((scene.folder / rebuild.FOLDER).iterdir()) == []


@pytest.mark.slow
@pytest.mark.long
def test_this_package_as_it_was_comes_from_a_wheel_or_the_code_or_is_refused(scene: Scene, tmp_path: Path) -> None:
    rebuilt = scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    older = replace(
        rebuilt,
        lock=replace(rebuilt.lock, own=replace(rebuilt.lock.own, version="0.0.9", sha256="ab" * 32, indexed=False)),
    )
    for name in ("one", "two"):
        (tmp_path / name / "code").mkdir(parents=True)
    one, two = (Restored(tmp_path / name / "code", tmp_path / name / "code", "t", "c", None) for name in ("one", "two"))
    with refused("environment.orchestrator") as error:
        older.build_above(one)
    assert "orchestrator-0.0.9-py3-none-any.whl" in error.value.remedy
    shutil.copy(own_wheel.write(tmp_path, "0.0.9"), scene.wheels)
    code(two)
    with refused("environment.orchestrator", "its source has sha256 abababababab"):  # it is there, and another one
        older.build_above(two)


@pytest.mark.long
@pytest.mark.slow
def test_an_interruption_ends_pip_and_leaves_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The double of pip interrupts its caller, and would go on for an hour."""
    command = ["sh", "-c", f"kill -TERM {os.getpid()}; exec sleep 3600"]
    monkeypatch.setattr(layers, "pip", lambda _environment, *_arguments: command)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted):
        scene.rebuild(scales="scales-1.0-py3-none-any.whl")
    assert signal.getsignal(signal.SIGTERM) == before
    assert list((scene.folder / rebuild.FOLDER).iterdir()) == []


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    with refused("environment.no-wheels"):
        rebuild.wheels_in(tmp_path / "none")
    assert rebuild.wheels_in(None, tmp_path / "none", tmp_path) == [tmp_path]
    rebuild.refuse_cluster(None)
    with refused("environment.joined-cluster"):
        rebuild.refuse_cluster("10.0.0.1:6379")


def test_an_environment_without_pip_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with refused("environment.no-pip"):
        layers.pip(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "21.2.4")
    with refused("environment.old-pip"):
        layers.pip(tmp_path)
