"""Output that nobody reads any more ends no run; output that a program reads is written whole, or said not to be."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.driver.terminal import console, progress
from orchestrator.driver.terminal.console import Lasting
from orchestrator.driver.terminal.progress import Plain
from tests.products import thinned
from tests.projects import PATIENCE_S

pytestmark = pytest.mark.slow

PEOPLE = """
import sys
from orchestrator.driver.terminal import console
console.prepare()
for _ in range(3):
    print("step 1", file=sys.stderr, flush=True)
sys.exit(7)
"""
PROGRAMS = """
import sys
from orchestrator.driver.terminal import console
console.prepare()
sys.exit(console.answer("x" * 100_000, int(sys.argv[1])))
"""


def start(
    code: str, *arguments: str, out: int = subprocess.DEVNULL, err: int = subprocess.PIPE, closed: str = ""
) -> str:
    """ "CODE, STDERR" of a Python; closed: redirections of the shell."""
    command = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, timeout=PATIENCE_S)
    return f"{done.returncode}, {done.stderr or ''}"


@pytest.fixture
def unread() -> int:
    """A pipe that nobody reads from."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_program_without_streams_gets_some_that_go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service: a launch was an AttributeError, and Ray refused to start."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    progress.for_stream().say("on its way")
    with sys.stdout as out, sys.stderr as err:
        assert (out.name, err.name) == (os.devnull, os.devnull)


@pytest.mark.long
def test_a_log_that_takes_no_more_ends_nothing(unread: int) -> None:
    with open("/dev/full", "w") as full:
        assert start(PEOPLE, err=full.fileno()) == "7, "
    assert start(PEOPLE, err=unread) == "7, "
    os.close(unread)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_display_ends_nothing_either(terminal: bool) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:  # noqa: ARG002
            raise OSError(5, "Input/output error")

        def isatty(self) -> bool:
            return terminal

    display = progress.for_stream(Gone())
    display.start(2)
    display.step(2, 0.5)
    display.say("half of it is done")
    display.close()


def test_the_place_of_a_closed_stream_is_not_given_to_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code = f"import os; from orchestrator.driver.terminal import console\nconsole.prepare()\nfile = open({str(trace)!r}, 'w')\n"
    code += "os.write(1, b'!'); os.write(2, b'!'); print('!'); raise SystemExit('!' if file.fileno() < 3 else 7)"
    assert start(code, closed="0<&- >&- 2>&-") == "7, "
    assert trace.read_text() == ""


def test_a_name_that_the_terminal_cannot_show_is_escaped() -> None:
    code = "from orchestrator.driver.terminal import console\nconsole.prepare()\nprint('\u0141')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\\u0141\n", b"")


@pytest.mark.parametrize("code", thinned([0, 3], 2))
def test_an_answer_that_is_lost_is_said(code: int, unread: int) -> None:
    with open("/dev/full", "w") as full:
        said = "error: standard output could not be written: No space left on device\n"
        assert start(PROGRAMS, str(code), out=full.fileno()) == f"{code or 1}, {said}"
    assert start(PROGRAMS, str(code), out=unread) == f"{code}, "
    assert start(PROGRAMS, str(code), closed=">&-") == f"{code}, "
    os.close(unread)


def test_a_stream_that_takes_nothing_holds_nobody_up_and_tells_what_was_left_out() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        stream = Lasting(writer)
        for number in range(3000):
            print(f"line {number} {'x' * 40}", file=stream, flush=True)  # far more than a pipe holds
        held = reader.read1(1 << 20)
        print("the end", file=stream, flush=True)
        after = reader.read1(1 << 20).decode()
    assert held.startswith(b"line 0 ")
    assert "characters were left out here" in after
    assert after.endswith("the end\n")


TRICKS = ["\x1b]52;c;ZXZpbA==\x07", "\x9b2J", "\r", "\u202e", "\x08", "\ud800"]


@pytest.mark.parametrize("trick", TRICKS)
def test_what_others_have_written_moves_nothing_on_the_terminal(trick: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.tell(f"error: run {trick} is\tgone\n  see to it")
    console.answer(f"name {trick}", 0)
    Plain(sys.stderr).say(f"note: {trick} \x1b[31mred\x1b[0m")
    out, err = capsys.readouterr()
    assert err.startswith("error: run ")
    assert "is\tgone\n  see to it\n" in err
    assert "\x1b[31mred\x1b[0m" in err  # as a pipeline may print
    told = out + err.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert all(each.isprintable() for each in told if each not in "\n\t")
