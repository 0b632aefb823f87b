"""The places at which servers listen: where nobody else may enter, one of a kind, and not after their end."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cluster.forkserver import launch_server


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"orchestrator-{os.getuid()}"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        yield found


def test_the_folder_is_for_its_user_alone(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch_server.folder() == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700
    temporary.chmod(0o750)
    assert launch_server.folder() is None
    temporary.rmdir()
    (temporary.parent / "elsewhere").mkdir(0o700)
    temporary.symlink_to("elsewhere")
    assert launch_server.folder() is None
    temporary.unlink()
    temporary.mkdir(0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    temporary.rename(temporary.with_name(f"orchestrator-{uid + 1}"))
    assert launch_server.folder() is None


def test_where_the_system_has_a_folder_for_each_user_it_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert launch_server.folder() == tmp_path / "orchestrator"


def test_a_socket_is_there_once_somebody_listens_and_is_not_taken_over(tmp_path: Path, listener: socket.socket) -> None:
    place = tmp_path / "s.sock"
    launch_server._listen(listener, place)
    assert [file.name for file in tmp_path.iterdir()] == ["s.sock"]
    assert place.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, pytest.raises(FileExistsError):
        launch_server._listen(other, place)
    assert [file.name for file in tmp_path.iterdir()] == ["s.sock"]


def test_what_a_killed_server_has_left_is_removed_and_no_other(temporary: Path, listener: socket.socket) -> None:
    temporary.mkdir(0o700)
    launch_server._listen(listener, temporary / "living.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        launch_server._listen(gone, temporary / "gone.sock")
    launch_server.remove_abandoned(temporary)
    assert [file.name for file in temporary.iterdir()] == ["living.sock"]


def test_a_launch_without_a_folder_of_its_own_has_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_server, "folder", lambda: None)
    server = launch_server.LaunchServer()
    assert server.place is None
    server.close()


def test_a_launch_whose_socket_has_too_long_a_path_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep begins one for each trial."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(launch_server, "folder", lambda: folder)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match="too long"):
        launch_server.LaunchServer()
    assert len([*Path("/proc/self/fd").iterdir()]) == before


_TELLS_ITS_PATH = "import json, pathlib, sys; pathlib.Path(sys.argv[1] + '.path').write_text(json.dumps(sys.path))"


def test_a_relative_search_path_is_that_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_server, "_START", _TELLS_ITS_PATH)
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}../beside{os.pathsep}/elsewhere")
    monkeypatch.chdir(tmp_path)
    read, write = os.pipe()
    launch_server._begun(tmp_path / "s.sock", read).wait()
    os.close(read)
    os.close(write)
    found = json.loads((tmp_path / "s.sock.path").read_text())
    assert found[:3] == [str(tmp_path / "src"), str(tmp_path.parent / "beside"), "/elsewhere"]


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_folder_of_the_package_is_searched_only_where_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    """A project had a folder `pipelines` without __init__.py, and its workers trained a pipeline of the clone that was
    installed."""
    before, serves = launch_server._START.split("from orchestrator.cluster", 1)
    assert serves.endswith("main()\n")
    monkeypatch.setattr(launch_server, "_START", before + _TELLS_ITS_PATH)
    if is_installed:
        (tmp_path / "orchestrator.py").touch()
    else:
        monkeypatch.setattr(launch_server, "_options", lambda: ["-S"])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    read, write = os.pipe()
    launch_server._begun(tmp_path / "s.sock", read).wait()
    os.close(read)
    os.close(write)
    found = json.loads((tmp_path / "s.sock.path").read_text())
    assert (str(launch_server._ROOT) in found) != is_installed
