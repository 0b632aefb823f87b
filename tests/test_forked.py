"""Forks of one process run all tests that it has collected, and tell it all, also where tests end them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.projects import REPOSITORY

pytestmark = pytest.mark.slow

TESTS = """
import os
import signal

import pytest


@pytest.fixture(scope="module")
def made():
    return os.getpid()


def test_one_passes(made): pass


def test_one_fails(made):
    print("said by Python")
    os.write(1, b"said by a system call")
    assert made == 0


def test_one_crashes(made): os.kill(made, signal.SIGKILL)


def test_one_comes_after_that(made): assert made == os.getpid()


def test_one_leaves(made): os._exit(0)
"""
PASSES = "def test_it_passes(): pass\n"


def test_all_tests_are_run_and_told_though_some_end_their_process(tmp_path: Path) -> None:
    for name in "ace":
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    for name in "bd":
        (tmp_path / f"test_{name}.py").write_text(PASSES)
    options = ["-p", "tests.forked", "--forks", "2", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stderr
    assert "9 failed, 8 passed" in done.stdout
    text = re.sub(r"assert \d+ == 0", "assert number == 0", done.stdout)
    told = Counter(re.findall(r"^FAILED .*::(test_\w+) - (.*)", text, re.MULTILINE))
    assert sorted(told) == [
        ("test_one_crashes", "the process that ran this test has ended with -9"),
        ("test_one_fails", "assert number == 0"),
        ("test_one_leaves", "the process that ran this test has ended with 0"),
    ]
    assert set(told.values()) == {3}
    assert done.stdout.count("\nsaid by Python\nsaid by a system call\n") == 3
