"""The last activity of a dead member, read from memory that outlived it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.worker.member.crash_record import CrashRecord, CrashRecordReader
from orchestrator.worker.member.heartbeat import Heartbeat


@pytest.mark.slow
def test_it_tells_the_last_activity_of_a_process_that_was_killed() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_beat_and_be_killed, args=(there,))
    process.start()
    record = CrashRecordReader(*here.recv())
    assert record.last() is None
    here.send("go on")
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert record.last() == {"activity": "compute", "step": 2**40, "shard": 3, "beats": 2001}


def _beat_and_be_killed(pipe: Connection) -> None:
    record = CrashRecord()
    heartbeat = Heartbeat(record.note)
    pipe.send((os.getpid(), record.fd))
    pipe.recv()
    for step in range(1000):
        heartbeat.beat("update", step)
        heartbeat.rest()
    heartbeat.beat("compute", 2**40, 3)
    os.kill(os.getpid(), signal.SIGKILL)


def test_it_tells_what_the_pulse_tells() -> None:
    record = CrashRecord()
    heartbeat = Heartbeat(record.note)
    found = CrashRecordReader(os.getpid(), record.fd)
    heartbeat.enter(0)
    assert found.last() == heartbeat.snapshot()
    heartbeat.beat("compute", 0, 0)
    assert found.last() == heartbeat.snapshot()
    heartbeat.rest()
    assert found.last() == heartbeat.snapshot()


@given(
    st.sampled_from(["", "GPU-e0cbd06e-0d3d-4c3b-8b0b-5b1c5a1d5f0c", "MIG-e0cbd06e-0d3d-4c3b-8b0b-5b1c5a1d5f0c"]),
    st.integers(0, 5),
)
def test_it_tells_the_card_whatever_is_done_there(uuid: str, notes: int) -> None:
    record = CrashRecord()
    found = CrashRecordReader(os.getpid(), record.fd)
    assert found.card() == ""
    record.note_card(uuid)
    for step in range(notes):
        record.note("compute", step, None)
    assert found.card() == uuid
    assert (found.last() or {}).get("beats", 0) == notes
    found.close()
    os.close(record.fd)


def test_a_note_that_death_cut_off_is_not_told() -> None:
    record = CrashRecord()
    found = CrashRecordReader(os.getpid(), record.fd)
    record.note("update", 6, None)
    with pytest.raises(TypeError):
        record.note("compute", 7, "cut off")  # type: ignore[arg-type]
    assert found.last() == {"activity": "update", "step": 6, "shard": None, "beats": 1}


def test_who_has_closed_it_holds_no_descriptor() -> None:
    record = CrashRecord()
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = CrashRecordReader(os.getpid(), record.fd)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    found.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_no_crash_record_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as other, pytest.raises(FileNotFoundError, match="is no crash record"):
        CrashRecordReader(os.getpid(), other.fileno())
    with pytest.raises(FileNotFoundError):
        CrashRecordReader(os.getpid(), 10_000)
