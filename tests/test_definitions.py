"""Classes and functions in a mapping for `launch`: by their names, in a module that is made where need be."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import numpy
import pytest

from orchestrator import Files
from orchestrator.api.definitions import named
from tests.refusals import refused

SCRIPT = """SIDE = 3


def warm(step):
    return SIDE * step


def outer():
    def inner():
        pass
    return inner
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that runs, in the working directory."""
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "train.py")
    Path(main.__file__).write_text(SCRIPT)
    exec(compile(SCRIPT, main.__file__, "exec", dont_inherit=True), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(tmp_path)
    return main


def test_files_are_named_as_they_are() -> None:
    with named(Path("conf/a.yaml")) as given:
        assert given == "conf/a.yaml"


def test_what_a_module_has_stands_for_its_name(script: ModuleType, tmp_path: Path) -> None:
    with named({"pipeline": {"target": Files, "args": {"sizes": (1, 2)}}}) as given:
        assert given == {"pipeline": {"target": f"{Files.__module__}:Files", "args": {"sizes": [1, 2]}}}
    assert not list(tmp_path.glob("*_cells.py")), script


def test_paths_and_numbers_of_numpy_are_what_a_file_would_say() -> None:
    given = {"run": {"steps": numpy.int64(3), "seed": 1}, "data": {"inputs": [Path("data/x")]}, "at": date(2026, 1, 2)}
    with named({**given, "optimizer": {"lr": numpy.float32(0.5), "nesterov": numpy.bool_(True)}}) as plain:
        assert plain == {
            "run": {"steps": 3, "seed": 1},
            "data": {"inputs": ["data/x"]},
            "at": date(2026, 1, 2),
            "optimizer": {"lr": 0.5, "nesterov": True},
        }
        assert "int64" not in repr(plain), "equal numbers may be of numpy"


@pytest.mark.parametrize("value", [{"a", "b"}, numpy.zeros(2), object()], ids=["set", "array", "object"])
def test_a_value_that_no_file_could_say_is_named_by_its_key(value: object) -> None:
    """A set was a mapping without values."""
    with refused("settings.not-plain", "pipeline.args.x: only text"), named({"pipeline": {"args": {"x": [value]}}}):
        pass


def test_what_the_script_has_is_written_wherever_it_stands(script: ModuleType, tmp_path: Path) -> None:
    with named({"schedule": {"name": script.warm}, "run": {"seed": 1}}) as given:
        assert given == {"schedule": {"name": "train_cells:warm"}, "run": {"seed": 1}}
        text = (tmp_path / "train_cells.py").read_text()
    assert text.endswith("SIDE = 3\n\n\ndef warm(step):\n    return SIDE * step\n")
    assert "outer" not in text


def test_what_cannot_be_imported_by_its_name_is_refused(script: ModuleType) -> None:
    for found, code in ((script.outer(), "cells.nested"), (script.warm, "cells.older")):
        vars(script)["warm"] = script.outer
        with refused(code), named({"schedule": found}):
            pass


def test_a_python_that_keeps_no_source_is_told_of(script: ModuleType) -> None:
    del script.__file__
    with refused("pipeline.in-script"), named({"schedule": script.warm}):
        pass
