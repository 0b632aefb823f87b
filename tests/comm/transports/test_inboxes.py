"""Laws of what a poll takes out of the queues."""

from __future__ import annotations

import itertools
from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comm.transports.base import Received
from orchestrator.comm.transports.inboxes import take
from tests.comm.transports.worlds import TAG

QUEUES = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 3), max_size=6), max_size=5)


@given(QUEUES, st.sets(st.integers(0, 3)))
def test_each_peers_head_is_taken_in_turns_and_the_rest_stays(queues: dict[int, list[int]], phases: set[int]) -> None:
    """queues: of each peer the phases of its messages; each message carries its number as its note."""
    inboxes = {
        peer: deque((TAG._replace(phase=phase), Received(torch.empty(0), note)) for note, phase in enumerate(its))
        for peer, its in queues.items()
    }
    came = take(inboxes.items(), phases)
    turns = [received.note for _, _, received in came]
    assert turns == sorted(turns), "nobody's second comes before another's first"
    for peer, its in queues.items():
        head = list(itertools.takewhile(phases.__contains__, its))
        mine = [(tag.phase, received.note) for source, tag, received in came if source == peer]
        assert mine == list(zip(head, range(len(head)), strict=True))
        assert [tag.phase for tag, _ in inboxes[peer]] == its[len(head) :]
