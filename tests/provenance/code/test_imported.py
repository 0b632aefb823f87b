"""Imported code that a snapshot does not hold is found, by the file of each module, and named with a remedy."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch

from orchestrator.provenance.code import imported
from orchestrator.provenance.code.imported import (
    Judgement,
    Loaded,
    Repository,
    digests,
    files_of,
    gather,
    judge,
    unused,
    versions,
)
from orchestrator.provenance.code.worktree import examine
from orchestrator.provenance.environment import packages
from tests.provenance.code.repositories import commit, create, git, write

pytestmark = pytest.mark.slow

LAID_OUT = {"lone": "lone.py", "whole": "whole/__init__.py", "whole.part": "whole/part.py", "by_hand": "by_hand.py"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "pipes/good.py": "x = 1\n",
        "pipes/__init__.py": "",
        "src/lib/deep.py": "y = 1\n",
        ".gitignore": "made.py\n",
    }
    root = create(tmp_path / "project", files)
    write(root, {"made.py": "made = 1\n", "new.py": "new = 1\n"})
    return root


def judged(project: Path, *files: Path | str, **named: Path) -> Judgement:
    """The judgement of modules, each sent the way it takes from a worker to the driver."""
    modules = {Path(file).stem: str(file) for file in files} | {name: str(file) for name, file in named.items()}
    work = examine(project)
    loaded = json.loads(json.dumps([module.as_dict() for module in gather(modules, project, work.origin)]))
    return judge([imported.from_dict(values) for values in loaded], work)


def test_python_and_distributions_need_no_judgement(project: Path, tmp_path: Path) -> None:
    inner = tmp_path / "project" / ".venv" / "lib" / "site-packages" / "pkg.py"
    write(inner.parent, {"pkg.py": "inside the project, and a distribution\n"})
    found = judged(project, os.__file__, json.__file__, pytest.__file__, inner)
    assert (found.findings, found.obstacles) == ((), ())


def test_a_compilation_of_another_text_of_the_same_time_and_size_is_found(project: Path) -> None:
    file = project / "pipes" / "good.py"
    py_compile.compile(str(file), doraise=True)
    assert [finding.kind for finding in judged(project, file).findings] == ["snapshot"]
    before = file.stat()
    file.write_text("x = 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    assert judged(project, file).obstacles == (), "Python compiles it anew where its time tells"
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    (found,) = judged(project, file).obstacles
    assert "pipes/good.py is imported from __pycache__" in found


def test_what_pythons_distributor_has_linked_into_it_is_of_python(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian links /etc/python3/sitecustomize.py. A link among installed packages is judged by the file that it leads to."""
    write(tmp_path / "etc", {"sitecustomize.py": "as it starts\n"})
    for folder in ("lib", "lib/site-packages", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sitecustomize.py").symlink_to(tmp_path / "etc" / "sitecustomize.py")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "lib"))
    assert judged(project, tmp_path / "lib" / "sitecustomize.py").findings == ()
    for folder in ("lib/site-packages", "other"):
        assert len(judged(project, tmp_path / folder / "sitecustomize.py").obstacles) == 1


def test_what_an_installed_package_generates_needs_none_either(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write(tmp_path, {"made_k2j4.py": "from a template\n"})
    modules = {"pytest": pytest.__file__, "pytest.conv.made_k2j4": str(tmp_path / "made_k2j4.py")}
    assert gather(modules, project) == []
    assert len(gather({**modules, "helper": str(tmp_path / "made_k2j4.py")}, project)) == 1
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    assert len(gather(modules, project)) == 1


def test_what_the_compiler_of_torch_makes_needs_none_either(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules that it imports are named by a hash."""
    write(tmp_path / "kept" / "5k", {"c5klax6.main.so": "machine code\n"})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kept"))
    modules = {"c5klax6.main": str(tmp_path / "kept" / "5k" / "c5klax6.main.so")}
    assert (gather(modules, project), digests(modules, project)) == ([], {})
    write(tmp_path / "kept", {"helper.py": "of the user\n"})
    assert len(gather({"helper": str(tmp_path / "kept" / "helper.py")}, project)) == 1
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert len(gather(modules, project)) == len(digests(modules, project)) == 1


def test_the_digest_of_a_module_changes_with_its_file_and_libraries_have_none(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "beside", {"helper.py": "outside\n"})
    own = {"new": str(project / "new.py"), "helper": str(tmp_path / "beside" / "helper.py")}
    libraries = {"os": os.__file__, "pytest": pytest.__file__, "orchestrator.pipeline": str(project / "new.py")}
    before = digests({**own, **libraries}, project)
    assert before.keys() == own.keys()
    assert digests(own, project) == before
    (project / "new.py").write_text("edited\n")
    after = digests(own, project)
    assert (after["helper"], after["new"] == before["new"]) == (before["helper"], False)


def test_packages_are_known_by_what_they_say_of_their_version() -> None:
    one, lazy, part = ModuleType("one"), ModuleType("lazy"), ModuleType("one.part")
    one.__version__ = part.__version__ = "1.2"  # type: ignore[attr-defined]
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was imported")  # type: ignore[method-assign]
    assert versions({"one": one, "one.part": part, "lazy": lazy}) == {"one": "1.2"}
    assert {"numpy", "torch"} <= versions({"numpy": numpy, "torch": torch, "os": os}).keys()


def test_code_of_the_snapshot_is_fine(project: Path) -> None:
    found = judged(
        project, project / "new.py", **{"pipes.good": project / "pipes/good.py", "pipes": project / "pipes/__init__.py"}
    )
    assert {finding.kind for finding in found.findings} == {"snapshot"}
    assert (found.obstacles, found.search_path) == ((), ())


def test_new_code_that_nothing_imports_is_named(project: Path) -> None:
    """It moves the identity, as an open notebook does at every cell that is saved."""
    write(project, {"explore.ipynb": "{}", "scratch/try.py": "1\n", "conf/new.yaml": "a: 1\n"})
    work = examine(project)
    named = [
        unused(judge(gather(modules, project), work), work)
        for modules in ({"new": str(project / "new.py")}, {"try": str(project / "scratch" / "try.py")})
    ]
    assert [note.partition(":")[0] for (note,) in named] == ["explore.ipynb, scratch/try.py", "explore.ipynb, new.py"]
    commit(project)
    assert unused(judge([], examine(project)), examine(project)) == []
    (project / "explore.ipynb").write_text('{"cells": []}')
    (note,) = unused(judge([], examine(project)), examine(project))
    assert note.startswith(
        "explore.ipynb: new or changed since the commit, and not imported by the pipeline. It is recorded"
    )
    assert unused(judge([], None), None) == []


def test_before_the_first_commit_everything_is_new(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {"new.py": "new = 1\n"})
    assert unused(judge([], examine(tmp_path)), examine(tmp_path)) == []


def test_ignored_code_is_named(project: Path) -> None:
    (obstacle,) = judged(project, project / "made.py").obstacles
    assert obstacle.startswith("made.py is imported, but not in the snapshot")


def test_code_that_changed_after_the_snapshot_is_named(project: Path) -> None:
    work = examine(project)
    (project / "new.py").write_text("new = 2\n")
    (obstacle,) = judge(gather({"new": str(project / "new.py")}, project), work).obstacles
    assert obstacle == "new.py changed between the snapshot and its import; launch again"


def test_code_from_anywhere_is_named_once_and_kept_with_its_hash(project: Path, tmp_path: Path) -> None:
    names = [f"helper{number}.py" for number in range(40)]
    write(tmp_path, {name: f"{name!r}\n" for name in names})
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("zipped.py", "z = 1\n")
    found = judged(project, *(tmp_path / name for name in names), tmp_path / "zipped.zip" / "zipped.py")
    (obstacle,) = found.obstacles
    assert obstacle.startswith(f"{tmp_path}/helper0.py, {tmp_path}/helper1.py, ")
    assert obstacle.endswith(" and 38 more: is imported from outside any repository; put it into the project")
    assert len({finding.module.sha256 for finding in found.findings}) == 41


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution of a module and a package."""
    files = {
        "lone-2.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: lone\nVersion: 2.1\n",
        "lone-2.1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "lone.py": "from whole.part import x\n",
        "whole/__init__.py": "",
        "whole/part.py": "x = 1\n",
    }
    wheel = tmp_path_factory.mktemp("wheels") / "lone-2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "lone-2.1.dist-info/RECORD": ""}.items():
            archive.writestr(name, text)
    return wheel


@pytest.mark.parametrize("where", ["beside", "project/packages"])
@pytest.mark.long
def test_a_package_is_one_wherever_pip_puts_it(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path, where: str
) -> None:
    """Into a folder of its own, which stands on the search path; what lies there besides is code from elsewhere."""
    target = tmp_path / where
    install = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel))
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    write(project, {".gitignore": "made.py\npackages/\n"})
    write(target, {"by_hand.py": "h = 1\n"})
    monkeypatch.syspath_prepend(str(target))
    modules = {name: str(target / file) for name, file in LAID_OUT.items()}
    found = judge(gather(modules, project), examine(project))
    (obstacle,) = found.obstacles
    assert "by_hand.py is imported" in obstacle
    assert {each.kind for each in found.findings if each.module.name != "by_hand"} <= {"package"}
    assert packages.installed()[0]["lone"] == "2.1"


def test_a_distribution_that_the_snapshot_holds_is_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a rerun finds it in the tree that it restores."""
    record = "lone.py,sha256=x,1\n../../bin/lone,,\n"
    write(project, {"vendor/lone.py": "x = 1\n", "vendor/lone-1.dist-info/RECORD": record})
    commit(project)
    monkeypatch.syspath_prepend(str(project / "vendor"))
    found = judged(project, project / "vendor/lone.py")
    assert [finding.kind for finding in found.findings] == ["snapshot"]
    assert found.search_path == ("vendor",)


def test_names_that_stand_for_no_file_are_passed_over(project: Path) -> None:
    assert judged(project, "/nowhere/at/all.py", project / "pipes").findings == ()
    assert files_of({"a": sys, "b": pytest, "c": type(sys)("made")}) == {"b": pytest.__file__}


def test_a_project_below_the_top_and_a_module_beside_it(project: Path) -> None:
    work = examine(project / "pipes")
    modules = {"good": str(project / "pipes/good.py"), "lib.deep": str(project / "src/lib/deep.py")}
    found = judge(gather(modules, project / "pipes"), work)
    assert [(finding.kind, finding.path) for finding in found.findings] == [
        ("snapshot", "pipes/good.py"),
        ("snapshot", "src/lib/deep.py"),
    ]
    assert (found.search_path, found.obstacles) == (("src",), ())


def test_a_copy_on_another_node_is_known_by_its_path_in_the_project(project: Path, tmp_path: Path) -> None:
    """A worker elsewhere has the project's files in a folder of its own."""
    write(tmp_path / "node", {"pipes/good.py": "x = 1\n", "new.py": "other\n"})
    modules = {"pipes.good": str(tmp_path / "node/pipes/good.py"), "new": str(tmp_path / "node/new.py")}
    found = judge(gather(modules, tmp_path / "node"), examine(project))
    assert {finding.module.name: finding.kind for finding in found.findings} == {
        "pipes.good": "snapshot",
        "new": "changed",
    }


def test_a_package_recorded_in_another_way_is_no_obstacle(project: Path, tmp_path: Path) -> None:
    write(tmp_path, {"helper/__init__.py": "h = 1\n"})
    loaded = gather({"helper": str(tmp_path / "helper/__init__.py")}, project)
    assert judge(loaded, examine(project)).obstacles
    assert judge(loaded, examine(project), apart=["helper"]).obstacles == ()


# ---- other repositories


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library with a remote that has its commit."""
    remote = create(tmp_path / "remote", {"lib/__init__.py": "v = 1\n", ".gitignore": "*.gen.py\n"})
    git(tmp_path, "clone", "--quiet", str(remote), "library")
    git(tmp_path / "library", "remote", "set-url", "origin", "https://me:secret@example.invalid/lib.git")
    return tmp_path / "library"


def test_another_repository_is_recorded(project: Path, library: Path) -> None:
    found = judged(project, lib=library / "lib/__init__.py")
    (repository,) = (finding.module.repository for finding in found.findings)
    head = git(library, "rev-parse", "HEAD")
    assert repository == Repository(str(library), head, 0, True, "https://example.invalid/lib.git", False, None)
    assert found.obstacles == ()


def test_what_another_repository_lacks_is_named(project: Path, library: Path) -> None:
    write(library, {"lib/x.gen.py": "g\n"})
    assert "where it is not committed" in judged(project, library / "lib/x.gen.py").obstacles[0]
    write(library, {"lib/more.py": "m\n"})
    assert "which differs from its commit" in judged(project, lib=library / "lib/__init__.py").obstacles[0]
    commit(library)
    assert "no remote has; push it" in judged(project, lib=library / "lib/__init__.py").obstacles[0]


def test_an_editable_install_is_named_and_its_origin_shadows_a_restored_tree(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a src layout, a rerun in another folder imports the original unless its path says otherwise."""
    commit(project)
    git(tmp_path, "clone", "--quiet", str(project), "rerun")
    described = {"url": project.as_uri(), "dir_info": {"editable": True}}
    write(
        tmp_path / "site",
        {
            "lib-1.dist-info/METADATA": "Name: lib\nVersion: 1\n",
            "lib-1.dist-info/direct_url.json": json.dumps(described),
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = judged(tmp_path / "rerun", **{"lib.deep": project / "src/lib/deep.py"})
    assert found.findings[0].kind == "shadowing"
    assert found.findings[0].module.repository is not None
    assert found.findings[0].module.repository.package == "lib"
    assert f"src/lib/deep.py is imported from {project} and not from the project's folder" in found.obstacles[0]
    assert found.search_path == ("src",)


def test_one_sentence_for_many_modules(project: Path) -> None:
    names = [f"made{number}.py" for number in range(5)]
    write(project, {".gitignore": "made*\n", **dict.fromkeys(names, "")})
    (obstacle,) = judged(project, *(project / name for name in names)).obstacles
    assert obstacle.startswith("made0.py, made1.py, made2.py and 2 more: is imported")


@pytest.mark.long
def test_a_real_process(project: Path) -> None:
    script = (
        "import sys, json, made, new, pipes.good, torch\n"
        "from pathlib import Path\nfrom orchestrator.provenance.code import imported\n"
        "modules = imported.files_of(sys.modules)\n"
        "print(json.dumps([m.as_dict() for m in imported.gather(modules, Path.cwd())]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        check=True,
    )
    found = judge([imported.from_dict(values) for values in json.loads(done.stdout)], examine(project))
    kinds = {finding.module.name: finding.kind for finding in found.findings}
    ours = {name for name in kinds if name.split(".")[0] == "orchestrator"}
    assert {name: kind for name, kind in kinds.items() if name not in ours} == {
        "made": "left out",
        "new": "snapshot",
        "pipes": "snapshot",
        "pipes.good": "snapshot",
    }


def test_a_loaded_module_is_plain_data(project: Path) -> None:
    (module,) = gather({"new": str(project / "new.py")}, project)
    assert imported.from_dict(json.loads(json.dumps(module.as_dict()))) == module
    assert isinstance(module, Loaded)
