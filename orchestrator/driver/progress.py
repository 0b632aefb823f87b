"""One calm display on stderr: a bar on a terminal, a plain line now and then otherwise."""

from __future__ import annotations

import sys
import time
from typing import Never, Protocol, TextIO

from tqdm import tqdm

PLAIN_EVERY_S = 10.0


class Progress(Protocol):
    def start(self, steps: int) -> None: ...
    def step(self, done: int, loss: float) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


def for_stream(stream: TextIO | None = None) -> Progress:
    """A bar where `stream` (stderr) is a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    return Bar(stream) if stream.isatty() else Plain(stream)


class Plain:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps = 0
        self._said_at = time.monotonic()

    def start(self, steps: int) -> None:
        self._steps = steps
        self._said_at = time.monotonic()

    def step(self, done: int, loss: float) -> None:
        if time.monotonic() - self._said_at >= PLAIN_EVERY_S or done == self._steps:
            self._said_at = time.monotonic()
            self.say(f"step {done}/{self._steps}, loss {loss:.4g}")

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Bar:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[Never] | None = None

    def start(self, steps: int) -> None:
        self._bar = tqdm(total=steps, file=self._stream, unit="step", dynamic_ncols=True, leave=False, mininterval=0.2)

    def step(self, done: int, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
            self._bar.update(done - self._bar.n)

    def say(self, text: str) -> None:
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
