"""The environment has to stand before anything imports torch (rule B3), no test depends on the wall clock, and what needs
root, an emulator or Slurm is left to who has it (rule F11).

How many examples hypothesis draws is chosen by `pytest --hypothesis-profile=NAME`: `few` where nothing is said, `many` by
`make test-long`. A test that states a number of its own (slow examples, or a law that few examples do not reach) keeps it.

Each process of pytest reads all files of tests before it runs one. So what `-m` leaves out is neither imported nor made, unless
a file is named (`tests/collecting.py`).
"""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from orchestrator.cluster.forkserver import client, launch_server
from orchestrator.numerics.determinism import FILL, prepare_environment
from tests import collecting, products

prepare_environment()
os.environ.setdefault(FILL, "1")  # what reads memory that nobody has written shows, also in what tests launch
# The same examples each time: a change is refused for what it does, and `many` looks for new ones.
hypothesis.settings.register_profile("few", deadline=None, max_examples=products.FEW, derandomize=True)
hypothesis.settings.register_profile("many", deadline=None, max_examples=500)
hypothesis.settings.load_profile("few")
BUSY_S = 3600.0  # several commands in a test and its fixtures, on a machine with thirty other processes
sys.dont_write_bytecode = (
    False  # launched processes read what is compiled here; else each compiles all of orchestrator anew
)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup; what they start does not


def lacking() -> list[str]:
    """The markers of what cannot run here."""
    programs = {"emulator": ["qemu-x86_64"], "slurm": ["slurmctld", "slurmd", "munged"]}
    absent = [marker for marker, names in programs.items() if not all(map(shutil.which, names))]
    return [*absent, *(["root", "slurm"] if os.geteuid() else [])]


def pytest_configure(config: pytest.Config) -> None:
    collecting.begin(str(config.getoption("markexpr")), config.args)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting leaves little garbage, and what it makes stays: nothing looks for garbage there, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> collecting.ByFile | None:
    return collecting.ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return collecting.is_file_left_out(collection_path) or None


def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
    """An empty list: nothing is made of it."""
    return [] if collecting.is_left_out(obj) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest prints how many were deselected. Tests that start processes or are long have a longer limit, so that they meet
    it only when they hang."""
    for item in items:
        if any(item.get_closest_marker(marker) for marker in ("ray", "slow", "long")):
            item.add_marker(pytest.mark.timeout(BUSY_S))
    absent = lacking()
    unfit = [any(item.get_closest_marker(marker) for marker in absent) for item in items]
    if any(unfit):
        config.hook.pytest_deselected(items=[item for item, left_out in zip(items, unfit, strict=True) if left_out])
        items[:] = [item for item, left_out in zip(items, unfit, strict=True) if not left_out]


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, client.Message]]:
    """The place at which a fork server for workers listens, and the variables that it was started with."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        Path(os.environ["XDG_RUNTIME_DIR"], "orchestrator").mkdir(mode=0o700)
        launch, environ = launch_server.LaunchServer(), dict(os.environ)
    assert launch.place is not None
    yield str(launch.place), {"environ": environ}
    launch.close()


@pytest.fixture
def forked(fork_server: tuple[str, client.Message], monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of this process are forked, as those of a worker: milliseconds, where Python needs seconds to import torch."""
    monkeypatch.setattr(client, "came_from", fork_server)


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect() -> None:
    """A worker collects garbage before its first step (`allocator.give_back`), here among all that torch and pytest have made:
    half of the time of a small run. So what is there when a module begins is taken out of it."""
    gc.collect()
    gc.freeze()
