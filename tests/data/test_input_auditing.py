"""Reads of files, hosts and variables that are seen while a window is open, and those that are not."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import os
import shutil
import socket
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from orchestrator.common import file_cache
from orchestrator.config.plan import Declared
from orchestrator.data import input_auditing
from orchestrator.records.input_audit import InputAudit


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def seen(what: Callable[[], object], inputs: Iterable[str] = (), variables: Iterable[str] = ()) -> InputAudit:
    with input_auditing.window(Declared(tuple(inputs), tuple(variables))) as window:
        what()
    return window.audit


def test_files_outside_and_in_the_project_are_seen_by_name(tmp_path: Path, project: Path) -> None:
    (tmp_path / "outside.txt").write_text("a")
    (project / "inside.txt").write_text("bc")
    found = seen(lambda: [(tmp_path / "outside.txt").read_text(), Path("inside.txt").read_bytes()]).files
    assert list(found) == [str(tmp_path / "outside.txt"), "inside.txt"]
    assert found["inside.txt"].size == 2
    assert found["inside.txt"].sha256 == "1e0bbd6c686ba050b8eb03ffeedc64fdc9d80947fce821abbe5d6dc8d252c5ac"


def test_a_data_set_of_a_library_is_seen_too(project: Path) -> None:
    np.save(project / "rows.npy", np.zeros(3))
    assert list(seen(lambda: np.load("rows.npy")).files) == ["rows.npy"]


def test_a_library_that_the_user_loads_by_its_path_is_seen_and_one_of_the_system_is_not(project: Path) -> None:
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm.so" in line)
    shutil.copy(library, project / "libown.so.1")
    (project / "unused.so").write_bytes(b"")
    assert not seen(lambda: [ctypes.CDLL("libm.so.6"), ctypes.CDLL(library)]).files
    found = seen(lambda: ctypes.CDLL("./libown.so.1")).files
    assert list(found) == ["libown.so.1"]
    assert found["libown.so.1"].sha256 == hashlib.sha256((project / "libown.so.1").read_bytes()).hexdigest()


def test_files_that_native_code_has_opened_and_holds_are_seen(project: Path, tmp_path: Path) -> None:
    """Arrow maps what it reads, as safetensors does, and HDF5 keeps it open."""
    table = pyarrow.table({"x": [1, 2]})
    for place in (project / "mapped.arrow", tmp_path / "open.arrow", project / "declared.arrow"):
        with pyarrow.OSFile(str(place), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    kept = []

    def read() -> None:
        for place in ("mapped.arrow", "declared.arrow"):
            kept.append(pyarrow.memory_map(place))
        kept.append(pyarrow.OSFile(str(tmp_path / "open.arrow"), "rb"))
        kept.append(pyarrow.OSFile("written", "wb"))

    assert list(seen(read, ["declared.arrow"]).files) == [str(tmp_path / "open.arrow"), "mapped.arrow"]
    assert not seen(lambda: None).files, "they are open still"


@pytest.mark.parametrize("declared", ["data", "./data", "link"])
def test_declared_inputs_are_no_finding(project: Path, declared: str) -> None:
    (project / "data").mkdir()
    (project / "data" / "rows.txt").write_text("1")
    (project / "link").symlink_to("data")
    assert not seen(lambda: [list(Path("data").iterdir()), Path("data/rows.txt").read_text()], [declared])


def test_what_belongs_to_the_environment_is_no_finding(project: Path) -> None:
    (project / "some.egg-info").mkdir()
    (project / "some.egg-info" / "entry_points.txt").write_text("")

    def read() -> None:
        for path in ("/proc/self/status", "/etc/hosts", "/dev/null", np.__file__, input_auditing.__file__, os.__file__):
            Path(path).read_bytes()
        list(Path(np.__file__).parent.iterdir())
        Path("some.egg-info/entry_points.txt").read_bytes()

    assert not seen(read)


def test_what_git_keeps_is_no_finding(tmp_path: Path, project: Path) -> None:
    """As libraries read it that log the commit. The commit is in the record."""
    for place in (project, tmp_path):
        (place / ".git").mkdir()
        (place / ".git" / "HEAD").write_text("")
    assert not seen(
        lambda: [Path(".git/HEAD").read_text(), (tmp_path / ".git/HEAD").read_text(), *Path(".git").iterdir()]
    )


def test_a_package_is_of_the_environment_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where pip was given a target: a file of its own, and a variable that it reads."""
    code = "import os, pathlib\nread = lambda: (pathlib.Path(__file__).with_name('t.csv').read_text(), os.environ.get('ODD'))\n"
    for name in ("lone", "own"):
        (tmp_path / "libs" / name).mkdir(parents=True)
        (tmp_path / "libs" / name / "__init__.py").write_text(code)
        (tmp_path / "libs" / name / "t.csv").write_text("1")
    (tmp_path / "libs" / "lone-1.dist-info").mkdir()
    (tmp_path / "libs" / "lone-1.dist-info" / "RECORD").write_text("lone/__init__.py,,\nlone/t.csv,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "libs"))
    packaged, own = (importlib.import_module(name) for name in ("lone", "own"))
    assert not seen(packaged.read)
    found = seen(own.read)
    assert (list(found.files), list(found.variables)) == ([str(tmp_path / "libs/own/t.csv")], ["ODD"])


def test_who_looks_for_a_package_lists_where_modules_come_from(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is no finding. A file that lies there is one, and so is a listed folder of the project."""
    (tmp_path / "libs" / "data").mkdir(parents=True)
    (tmp_path / "libs" / "rows.txt").write_text("1")
    (project / "src").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "libs"))
    monkeypatch.syspath_prepend(str(project / "src"))
    assert not seen(lambda: [*importlib.metadata.distributions(path=[str(tmp_path / "libs")])])
    read = seen(lambda: [list(Path(each).iterdir()) for each in (tmp_path / "libs" / "data", "src")])
    assert set(read.files) == {str(tmp_path / "libs" / "data"), "src"}
    assert set(seen((tmp_path / "libs" / "rows.txt").read_text).files) == {str(tmp_path / "libs" / "rows.txt")}


def test_what_this_program_has_compiled_and_kept_is_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = list(file_cache.folders(input_auditing.__file__))[-1:]
    file_cache.keep(places, "sums.cubin", b"code")
    assert not seen(lambda: file_cache.read(places, "sums.cubin"))


def test_what_the_process_has_made_is_no_finding() -> None:
    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a").write_text("a")
            list(Path(folder).iterdir())
            (Path(folder) / "a").read_text()
        with tempfile.TemporaryFile("w+") as file:
            file.write("a")
        Path("cache.unfinished").write_text("a")
        Path("cache.unfinished").rename("cache")
        Path("cache").read_text()

    assert not seen(work)


def test_what_is_written_or_looked_for_in_vain_is_no_finding(project: Path) -> None:
    def work() -> None:
        with pytest.raises(FileNotFoundError):
            Path("missing").read_text()
        with Path("log").open("a") as file:
            file.write("line")

    (project / "log").write_text("")
    assert not seen(work)


def test_a_listed_folder_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    assert seen(lambda: list((tmp_path / "images").iterdir())).files[str(tmp_path / "images")].folder


def test_hosts_are_seen_by_the_name_that_was_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = seen(lambda: socket.create_connection(("localhost", port)).close())
    assert found.hosts == (f"localhost:{port}",)


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.environ["SCALE"],
        lambda: os.environ.get("SCALE"),
        lambda: os.getenv("SCALE"),
        lambda: "SCALE" in os.environ,
        lambda: os.environb.get(b"SCALE"),
        lambda: [os.environ[name] for name in os.environ if name == "SCALE"],
    ],
)
def test_variables_that_the_user_reads_are_seen(monkeypatch: pytest.MonkeyPatch, read: Callable[[], object]) -> None:
    monkeypatch.setenv("SCALE", "2")
    assert seen(read).variables == {"SCALE": ("2",)}


def test_a_variable_that_is_not_set_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALE", raising=False)
    assert seen(lambda: os.getenv("SCALE", "1")).variables == {"SCALE": (None,)}


@pytest.mark.parametrize(
    "read",
    [
        lambda: dict(os.environ),
        lambda: {**os.environ},
        lambda: os.environ.copy(),
        lambda: list(os.environ.items()),
        lambda: os.environ["HOME"],
        lambda: os.environ.get("OMP_NUM_THREADS"),
        tempfile.gettempdir,
    ],
)
def test_the_environment_as_a_whole_and_what_libraries_read_is_not(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], object]
) -> None:
    monkeypatch.setenv("SCALE", "2")
    assert not seen(read)


def test_what_the_process_has_set_itself_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "2")

    def work() -> None:
        os.environ["SCALE"] = "3"
        assert os.environ["SCALE"] == "3"

    assert not seen(work)


def test_declared_variables_are_recorded_also_where_nobody_has_read_them_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE", "2")
    assert seen(lambda: None, variables=["SCALE"]).variables == {"SCALE": ("2",)}


def test_a_credential_is_kept_as_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "abcdef0123456789abcdef")
    (value,) = seen(lambda: os.environ["SERVICE_TOKEN"]).variables["SERVICE_TOKEN"]
    assert isinstance(value, Mapping)
    assert value["masked"] == "***"
    assert len(value["scrypt"]) == 64


def test_a_module_of_the_users_that_reads_as_it_is_imported_is_seen(
    monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setenv("SCALE", "2")
    (project / "read_at_import.py").write_text(
        textwrap.dedent(
            """
            import os
            SCALE = os.environ["SCALE"]
            """
        )
    )
    monkeypatch.syspath_prepend(project)
    found = seen(lambda: __import__("read_at_import"))
    assert found == InputAudit(variables={"SCALE": ("2",)})


def test_threads_that_begin_within_a_window_are_seen_and_others_are_not(project: Path) -> None:
    (project / "mine").write_text("a")
    (project / "another's").write_text("a")
    go, gone, done = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        with Path("another's").open():
            gone.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()

    def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(Path("mine").read_text).result()
        go.set()
        gone.wait()

    found = seen(work)
    done.set()
    thread.join()
    assert list(found.files) == ["mine"]


def test_outside_of_windows_nothing_is_seen_and_the_environment_is_as_it_was(project: Path) -> None:
    usual = type(os.environ).__getitem__, type(os.environ).__iter__
    (project / "later").write_text("a")
    with input_auditing.window(Declared()) as first, input_auditing.window(Declared()) as second:
        assert (type(os.environ).__getitem__, type(os.environ).__iter__) != usual
    Path("later").read_text()
    assert (type(os.environ).__getitem__, type(os.environ).__iter__) == usual
    assert first.audit == second.audit == InputAudit()


def test_a_window_that_ends_with_an_error_is_closed() -> None:
    with pytest.raises(ZeroDivisionError), input_auditing.window(Declared()):
        raise ZeroDivisionError
    assert not input_auditing._windows
