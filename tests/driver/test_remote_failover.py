"""The choice of a machine that goes on with a run when the head of its Ray is gone: what is known of the driver, and what one
machine alone does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cluster.actors import driver_failover
from orchestrator.common import locks
from orchestrator.driver.supervision import headless, leader_lease, remote_failover
from orchestrator.driver.supervision.headless import Workers
from orchestrator.driver.supervision.remote_failover import SILENT_S, UNHEARD_S, DriverSilence, RemoteFailoverTask
from orchestrator.driver.supervision.supervisor import Lines
from orchestrator.provenance.tracking import Driving, Store, Tracker
from tests.products import thinned
from tests.provenance.tracking.server import Server

ME, OTHER = ("1", "10", "here", "b"), ("2", "20", "there", "c")
TASK = RemoteFailoverTask(
    *("4e8d", "http://127.0.0.1:9", ME, ("orchestrator", "resume=4e8d", "cluster.address=head:1"), Workers(1, 4, 1.0)),
    ".orchestrator/4e8d/lock",
)
PATIENCE_S = 60


@given(st.lists(st.tuples(st.floats(0.1, SILENT_S - 0.1), st.booleans()), max_size=30))
def test_a_driver_that_tells_the_store_in_time_is_never_followed(looks: list[tuple[float, bool]]) -> None:
    """As often as it is looked at; it beats at the latest just before it would count as silent."""
    silence, now, last, beat = DriverSilence(ME, 0.0), UNHEARD_S, UNHEARD_S, 0
    silence.sees(now, Driving(True, ME, "0"))
    for after, beats in looks:
        now += after
        if beats or now - last >= SILENT_S:
            beat, last = beat + 1, now
        assert silence.sees(now, Driving(True, ME, str(beat))) == "waits"


@given(st.floats(0.1, 20.0), st.sampled_from([None, "7"]))
def test_one_that_tells_it_nothing_is_followed_once_it_counts_as_silent(every: float, beat: str | None) -> None:
    silence, now = DriverSilence(ME, 0.0), UNHEARD_S
    assert silence.has_to_ask(now)
    while (verdict := silence.sees(now, Driving(True, ME, beat))) == "waits":
        now += every
    assert verdict == "goes on"
    assert SILENT_S <= now - UNHEARD_S < SILENT_S + every + 1e-6


@pytest.mark.parametrize("driving", [Driving(False, ME, None), Driving(True, OTHER, None), Driving(False, OTHER, "3")])
def test_a_run_that_has_ended_or_is_driven_by_another_process_is_left(driving: Driving) -> None:
    silence = DriverSilence(ME, 0.0)
    assert silence.sees(UNHEARD_S, Driving(True, ME, None)) == "waits"
    assert silence.sees(UNHEARD_S + 2 * SILENT_S, driving) == "leaves"


def test_who_is_heard_again_is_asked_about_from_the_beginning_later() -> None:
    silence = DriverSilence(ME, 0.0)
    silence.sees(UNHEARD_S, Driving(True, ME, "1"))
    silence.hears(UNHEARD_S + 1)
    assert not silence.has_to_ask(2 * UNHEARD_S)
    later = 10 * SILENT_S
    assert silence.sees(later, Driving(True, ME, "1")) == "waits"
    assert silence.sees(later + SILENT_S, Driving(True, ME, "1")) == "goes on"


def test_while_the_store_does_not_answer_no_time_passes() -> None:
    silence = DriverSilence(ME, 0.0)
    silence.sees(UNHEARD_S, Driving(True, ME, "1"))
    silence.is_not_answered()
    back = UNHEARD_S + 3 * SILENT_S
    assert silence.sees(back, Driving(True, ME, "1")) == "waits"
    assert silence.sees(back + SILENT_S, Driving(True, ME, "1")) == "goes on"


def test_who_would_go_on_waits_for_the_lock_of_a_folder_that_all_machines_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock of a machine that is gone outlasts it: whoever took over was refused, and nobody tried again."""
    monkeypatch.chdir(tmp_path)
    for name in ("UNHEARD_S", "SILENT_S", "_ASK_S"):
        monkeypatch.setattr(remote_failover, name, 0.01)
    lock = tmp_path / TASK.lock
    lock.parent.mkdir(parents=True)
    held, asked = [locks.take(lock)], 0

    def driving(_: str) -> Driving:
        nonlocal asked
        asked += 1
        if asked == 20:
            os.close(held.pop())
        return Driving(True, ME, "1")

    monkeypatch.setattr(remote_failover, "Store", lambda *_: SimpleNamespace(driving=driving))
    heard, told = os.pipe()
    try:
        assert remote_failover._is_wanted(TASK, Lines(heard), [])
    finally:
        os.close(heard)
        os.close(told)
    assert asked == 20
    assert capsys.readouterr().err.count("its end is waited for") == 1


