"""The words for the end of a Ray; none is started."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orchestrator.cluster.sessions.diagnosis import diagnose, how, last_words

RAYLET = """\
[2026-01-01 10:00:00,000 I 7 7] (raylet) worker_pool.cc:564: Started worker process
[2026-01-01 10:00:01,000 I 7 7] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None
[2026-01-01 10:00:02,000 W 7 9] (raylet) store.cc:366: Disconnecting client
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "with exit status 0"), (-9, "killed by SIGKILL"), (-6, "killed by SIGABRT"), (-40, "killed by signal 40")],
)
def test_how_a_process_ended(code: int, said: str) -> None:
    assert how(code) == said


@pytest.mark.parametrize(
    ("code", "kills", "load", "said"),
    [
        (-signal.SIGKILL, 1, 1.0, "the kernel's out-of-memory killer has ended 1 process here meanwhile"),
        (-signal.SIGKILL, 0, 1.0, "the kernel's out-of-memory killer has ended no process here"),
        (-signal.SIGKILL, None, 1.0, "unless somebody killed it"),
        (0, 2, 1.0, "the kernel's out-of-memory killer has ended 2 processes here"),
        (0, 0, 140.0, "this machine is busy (load 140 on 2 cores)"),
        (1, None, 1.0, "start it again"),
    ],
)
def test_nobody_is_accused_without_evidence(code: int, kills: int | None, load: float, said: str) -> None:
    remedy = diagnose(code, kills, load, 2, None).remedy
    assert remedy.startswith(said)
    assert ("out-of-memory" in remedy) == ("out-of-memory" in said or "unless" in said)


def test_the_last_grave_lines_of_the_logs_are_kept(tmp_path: Path) -> None:
    (tmp_path / "raylet.out").write_text(RAYLET)
    (tmp_path / "raylet.err").write_text("*** SIGSEGV received ***\n")
    (tmp_path / "gcs_server.out").write_text("[2026-01-01 10:00:00,000 I 6 6] (gcs_server) all is well\n")
    said = last_words(tmp_path)
    assert said.splitlines() == [
        "raylet.out:",
        *RAYLET.splitlines()[1:],
        "",
        "raylet.err:",
        "*** SIGSEGV received ***",
    ]
    assert "error.txt" in diagnose(0, 0, 1.0, 2, tmp_path).remedy
    assert diagnose(0, 0, 1.0, 2, tmp_path).details == said


def test_logs_that_are_not_there_are_no_trouble(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == ""
