"""A process that runs a module of this package for its parent, and messages between the two over a pipe each way.

A message is its length and as many bytes. The module says what they mean: JSON where that does, else a pickle, since both are
processes of one run. A child ends when its input does, so it does not outlive its parent for long.

`Started` starts it as Python starts, which takes a second or two to import torch. Another way of starting it is given by the
process of a worker (`cluster.forkserver.children`).

Why not `multiprocessing.connection`: its `recv_bytes` takes three to five times as long for a batch of 1 MB, and its `send`
hands out torch's tensors as descriptors. It neither orders messages of several threads nor hands over descriptors.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Protocol

from orchestrator.common.descriptors import readable

_LENGTH = struct.Struct("<Q")


class Messages:
    """One side's end of both pipes."""

    def __init__(self, reading: IO[bytes], writing: IO[bytes]) -> None:
        self._reading = reading
        self._writing = writing

    def send(self, payload: bytes) -> None:
        """Raises OSError where the other side has ended."""
        self._writing.write(_LENGTH.pack(len(payload)))
        self._writing.write(payload)
        self._writing.flush()

    def receive(self) -> bytes | None:
        """The next message; None where the other side has ended. Raises ValueError once this one is closed."""
        header = self._reading.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(header)
        payload = self._reading.read(length)
        return payload if len(payload) == length else None

    def has_come(self) -> bool:
        """Whether the next message has begun to come, or never will."""
        return bool(readable([self._reading.fileno()], 0))

    def end(self) -> None:
        """Nothing more is sent."""
        with suppress(BrokenPipeError):  # of what the other side did not read any more
            self._writing.close()

    def close(self) -> None:
        """Safe to call twice. Waits for a thread that receives."""
        self.end()
        self._reading.close()


class Child(Protocol):
    """A process that runs a module for its parent, whoever has started it. messages: what it receives and sends."""

    messages: Messages

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def close(self) -> int | None:
        """Close both pipes and wait for its end. The exit code, a signal's number below zero; None where nobody knows it."""


Start = Callable[[str], Child]  # runs the `main` of a module


class Started:
    """A `Child` that this process starts itself. silent: its standard error goes nowhere, and else where this process has its
    own; apart: an interrupt of the run is not for it."""

    def __init__(self, module: str, *, silent: bool = False, apart: bool = False) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if silent else None,
            env=environment,
            start_new_session=apart,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.messages = Messages(self._process.stdout, self._process.stdin)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """For its end; returns the exit code."""
        return self._process.wait()

    def close(self) -> int:
        self.messages.close()
        return self.wait()


def parent() -> Messages:
    """In a child: with its parent. The child's prints go to its standard error from now on, and not into the messages."""
    messages = Messages(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    return messages


def end_with(messages: Messages) -> None:
    """In a child that awaits no more messages: end as soon as its parent has."""

    def wait() -> None:
        messages.receive()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
