"""While another machine may go on with a run: the driver tells the store that it lives, and looks whether it still has the run.

The store (an MLflow server) is the one place that both machines ask. A driver writes a number there that grows. A machine
that takes the driver for dead takes over: it writes itself into the record as the process of the run (`Tracker.reopen`). A
driver that was cut off, or stood still, and finds another process there, ends at once: that one has the run.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orchestrator.provenance.tracking import Driving, Store, as_argument, identity_of_process

EVERY_S = 5.0


@contextmanager
def hold_lease(store: Store, run_id: str, release: Callable[[], None]) -> Iterator[None]:
    """Within the block the driver tells the store that it lives, and ends if another process has the run. release: called
    before it ends, so that nobody here goes on with the run."""
    mine = tuple(identity_of_process().values())
    over = threading.Event()

    def hold() -> None:
        for count in itertools.count():
            try:
                found = store.driving(run_id)
                if found.process == mine:
                    store.beat(run_id, count)
            except Exception:  # MLflow's, requests': a store that is away is asked again
                found = None
            if found is not None and found.process != mine and found.is_driven:
                release()
                print(superseded(run_id, found, store.name), file=sys.stderr, flush=True)
                os._exit(1)  # nothing of what this process has may reach the record of the other one
            if over.wait(EVERY_S):
                return

    thread = threading.Thread(target=hold, name="holding", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(EVERY_S)


def superseded(run_id: str, driving: Driving, store: str | None) -> str:
    """store: as output may show it; None for the project's."""
    return (
        f"error: {driving.named} goes on with run {run_id}, which had not heard of this driver; this one ends\n"
        "  what to do: nothing, the run goes on there; to have it here, end that one in order (SIGINT), and then "
        f"resume={run_id}{as_argument(store)}"
    )
