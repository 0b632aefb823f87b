"""`make bench`: its table and picture are made from what was measured, and each of its rows can be (`--smoke`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.bench import (
    FULL,
    GROUPS,
    Act,
    Effort,
    Found,
    Group,
    Row,
    measure,
    table,
)
from benchmarks.memory import resident
from tests.projects import REPOSITORY, packages

FAST = Row("a sum", "ours", "gloo, 4 kB", "ms", 2.0)
CHEAP = Row("a checkpoint", "ours", "torch.save", "ms", 1.0, "cost")
SOON = Row("a start", "ours", "Ray Train", "s", 3.5, "value")
FREE = Row("no goal", "ours", "gloo, 4 kB", "ms", None)
OURS, PEER = [2.0, 1.0, 3.0], [4.0, 3.0, 6.0]


def group_of(*rows: Row, acts: Sequence[Act] = ()) -> Group:
    @contextmanager
    def taking_turns(_: Effort) -> Iterator[Sequence[Act]]:
        yield acts

    return Group(rows, taking_turns, 2)


def test_a_row_compares_medians_with_its_goal() -> None:
    found = {"some": {"ours": OURS, **{row.peer: PEER for row in (FAST, CHEAP, SOON)}}}
    assert table({"some": group_of(FAST, CHEAP, SOON, FREE)}, found).splitlines()[2:] == [
        "| a sum | 1 / 2 ms | gloo | 3 / 4 ms | 2 times as fast | 2 | met |",
        "| a checkpoint | 1 / 2 ms | torch.save | 3 / 4 ms | 0.5 times its cost | at most 1 | met |",
        "| a start | 1 / 2 s | Ray Train | 3 / 4 s | 2 s | at most 3.5 | met |",
        "| no goal | 1 / 2 ms | gloo | 3 / 4 ms | 2 times as fast |  |  |",
    ]


@pytest.mark.parametrize(("row", "short"), [(FAST, 1.99), (CHEAP, 1.01), (SOON, 3.51)])
def test_a_goal_that_is_missed_by_little_is_not_met(row: Row, short: float) -> None:
    assert row.goal is not None
    assert (row.met(row.goal), row.met(short), FREE.met(short)) == (True, False, None)


def test_who_fails_is_told_and_has_no_further_turn_and_the_others_have_theirs() -> None:
    turns = []

    def fails() -> Found:
        turns.append("fails")
        raise RuntimeError("no such key")

    group = group_of(FAST, acts=[fails, lambda: {"gloo, 4 kB": [2.0]}])
    found, reasons = measure(group, FULL)
    assert (found, reasons, turns) == ({"gloo, 4 kB": [2.0, 2.0]}, ["no such key"], ["fails"])
    assert "| a sum | | gloo | | not measured | 2 | |" in table({"some": group}, {"some": found})


def test_what_stands_between_the_marks_is_replaced_and_a_page_without_them_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: made by make bench -->\nold\n<!-- end of bench -->\nafter\n")
    pages.replace(page, "bench", r"new \1")
    assert page.read_text() == "before\n<!-- bench: made by make bench -->\nnew \\1\n<!-- end of bench -->\nafter\n"
    with pytest.raises(ValueError, match="0 parts between <!-- other"):
        pages.replace(page, "other", "new")


def test_a_page_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench: made by make bench -->\nold\n<!-- end of bench -->\n")
    assert pages.with_marks("bench")(str(page)) == page
    with pytest.raises(ArgumentTypeError, match="lacks the marks of gpu, gpu-checks"):
        pages.with_marks("bench", "gpu", "gpu-checks")(str(page))
    with pytest.raises(ArgumentTypeError, match=r"absent.md cannot be read: .*No such file"):
        pages.with_marks("bench")(str(tmp_path / "absent.md"))


def test_the_page_shows_every_row() -> None:
    """The page is that of the last run for the record."""
    said = (REPOSITORY / "docs" / "benchmarks" / "index.md").read_text()
    shown = re.findall(r"^\| (.*?) \|", said.partition("<!-- bench:")[2], re.MULTILINE)
    assert [name for name in (row.name for group in GROUPS.values() for row in group.rows) if name not in shown] == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", GROUPS)
def test_every_row_can_be_measured(name: str) -> None:
    """With tiny sizes. Ray Train needs what `make peers` installs."""
    variables = {**os.environ, "PYTHONPATH": str(packages("peers"))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", f"rows={name}", "--smoke"],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(GROUPS[name].rows)
    for _, ours, _, peer, *_ in rows:
        figures = [float(each) for each in re.findall(r"[\d.]+(?:e[-+]\d+)?(?= /| \w)", f"{ours} {peer}")]
        assert len(figures) == 4, (ours, peer)
        assert min(figures) > 0, (ours, peer)


def test_a_process_that_has_ended_holds_no_memory() -> None:
    """One that nobody has waited for yet still has its files in /proc."""
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert resident(str(process.pid)) is None
    assert resident(str(process.pid)) is None
    assert resident(str(os.getpid())) is not None
