"""Messages taken for `poll` out of the queues of those that have come, one queue a peer; the same for every transport.

It does not wait, and knows of no losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from orchestrator.comm.transports.base import Received, Tag

Inbox = deque[tuple[Tag, Received]]


def take(inboxes: Iterable[tuple[int, Inbox]], phases: Collection[int]) -> list[tuple[int, Tag, Received]]:
    """Take the messages at the heads of these inboxes, as far as they are of these phases: one of each peer in turn."""
    came: list[tuple[int, Tag, Received]] = []
    waiting = [(peer, inbox) for peer, inbox in inboxes if inbox]
    while waiting:
        waiting = [(peer, inbox) for peer, inbox in waiting if inbox and inbox[0][0].phase in phases]
        came += [(peer, *inbox.popleft()) for peer, inbox in waiting]
    return came
