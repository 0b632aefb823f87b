"""Waiting for descriptors of any number: `select.select` takes none above 1,023, and a worker among many has more open."""

from __future__ import annotations

import select
from collections.abc import Sequence


def readable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Those that can be read, or whose other side has ended, once there is one. Empty after the timeout; None waits without
    end."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout_s is None else 1000 * timeout_s)]
