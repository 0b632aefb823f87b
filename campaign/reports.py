"""Reports of members: each entry of a member's queue comes to the driver once, in its order, and as one of that member.

Runs of the virtual cluster to which everything happens: members die with reports unsent, and relays are lost with reports that
they had not handed on. The entries of a member that the driver has heard are the first ones of its queue, none left out.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orchestrator.cluster.actors.event_queue import ANSWERS, Entry, EventQueue
from orchestrator.driver.run.session import Session
from tests.virtual_cluster.cluster import Member
from tests.virtual_cluster.plans import plan
from tests.virtual_cluster.runs import Run


def each_comes_once(seed: int) -> None:
    """Raises AssertionError where one is lost, comes twice, or is another member's. Half of the members are on another node."""
    drawn = replace(plan(seed), apart=True, everywhere=True)
    put, heard = defaultdict[Member, list[Entry]](list), defaultdict[Member, list[Entry]](list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = Run(drawn, Path(folder))
        stack.enter_context(patch.object(EventQueue, "put", _noting(run, put)))
        stack.enter_context(patch.object(Session, "_entries", _hearing(put, heard)))
        run.live()
    assert heard, "nothing was heard"


def _noting(run: Run, put: dict[Member, list[Entry]]) -> Any:
    whole = EventQueue.put

    def instead(queue: EventQueue, entry: Entry, *, urgent: bool = False) -> None:
        if ANSWERS not in entry:
            put[run._cluster.here()].append(entry)
        whole(queue, entry, urgent=urgent)

    return instead


def _hearing(put: dict[Member, list[Entry]], heard: dict[Member, list[Entry]]) -> Any:
    whole = Session._entries

    def instead(session: Session, number: int, entries: list[Entry]) -> None:
        member: Member = session._members._members[number].actor.member
        known = heard[member]
        first = len(known)
        known += entries
        assert entries == put[member][first : len(known)], (
            f"{member.name}: entries {first} to {len(known)} are not those that it has put"
        )
        whole(session, number, entries)

    return instead
