"""Calls of Ray that its head takes part in. If that is gone, Ray waits for it for a minute, and then ends this process."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

_LOOK_S = 0.5


def not_set_up(error: BaseException) -> str:
    """Why Ray could not set up a process on a node, such as for want of room to unpack a copy of the project, in a line; empty
    for another error."""
    from ray.exceptions import RuntimeEnvSetupError

    return (
        f"Ray could not set up its process there: {last_line(error)}" if isinstance(error, RuntimeEnvSetupError) else ""
    )


def last_line(error: BaseException) -> str:
    """The cause, which Ray tells behind all else."""
    return (str(error).strip().splitlines() or [""])[-1].strip()


def unless_gone(call: Callable[[], object], trouble: Callable[[], str | None]) -> None:
    """Returns when the call does, or when its Ray turns out to be gone. trouble: with the Ray. Exceptions of the call are
    ignored, as of a Ray that goes at this moment."""

    def ask() -> None:
        with suppress(Exception):
            call()

    if trouble() is not None:
        return
    asking = threading.Thread(target=ask, name="call of Ray", daemon=True)
    asking.start()
    while asking.is_alive() and trouble() is None:
        asking.join(_LOOK_S)


def shut_down() -> None:
    """Calls `ray.shutdown()` while no thread collects garbage. Errors of actors that were lost hold references of Ray in
    cycles. A thread that frees one tells Ray, and a Ray that is half shut down ends this process then.

    Ray takes away what handles SIGTERM, past Python, and the record of a run is still to be closed."""
    import ray

    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if collects:
            gc.enable()
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
