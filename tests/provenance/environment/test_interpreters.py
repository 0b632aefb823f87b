"""The interpreter of the record is found where there is one, and another version is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.environment import interpreters
from orchestrator.provenance.environment.interpreters import Interpreter
from tests.refusals import refused

WANTED = "3.11.7 (main, Jan  1 2024, 00:00:00) [GCC 12.2.0]"
SAME = Interpreter("/a/python3.11", WANTED, "CPython")
REBUILT = Interpreter("/b/python3.11", "3.11.7 (main, Feb  2 2024) [Clang 17]", "CPython")
OLDER = Interpreter("/c/python3.11", "3.11.2 (main) [GCC 12.2.0]", "CPython")
PYPY = Interpreter("/d/pypy", "3.11.7 (pypy)", "PyPy")


def test_the_same_build_comes_before_the_same_version() -> None:
    assert interpreters.choose(WANTED, "CPython", [OLDER, REBUILT, SAME]) == SAME
    assert interpreters.choose(WANTED, "CPython", [PYPY, REBUILT, OLDER]) == REBUILT
    assert interpreters.release_of("3.13.0+ (heads/x)") == "3.13.0"


def test_another_version_or_implementation_is_refused_with_what_there_is() -> None:
    with pytest.raises(NotRerunnable) as error:
        interpreters.choose(WANTED, "CPython", [OLDER, PYPY])
    assert "it had CPython 3.11.7, and on PATH there are /c/python3.11 (CPython 3.11.2), /d/pypy (PyPy 3.11.7)" in (
        error.value.message
    )
    assert "uv python install 3.11.7" in error.value.remedy
    with refused("environment.interpreter"):
        interpreters.choose(WANTED, "CPython", [])


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.slow
def test_those_of_path_and_of_uv_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails or says nonsense is none; the same one by another name is found once."""
    told = "import json; print(json.dumps"
    for name, base in {"one": "/x/3.9", "uvs": "/y/3.9"}.items():
        folder = tmp_path / name
        folder.mkdir()
        script(folder / "python3.9", f'echo \'["{base}", "3.9.18 ({name})", "CPython"]\' # {told}')
    script(tmp_path / "one" / "python3", "exit 127")
    script(tmp_path / "one" / "python", "echo nonsense")
    script(
        tmp_path / "one" / "uv",
        f"[ \"$*\" = 'python find --no-project --no-python-downloads 3.9.18' ] && echo {tmp_path}/uvs/python3.9",
    )
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "python").symlink_to(sys.executable)
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(tmp_path / "one"), "", str(tmp_path / "none"), str(tmp_path / "two")])
    )
    found = interpreters.here("3.9.18 (main)")
    assert [(each.path, each.release) for each in found[1:]] == [("/x/3.9", "3.9.18"), ("/y/3.9", "3.9.18")]
    assert (found[0].version, found[0].implementation) == (sys.version, "CPython")
    assert Path(found[0].path).resolve() == Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
