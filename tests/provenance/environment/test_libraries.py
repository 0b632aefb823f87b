"""Libraries of the system are those that `ldd` names, and their packages those that dpkg names."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.provenance.environment import libraries
from orchestrator.provenance.environment.libraries import Elf, closure

MODULE = Path(torch._C.__file__)
NAMES = st.sampled_from("abcdef")


def test_they_are_those_that_ldd_names() -> None:
    said = subprocess.run(["ldd", str(MODULE)], capture_output=True, text=True, check=True).stdout
    told = {Path(place).resolve() for place in re.findall(r"(/\S+)", said)}
    found = libraries.of_system(MODULE)
    assert {place.resolve() for place in found.values()} == {each for each in told if "site-packages" not in each.parts}
    assert {"libc.so.6", "libm.so.6"} <= found.keys()


@pytest.mark.slow
@pytest.mark.long
def test_what_was_loaded_besides_does_not_count() -> None:
    """As here: by these modules and by all other tests."""
    assert all(map(importlib.import_module, ("ssl", "sqlite3", "lzma")))
    ask = "import torch; from pathlib import Path; from orchestrator.provenance.environment import libraries as l; "
    ask += "print(sorted(l.of_system(Path(torch._C.__file__))))"
    lean = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(lean) == sorted(libraries.of_system(MODULE))


def test_those_of_an_environment_of_conda_came_with_its_packages() -> None:
    assert libraries.of_system(MODULE, prefix=Path("/")) == {}


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=3).map(tuple)), st.lists(NAMES, max_size=3).map(tuple))
def test_what_is_needed_is_followed_to_its_end_in_circles_too(
    needs: dict[str, tuple[str, ...]], first: tuple[str, ...]
) -> None:
    known = {name: Elf(name, needed) for name, needed in needs.items()}
    found = closure(Elf("first", first), known)
    assert found == {each for each in known if each in {*first, *(more for name in found for more in needs[name])}}


def test_what_is_no_library_is_none(tmp_path: Path) -> None:
    for name, content in {
        "empty": b"",
        "text": b"hello",
        "short": b"\x7fELF\x02\x01",
        "narrow": b"\x7fELF\x01" + b"\0" * 99,
    }.items():
        (tmp_path / name).write_bytes(content)
        assert libraries.read(tmp_path / name) is None
    assert libraries.read(tmp_path / "none") is None


def test_a_library_is_told_with_its_package(tmp_path: Path) -> None:
    (tmp_path / "info").mkdir()
    (tmp_path / "info" / "libc6:amd64.list").write_text("/.\n/lib/x/libm.so.6\n")
    (tmp_path / "status").write_text("Package: libc6\nStatus: ok\nVersion: 2.36-9\n\nPackage: zlib1g\nVersion: 1\n")
    math, own = Path("/usr/lib/x/libm.so.6"), Path("/opt/libown.so")
    assert libraries.packages_of([math, own], tmp_path) == {math: "libc6:amd64 2.36-9"}
    assert libraries.packages_of([math], tmp_path / "none") == {}


def test_the_same_bytes_have_the_same_digest(tmp_path: Path) -> None:
    source = libraries.of_system(MODULE)["libm.so.6"]
    copy = Path(shutil.copy(source, tmp_path / "libm.so.6"))
    assert libraries.sha256(copy) == libraries.sha256(source)
    with copy.open("ab") as file:
        file.write(b"\0")
    assert libraries.sha256(copy) != libraries.sha256(source)
