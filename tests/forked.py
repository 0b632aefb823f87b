"""`pytest -p tests.forked --forks 3` imports and collects all tests once, and three forks of that process run them.

Processes that start by themselves, as those of pytest-xdist, collect all anew: ten seconds of a processor for each. Forks
take files in their order, one after the other, so fixtures of a module are made once. When one crashes, its test has failed and
another fork goes on with the next.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Final

import pytest

NUMBER: Final = struct.Struct("<I")  # few bytes: a pipe never divides them
AT: Final = struct.Struct("<II")
NONE: Final = 0xFFFFFFFF
ALL_RUN: Final[list[dict[str, Any]]] = []
TOGETHER: Final = {"cluster"}  # folders: a relay has one address in each process that imports their tests
HAVE_RUN: Final = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="collect once, and run the tests in N forks")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """One thread computes what files compute when they are imported. OpenMP would start others, without which a fork ends with
    SIGSEGV as soon as it computes with several."""
    if not session.config.getoption("forks"):
        return (yield)
    import torch  # now, when its environment stands

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return (yield)
    finally:
        torch.set_num_threads(threads)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """None leaves all to pytest."""
    number = session.config.getoption("forks")
    if not number or session.testsfailed or session.config.option.collectonly:
        return None
    Forks(session).run(number)
    return True


def together(item: pytest.Item) -> Path:
    """A file, or a folder that one fork runs whole."""
    return item.path.parent if item.path.parent.name in TOGETHER else item.path


@dataclass
class Fork:
    """A process that runs tests, as its parent knows it."""

    pid: int
    reports: Connection  # lists of reports, one for each test, and ALL_RUN
    at: mmap.mmap  # the number of the test that it runs, and of the one after that: NONE where there is no other
    ended: int = field(init=False)  # readable when it has ended, however it did
    has_run_all: bool = False

    def __post_init__(self) -> None:
        self.ended = os.pidfd_open(self.pid)

    def code(self) -> int:
        """How it has ended."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.ended)
        self.reports.close()
        return os.waitstatus_to_exitcode(status)


class Forks:
    """The tests of a session. Files that nobody has begun are in a pipe, by the numbers of their first tests."""

    def __init__(self, session: pytest.Session) -> None:
        self._session, self._config, self._items = session, session.config, session.items
        self._files, filled = os.pipe()
        for number, item in enumerate(self._items):
            if not number or together(item) != together(self._items[number - 1]):
                os.write(filled, NUMBER.pack(number))
        os.close(filled)
        self._forks: list[Fork] = []

    def run(self, number: int) -> None:
        """Returns when all tests are run, in each fork, too, which then ends as pytest does."""
        try:
            if any(self._is_fork() for _ in range(number)):
                return
            while self._forks:
                for fork in self._ended():
                    self._forks.remove(fork)
                    following = self._after(fork)
                    if following is not None and self._is_fork(following):
                        return
        finally:
            for fork in self._forks:
                with suppress(ProcessLookupError):
                    os.kill(fork.pid, signal.SIGTERM)
                fork.code()

    def _ended(self) -> list[Fork]:
        """Waits for what forks tell. Those that have ended have told all."""
        ready = wait([end for fork in self._forks for end in (fork.reports, fork.ended)])
        ended = [fork for fork in self._forks if fork.ended in ready]
        for fork in self._forks:
            with suppress(EOFError, OSError):  # it has ended, perhaps in the middle of a message
                while (fork in ended or fork.reports in ready) and fork.reports.poll():
                    self._tell(fork, fork.reports.recv())
        return ended

    def _tell(self, fork: Fork, reports: list[dict[str, Any]]) -> None:
        fork.has_run_all = reports == ALL_RUN
        hook = self._config.hook
        for data in reports:
            report = hook.pytest_report_from_serializable(config=self._config, data=data)
            hook.pytest_runtest_logreport(report=report)
        if reports:
            hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)

    def _after(self, fork: Fork) -> int | None:
        """The test with which another has to go on, where it crashed."""
        code = fork.code()
        if fork.has_run_all and code in HAVE_RUN:
            return None
        current, following = AT.unpack(fork.at[:])
        item = self._items[current]
        text = f"the process that ran this test has ended with {code}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        return None if following == NONE else following

    def _is_fork(self, first: int | None = None) -> bool:
        """True in a fork that has run all it could take, from this test on."""
        reports, told = Pipe(duplex=False)
        at = mmap.mmap(-1, AT.size)
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            told.close()
            self._forks.append(Fork(pid, reports, at))
            return False
        self._forks = []
        self._begin_capturing()
        self._config.workerinput = {}  # type: ignore[attr-defined]  # plugins know by this name who keeps no records
        reporter = Reporter(self._config)
        self._config.pluginmanager.register(reporter)
        numbers = self._taken(first)
        current = next(numbers, NONE)
        while current != NONE:
            following = next(numbers, NONE)
            at[:] = AT.pack(current, following)
            after = None if following == NONE else self._items[following]
            self._config.hook.pytest_runtest_protocol(item=self._items[current], nextitem=after)
            told.send(reporter.taken())
            current = following
        told.send(ALL_RUN)
        return True

    def _taken(self, first: int | None) -> Iterator[int]:
        """The numbers of tests, up to the end of each file."""
        while True:
            if first is None:
                if not (read := os.read(self._files, NUMBER.size)):
                    return
                (first,) = NUMBER.unpack(read)
            for number in range(first, len(self._items)):
                if together(self._items[number]) != together(self._items[first]):
                    break
                yield number
            first = None

    def _begin_capturing(self) -> None:
        """Into files of its own. Nothing but the parent writes to the terminal."""
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        assert capture is not None
        if not capture.is_globally_capturing():
            return
        capture.stop_global_capturing()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        capture.start_global_capturing()
        capture.suspend_global_capture()


class Reporter:
    """A plugin of a fork, which keeps the reports of a test until they are sent."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)

    def taken(self) -> list[dict[str, Any]]:
        reports, self._reports = self._reports, []
        return reports
