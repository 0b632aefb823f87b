"""The module of a notebook in the project: written once for all who use it, and never over what somebody else needs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from orchestrator.driver.preflight import cells
from tests.refusals import refused

NAME = "notebook_cells"


def text(value: int) -> str:
    return f'"""{cells.title("notebook")}"""\n\nVALUE = {value}\n'


def test_an_edit_is_imported_also_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes bytecode for current where size and second of its source are the same."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for value in (1, 2, 3):
        with cells.recorded(tmp_path, NAME, text(value)):
            module = importlib.import_module(NAME)
            assert value == module.VALUE
    sys.modules.pop(NAME)


def test_several_runs_share_it_and_another_text_waits_for_their_end(tmp_path: Path) -> None:
    with cells.recorded(tmp_path, NAME, text(1)):
        with cells.recorded(tmp_path, NAME, text(1)):
            pass
        with refused("cells.in-use"), cells.recorded(tmp_path, NAME, text(2)):
            pass
        assert (tmp_path / f"{NAME}.py").read_text() == text(1)
    with cells.recorded(tmp_path, NAME, text(2)):
        assert (tmp_path / f"{NAME}.py").read_text() == text(2)


def test_a_file_of_the_user_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / f"{NAME}.py"
    file.write_text("VALUE = 0\n")
    with refused("cells.file-taken"), cells.recorded(tmp_path, NAME, text(1)):
        pass
    assert file.read_text() == "VALUE = 0\n"


def test_a_folder_in_which_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    (tmp_path / ".orchestrator").mkdir()
    (tmp_path / ".orchestrator" / ".gitignore").write_text("*\n")
    monkeypatch.setattr(Path, "write_text", full)
    with refused("cells.unwritable"), cells.recorded(tmp_path, NAME, text(1)):
        pass


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("notebook", "notebook_cells"),
        ("/home/ann/My study-2.ipynb", "My_study_2_cells"),
        ("2nd.py", "_2nd_cells"),
        ("", "notebook_cells"),
    ],
)
def test_each_notebook_has_a_module_of_its_name(source: str, name: str) -> None:
    assert cells.module_name(source) == name
    assert name.isidentifier()
