"""A file of the project that has the name of a module of a library is named where that fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.common import shadowing


def test_what_was_imported_in_place_of_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("colorsys", "spirals"):
        (tmp_path / f"{name}.py").write_text("def f():\n    raise AttributeError('no median')\n")
        code = compile((tmp_path / f"{name}.py").read_text(), str(tmp_path / f"{name}.py"), "exec")
        scope: dict[str, object] = {}
        exec(code, scope)
        with pytest.raises(AttributeError) as caught:
            scope["f"]()  # type: ignore[operator]
        found = shadowing.told(caught.value)
        assert (found is not None) == (name == "colorsys")
        assert found is None or f"{tmp_path / name}.py is imported in place of the module colorsys" in found
    assert shadowing.told(OSError("a full disk")) is None


@pytest.mark.parametrize("file", ["yaml.py", "random.py", "copy.py", "orchestrator/data/points.csv"])
def test_a_command_says_so_without_a_traceback(tmp_path: Path, file: str) -> None:
    """The folder of a project called orchestrator hides what is installed to be edited."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "runs"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    if "/" not in file or done.returncode:  # a package that is not installed to be edited comes first
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert str(tmp_path) in done.stderr


def test_a_script_that_imports_the_package_is_told_which_file_it_is(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import orchestrator"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert f"ImportError: {tmp_path / 'random.py'} is imported in place of the module random" in done.stderr
