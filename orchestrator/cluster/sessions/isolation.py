"""Processes of a private Ray that signals to the launch do not reach.

A terminal and `timeout` signal the process group of a launch; Slurm and systemd signal all its processes. A raylet that gets
SIGTERM kills its workers at once, and one that gets SIGHUP ends. Then nobody is left who could save a checkpoint, and the
launch takes its own end for a fault of Ray. So these processes have a session of their own, and may be deaf to such signals.
They end with the launch all the same: the kernel kills them when it is gone.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.cluster.sessions.environment import replaced
from orchestrator.common import tested_versions

_POPEN = "ConsolePopen"


def isolated(*, deaf: bool) -> contextlib.AbstractContextManager[None]:
    """Within the block Ray starts its processes in sessions of their own. deaf: they block SIGTERM and SIGHUP, and so do their
    children until these listen again, as `forkserver.client` does. Does nothing with a Ray that was not tested."""
    from ray._private import services

    usual: Any = getattr(services, _POPEN, None)
    if usual is None or not tested_versions.RAY.is_here:
        return contextlib.nullcontext()
    unheard = (signal.SIGTERM, signal.SIGHUP) if deaf else ()

    class Isolated(usual):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            with _blocked(unheard):
                super().__init__(*arguments, **{**options, "start_new_session": True})

        def terminate(self) -> None:
            """Ray sends SIGTERM to what it ends, and waits for a second. Nothing of a private Ray has to be put in order."""
            if unheard:
                self.kill()
            else:
                super().terminate()

    return replaced(services, _POPEN, Isolated)


@contextlib.contextmanager
def _blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """A process that this thread starts inherits it; a signal to this process itself comes afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