@given(st.integers(1, 8), st.integers(0, 8), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.integers(1, 64))
def test_as_many_workers_as_have_room_and_never_too_few(least: int, more: int, cpus: float, cores: int) -> None:
    found = Workers(least, least + more, cpus).on(cores)
    assert least <= found <= least + more
    assert found == least or found * max(cpus, 1.0) <= cores
    assert found == least + more or (found + 1) * max(cpus, 1.0) > cores


def test_of_the_ray_that_is_gone_nothing_is_asked() -> None:
    given = ["orchestrator", "resume=4e8d", "cluster.address=head:1", "cluster.workers={min: 1, max: 9}", "run.steps=9"]
    assert headless.words([*given, "cluster.spares=2", "cluster.speeds=[a=2]"], Workers(1, 9, 1.0), 4) == [
        *("orchestrator", "resume=4e8d", "run.steps=9"),
        *("cluster.address=null", "cluster.workers=4", "cluster.speeds=[]"),
    ]


def test_a_task_is_understood_as_it_was_told() -> None:
    assert RemoteFailoverTask.of(TASK.as_json()) == TASK


def test_who_is_superseded_says_by_whom() -> None:
    said = leader_lease.superseded("4e8d", Driving(True, OTHER, None), "http://server:5000")
    assert said.startswith("error: process 2 on there goes on with run 4e8d")
    assert said.endswith("resume=4e8d tracking.uri=http://server:5000")


@pytest.mark.slow
@pytest.mark.parametrize("word", thinned(["over", None], 2))
def test_it_outlives_who_has_started_it_and_ends_when_all_is_over(tmp_path: Path, word: str | None) -> None:
    """None: what it hears ends without a word, and then nobody but the store is asked, which does not answer."""
    process = subprocess.Popen(
        [sys.executable, "-m", remote_failover.__name__], stdin=subprocess.PIPE, cwd=tmp_path, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(f"{TASK.as_json()}\nbeat\n".encode())
    process.stdin.flush()
    assert process.wait(PATIENCE_S) == 0
    (pid,) = _of_session(process.pid)
    assert not driver_failover.has_left(process)
    if word is None:
        process.stdin.close()
        assert _of_session(process.pid) == [pid]
        os.kill(pid, 9)
    else:
        driver_failover.write_line(process, word)
    deadline = time.monotonic() + PATIENCE_S
    while _of_session(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if word is not None:
        assert driver_failover.has_left(process)
        process.stdin.close()


def _of_session(number: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == number and state != "Z":
            found.append(int(stat.parent.name))
    return found


_DRIVER = """
import sys, threading
from pathlib import Path
from orchestrator.driver.supervision import leader_lease
from orchestrator.provenance.tracking import Store, Tracker
leader_lease.EVERY_S = 0.05
store = Store(sys.argv[1] or None, Path.cwd())
run_id = Tracker.create(store, store.experiment("e"), "named", every_s=1.0).run_id
with leader_lease.hold_lease(store, run_id, lambda: print("released", flush=True)):
    print(run_id, flush=True)
    threading.Event().wait()
"""


@contextlib.contextmanager
def _uri(kind: str, folder: Path) -> Iterator[str | None]:
    """The address of a store. None is the file that a project has if no server is named."""
    if kind == "file":
        yield None
        return
    server = Server(folder)
    server.start()
    try:
        yield server.uri
    finally:
        server.stop()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore:The ..noload.. loader strategy is deprecated")  # MLflow's own use of SQLAlchemy
@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "server"])
def test_a_driver_tells_the_store_that_it_lives_and_ends_when_another_process_has_its_run(
    tmp_path: Path, kind: str
) -> None:
    with _uri(kind, tmp_path) as uri:
        driver = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, uri or ""],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert driver.stdout is not None
        run_id = driver.stdout.readline().strip()
        store = Store(uri, tmp_path)
        told = {store.driving(run_id).beat}
        while len(told) < 3:
            assert driver.poll() is None, driver.communicate()
            told.add(store.driving(run_id).beat)
        assert store.driving(run_id).is_running
        Tracker.reopen(store, run_id, every_s=1.0)
        out, err = driver.communicate(timeout=PATIENCE_S)
    assert (driver.returncode, out) == (1, "released\n")
    assert err.startswith(f"error: process {os.getpid()} on ")
