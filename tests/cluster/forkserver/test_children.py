"""A child forked from the server of its parent is what a started one is, and how it ended is known."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cluster.forkserver import children, client
from tests.cluster.forkserver.test_server import Light, ended, started

pytestmark = pytest.mark.slow

ECHO = """
import os, sys
from orchestrator.common.child import parent
def main():
    messages = parent()
    seen = [os.environ.get(name) for name in ("REMOVED", "SET")]
    print("beside the messages")
    while (line := messages.receive()) is not None:
        messages.send(" ".join([line.decode(), *map(str, seen), os.getcwd()]).encode())
    sys.exit(7)
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Light]:
    """A server from which this process says to be forked, before it has changed two variables."""
    (tmp_path / "echoing.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    with started(tmp_path) as found:
        monkeypatch.setenv("REMOVED", "at first")
        monkeypatch.setattr(client, "came_from", (str(found.place), {"environ": dict(os.environ)}))
        monkeypatch.delenv("REMOVED")
        monkeypatch.setenv("SET", "later")
        yield found


@pytest.mark.parametrize("forked", [True, False])
def test_a_child_is_as_its_parent_is_now(light: Light, forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not forked:
        monkeypatch.setattr(client, "came_from", None)
    child = children.child("echoing")
    assert (str(child.pid) in light.children) == forked
    child.messages.send(b"a line")
    assert child.messages.receive() == f"a line None later {Path.cwd()}".encode()
    assert child.close() == 7


@pytest.mark.parametrize("number", [None, errno.ENOSYS])
def test_a_child_that_is_killed_says_so(light: Light, number: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel has no descriptors of processes."""

    def lacking(pid: int) -> int:  # noqa: ARG001
        assert number is not None
        raise OSError(number, os.strerror(number))

    if number is not None:
        monkeypatch.setattr(children, "process_descriptor", lacking)
    child = children.child("echoing")
    child.kill()
    assert child.close() == -signal.SIGKILL
    assert not light.children
    child.kill()  # as where callbacks are closed twice


def test_without_its_server_a_child_goes_on_and_its_end_is_seen(light: Light) -> None:
    child = children.child("echoing")
    os.kill(light.process.pid, signal.SIGKILL)
    ended(light.process.pid)
    child.messages.send(b"a line")
    assert (child.messages.receive() or b"").startswith(b"a line")
    assert child.close() is None
    other = children.child("echoing")  # started, since the server is gone
    assert other.close() == 7
