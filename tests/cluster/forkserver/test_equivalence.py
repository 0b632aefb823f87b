"""Whether a process that is forked would be the one that its user would have started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.cluster.forkserver import equivalence

OWN = {"LANG": "C", "SEEN": "1", "OTHER": "1"}
READ = {"SEEN": "1", "LACKING": None}


@pytest.mark.parametrize(
    ("theirs", "names"),
    [
        (OWN, []),
        ({**OWN, "OTHER": "2", "NEW": "1"}, []),
        ({**OWN, "LANG": "de"}, ["LANG"]),
        ({**OWN, "SEEN": "2"}, ["SEEN"]),
        ({**OWN, "LACKING": "1"}, ["LACKING"]),
        ({**OWN, "OMP_NUM_THREADS": "1"}, []),
        ({**OWN, "OMP_NUM_THREADS": "2"}, ["OMP_NUM_THREADS"]),
        ({**OWN, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "a"}, ["CUDA_VISIBLE_DEVICES", "PYTHONPATH"]),
        ({"OTHER": "1"}, ["LANG", "SEEN"]),
    ],
)
def test_variables_count_that_were_read_or_are_of_libraries(theirs: dict[str, str], names: list[str]) -> None:
    assert equivalence.other_variables(OWN, READ, theirs, {"OMP_NUM_THREADS": "1"}) == names


def test_what_code_asks_for_is_seen_and_what_it_only_copies_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOR_A_TEST", "1")
    usual = type(os.environ).__getitem__
    with equivalence.variables_read() as found:
        dict(os.environ)
        assert found == {}
        assert (os.environ.get("FOR_A_TEST"), "FOR_NO_TEST" in os.environ) == ("1", False)
    assert found == {"FOR_A_TEST": "1", "FOR_NO_TEST": None}
    assert type(os.environ).__getitem__ is usual


def test_rights_are_those_of_this_process() -> None:
    own = equivalence.rights(os.getpid())
    assert {"Uid", "CapEff", "cgroup", "net namespace", "hard limits"} <= own.keys()
    assert equivalence.other_rights(own, own) == []
    assert equivalence.other_rights(own, {**own, "CapEff": "0", "root": "/jail"}) == ["CapEff", "root"]


def test_a_file_that_is_written_anew_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    found = equivalence._looks(str(file))
    assert found is not None
    files = {str(file): found}
    assert equivalence.changed(files) is None
    file.write_text("x = 12\n")
    assert equivalence.changed(files) == str(file)
    file.unlink()
    assert equivalence.changed(files) == str(file)
    assert __file__ in equivalence.imported_files()


@pytest.mark.parametrize(
    ("name", "hides"),
    [("json.py", True), ("json.so", True), ("json/__init__.py", True), ("json/data.py", False), ("jsons.py", False)],
)
def test_what_lies_before_a_library_hides_it(tmp_path: Path, name: str, hides: bool) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert equivalence.shadowed(folder) == (name.partition("/")[0] if hides else None)
    finally:
        os.close(folder)


def test_its_own_checkout_hides_nothing() -> None:
    folder = os.open(Path(equivalence.__file__).parents[3], os.O_RDONLY)
    try:
        assert equivalence.shadowed(folder) is None
    finally:
        os.close(folder)


def test_a_gpu_that_is_open_is_seen(tmp_path: Path) -> None:
    (tmp_path / "0").symlink_to("/dev/null")
    assert equivalence.opened_gpu(tmp_path) is None
    (tmp_path / "5").symlink_to("/dev/nvidiactl")
    assert equivalence.opened_gpu(tmp_path) == "/dev/nvidiactl"
    assert equivalence.opened_gpu() is None
