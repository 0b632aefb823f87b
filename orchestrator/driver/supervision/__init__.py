"""A driver that dies is taken over: `supervised` starts a small process that goes on with the run when this one is gone.

The process (`supervisor.py`) is told the run's id once it has one, the file on which members hold a lock, and at the end that
all is well. It does nothing before the driver's process ends without that last word.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.config.settings import Settings
from orchestrator.driver.supervision import supervisor
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import UsageError
from orchestrator.provenance.tracking import as_argument, is_server
from orchestrator.records import redaction


class TakenOver(NamedTuple):
    """The driver from which this one has taken a run over. driver: the process that has ended; ended: when, by the
    monotonic clock of this machine."""

    driver: int
    ended: float


def taken_over() -> TakenOver | None:
    """The driver that this process is the successor of; None if no supervisor has made it one."""
    noted = os.environ.get(supervisor.TAKEN_OVER)
    if noted is None:
        return None
    _, _, ended, driver = noted.split()
    return TakenOver(int(driver), float(ended))


class Supervision:
    """Tells the supervisor of this process what it has to know of the run."""

    def __init__(
        self, process: subprocess.Popen[bytes], arguments: Sequence[str], store: str | None, folder: Path
    ) -> None:
        self._process = process
        self._arguments = arguments
        self._store = None if store is None else redaction.text(store)  # as output may show it
        self.folder = folder  # where another process goes on with the run

    def run(self, run_id: str, trace: Path) -> None:
        """This is the run to go on with. trace: a file that grows with its steps."""
        command = [sys.executable, "-m", *self.words(run_id)]
        self._tell(run=run_id, command=command, where=as_argument(self._store), trace=str(trace))
        _is_watched()

    def words(self, run_id: str) -> list[str]:
        """The words, after `python -m`, of the command line by which another process goes on with the run."""
        return ["orchestrator", f"resume={run_id}", *self._arguments]

    def members(self, lock: Path) -> None:
        """Members hold a lock on this file while they live."""
        self._tell(lock=str(lock))

    def release(self) -> None:
        """From now on the end of this process is nobody's business: it ended in order, or was told to end."""
        self._tell(done=True)

    def _tell(self, **said: Any) -> None:
        """A supervisor that somebody has killed is told nothing, and the run goes on without."""
        assert self._process.stdin is not None
        with suppress(OSError):
            os.write(self._process.stdin.fileno(), json.dumps(said).encode() + b"\n")


def _is_watched() -> None:
    """Tell the supervisor that has started this process, if one has, that another one watches it now."""
    watched, descriptor = map(int, os.environ.pop(supervisor.WATCHED, "0 0").split())
    if watched == os.getpid():
        with suppress(OSError):  # somebody has killed it
            os.write(descriptor, b'{"done": true}\n')
            os.close(descriptor)


@contextmanager
def supervised(
    settings: Settings,
    typed: Sequence[str] | None,  # on the command line, beside what names the run; None: it was not launched there
    pending_signal: PendingSignal,
    folder: Path,  # where it was typed; a run that is resumed may be driven from a checkout, no place to go on from
    *,
    can_resume: bool = True,  # an audit cannot
) -> Iterator[Supervision | None]:
    """Within the block another process goes on with the run when this one dies. None if none is wanted. Raises UsageError."""
    wanted = settings.run.supervised
    if typed is None and wanted:
        raise UsageError(
            "run.supervised: only a run that is launched by itself on the command line can be gone on with by another process",
            "leave run.supervised out, or type python -m orchestrator conf=...",
            code="run.supervised",
        )
    if typed is None or not can_resume or not (is_server(settings.tracking.uri) if wanted is None else wanted):
        yield None
        return
    uri = settings.tracking.uri
    arguments = [*typed, *([] if uri is None else [f"tracking.uri={uri}"])]
    with _process(arguments, uri, settings.cluster.lease_s, folder) as supervision:
        pending_signal.on_signal = supervision.release  # who ends the run, by a second Ctrl-C too, means it
        yield supervision


@contextmanager
def _process(arguments: Sequence[str], store: str | None, patience_s: float, folder: Path) -> Iterator[Supervision]:
    """arguments: beside resume=; store: that MLflow keeps the run in, where one is given; patience_s: how long members may
    take to end; folder: where it goes on."""
    command = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(patience_s)]
    # A session of its own: a Ctrl-C and a terminal that is closed are for the driver to end in order.
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, start_new_session=True)
    supervision = Supervision(process, arguments, store, folder)
    try:
        yield supervision
    finally:
        supervision.release()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
