"""The modules of a project are told from those of packages."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.cluster.forkserver import equivalence
from orchestrator.common import frames
from orchestrator.data import loaders
from orchestrator.optim import aside
from orchestrator.provenance.code import imported, marks


def test_the_modules_of_a_project_are_those_that_it_imports_but_for_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = f"of_{tmp_path.name}"
    deep = (
        f"import {of}_library\nfrom {of}_function import count\nfrom {of}_package import number as other\nnumber = 1\n"
        f"class Pipeline:\n    def loss(self):\n        def inner():\n            import {of}_late\n"
    )
    files = {
        "project": {
            f"{of}/__init__.py": "",
            f"{of}/deep.py": deep,
            f"{of}_late.py": "",
            f"{of}_function.py": f"import {of}_beneath\ndef count():\n    pass\n",
            f"{of}_beneath.py": "",
            f"{of}_apart.py": "",
        },
        "project/lib/site-packages": {f"{of}_package.py": "number = 1\n"},
        "library": {f"{of}_library.py": ""},
    }
    for folder, texts in files.items():
        for name, text in texts.items():
            file = tmp_path / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(tmp_path / folder)
    for name in (f"{of}.deep", f"{of}_late", f"{of}_apart"):
        importlib.import_module(name)
    imported = {f"{of}.deep", *(f"{of}_{name}" for name in ("late", "library", "function", "beneath"))}
    assert frames.imported_modules([f"{of}.deep", "json"]).keys() == imported
    assert frames.imported_modules([of]).keys() == {of, *imported}
    assert frames.imported_modules([f"{of}_apart"]).keys() == {f"{of}_apart"}
    assert not Path(torch.ops.__file__).is_absolute()  # a module that seems to be in no package
    assert frames.imported_modules(["json", "torch", "builtins"]) == {}
    module = sys.modules[f"{of}.deep"]
    variables = frames.variables_of({"deep": vars(module)})
    names = (f"{of}_library", "count", "other", "number", "Pipeline")
    assert variables == {f"deep.{name}": getattr(module, name) for name in names}


def test_a_package_in_a_folder_of_any_name_is_none_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pip install --target` puts torch: a generator of it was taken for an object of the user's, and written to."""
    of = f"of_{tmp_path.name}"
    for name in (of, f"{of}_beside"):
        (tmp_path / f"{name}.py").write_text("def count():\n    pass\n")
    (tmp_path / "it-1.0.dist-info").mkdir()
    (tmp_path / "it-1.0.dist-info" / "RECORD").write_text(f"{of}.py,sha256=x,9\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed, beside = map(importlib.import_module, (of, f"{of}_beside"))
    assert [frames.is_users_module(each.__name__) for each in (installed, beside)] == [False, True]
    assert [aside._is_users(each.count) for each in (installed, beside)] == [False, True]


def test_an_installed_package_is_the_users_once_it_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_adopted", set())
    of = f"of_{tmp_path.name}"
    folder = tmp_path / "site-packages"
    (folder / of).mkdir(parents=True)
    for name in ("__init__", "pipelines", "helper"):
        (folder / of / f"{name}.py").write_text(f"import {of}.helper" if name == "pipelines" else "")
    (folder / "other-1.0.dist-info").mkdir()
    (folder / f"{of}_other.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    for name in (f"{of}.pipelines", f"{of}.helper", f"{of}_other"):
        importlib.import_module(name)
    assert frames.imported_modules([f"{of}.pipelines"]) == {}
    frames.adopt(f"{of}.pipelines")
    assert frames.imported_modules([f"{of}.pipelines"]).keys() == {of, f"{of}.pipelines", f"{of}.helper"}
    assert not frames.is_users_module(f"{of}_other")


class Lazy(types.ModuleType):
    """As packages have them for what their users may do without: any question imports it."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(f"{self.__name__} lacks a package, for {name}")


@pytest.mark.parametrize(
    "look",
    [
        lambda: frames.imported_modules(["orchestrated_lazily"]),
        lambda: imported.files_of(sys.modules),
        lambda: marks.forget_edited(Path("nowhere")),
        lambda: equivalence.imported_files(),
        lambda: loaders._imported_code(),
    ],
)
def test_a_module_that_is_imported_when_it_is_used_is_left_alone(
    look: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "orchestrated_lazily", Lazy("orchestrated_lazily"))
    look()
