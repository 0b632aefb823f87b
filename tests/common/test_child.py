"""Messages with a child process arrive whole or not at all, and nothing is left of a child whose end came early."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common.child import Messages, Started

pytestmark = pytest.mark.slow

ECHO = """
from orchestrator.common.child import parent
messages = parent()
print("beside the messages")
while (payload := messages.receive()) is not None:
    messages.send(payload)
"""
WAITING = """
import signal
from orchestrator.common.child import end_with, parent
messages = parent()
end_with(messages)
messages.send(b"waits")
signal.pause()
"""
HALF = """
import os
from orchestrator.common.child import parent
messages = parent()
messages._writing.write((100).to_bytes(8, "little") + b"half")
messages._writing.flush()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("echoing", ECHO), ("waiting_for_its_parent", WAITING), ("half", HALF)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def echo(modules: Path) -> Iterator[Started]:  # noqa: ARG001
    child = Started("echoing")
    yield child
    child.kill()
    child.close()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


def ends() -> tuple[Messages, Messages]:
    """The messages of two sides in one process."""
    (one, other), (third, fourth) = os.pipe(), os.pipe()
    return (
        Messages(os.fdopen(one, "rb"), os.fdopen(fourth, "wb")),
        Messages(os.fdopen(third, "rb"), os.fdopen(other, "wb")),
    )


@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_messages_come_as_they_were_sent(payloads: list[bytes]) -> None:
    here, there = ends()
    for payload in payloads:
        here.send(payload)
    here.end()
    assert [there.receive() for _ in payloads] == payloads
    assert there.receive() is None
    here.close()
    there.close()


def test_what_no_pipe_holds_goes_through_a_child(echo: Started) -> None:
    for payload in (b"", b"a", os.urandom(5 << 20)):
        sent = threading.Thread(target=echo.messages.send, args=(payload,))
        sent.start()
        assert echo.messages.receive() == payload
        sent.join()
    echo.messages.end()
    assert echo.close() == 0


def test_a_child_that_is_killed_has_ended_for_both_verbs(echo: Started) -> None:
    echo.kill()
    assert echo.messages.receive() is None
    assert echo.messages.has_come()
    echo.wait()
    with pytest.raises(BrokenPipeError):
        echo.messages.send(b"more")
    assert echo.close() == -signal.SIGKILL
    assert echo.close() == -signal.SIGKILL
    with pytest.raises(ValueError, match="closed"):
        echo.messages.receive()


@pytest.mark.usefixtures("modules")
def test_half_a_message_is_none() -> None:
    child = Started("half")
    assert child.messages.receive() is None
    assert child.close() == 0


@pytest.mark.usefixtures("modules")
def test_nothing_is_left_open() -> None:
    before = descriptors()
    child = Started("echoing")
    child.messages.send(b"never read back")
    child.close()
    assert descriptors() == before


@pytest.mark.usefixtures("modules")
def test_a_child_that_awaits_nothing_ends_with_its_input() -> None:
    child = Started("waiting_for_its_parent")
    assert child.messages.receive() == b"waits"
    child.messages.end()
    assert child.wait() == 1
    child.close()


def test_a_child_ends_when_its_parent_is_killed(modules: Path) -> None:
    script = (
        f"import signal, sys; sys.path.insert(0, {str(modules)!r}); from orchestrator.common.child import Started; "
        "child = Started('waiting_for_its_parent'); child.messages.receive(); print(child.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    ended, _, _ = select.select([child], [], [], 30)
    with suppress(OSError):
        os.close(child)
    assert ended
