"""The modules of a project are told from those of packages."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.common import frames


def test_the_modules_of_a_project_are_those_where_its_packages_and_what_it_imports_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = f"of_{tmp_path.name}"
    deep = f"import {of}_library\nfrom {of}_installed import number as other\nnumber = 1\n"
    files = {
        "project": {
            f"{of}/__init__.py": "",
            f"{of}/inner/__init__.py": "",
            f"{of}/inner/deep.py": deep,
            f"{of}_late.py": "",
        },
        "project/lib/site-packages": {f"{of}_package.py": ""},
        "library": {f"{of}_library.py": "", f"{of}_of_library.py": ""},
        "installed": {f"{of}_installed.py": "number = 1\n", "of-1.0.dist-info/RECORD": ""},
        "other": {f"{of}_other.py": ""},
    }
    for folder, texts in files.items():
        for name, text in texts.items():
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(tmp_path / folder)
    for name in (f"{of}.inner.deep", *(f"{of}_{name}" for name in ("late", "package", "of_library", "other"))):
        importlib.import_module(name)
    project = {of, f"{of}.inner", f"{of}.inner.deep", f"{of}_late", f"{of}_library", f"{of}_of_library"}
    for first in (of, f"{of}.inner", f"{of}.inner.deep", f"{of}_late"):
        assert frames.modules_of_project([first, "json"]).keys() == project
    assert frames.modules_of_project([f"{of}_other"]).keys() == {f"{of}_other"}
    assert frames.modules_of_project([f"{of}_installed"]).keys() == {f"{of}_installed"}
    assert not Path(torch.ops.__file__).is_absolute()  # a module that seems to be in no package
    assert frames.modules_of_project(["json", "torch", "builtins"]) == {}
    variables = frames.variables_of({"deep": vars(sys.modules[f"{of}.inner.deep"])})
    assert variables == {
        f"deep.{name}": getattr(sys.modules[f"{of}.inner.deep"], name) for name in (f"{of}_library", "other", "number")
    }


def test_an_installed_package_is_the_users_once_it_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_adopted", set())
    of = f"of_{tmp_path.name}"
    folder = tmp_path / "site-packages"
    (folder / of).mkdir(parents=True)
    for name in ("__init__", "pipelines", "helper"):
        (folder / of / f"{name}.py").write_text("")
    (folder / "other-1.0.dist-info").mkdir()
    (folder / f"{of}_other.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    for name in (f"{of}.pipelines", f"{of}.helper", f"{of}_other"):
        importlib.import_module(name)
    assert frames.modules_of_project([f"{of}.pipelines"]) == {}
    frames.adopt(f"{of}.pipelines")
    assert frames.modules_of_project([f"{of}.pipelines"]).keys() == {of, f"{of}.pipelines", f"{of}.helper"}
    assert not frames.is_users_module(f"{of}_other")
