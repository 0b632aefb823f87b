"""Golden digests: what the golden runs come to on every processor, native or emulated (`golden.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.numerics.portable import checking
from tests.portable.answering import MODELS
from tests.portable.golden import GOLDEN, ROOT, environment

EMULATED = ("Haswell-v4", "EPYC-Rome-v2")  # AVX2, of Intel and of AMD; qemu has no AVX-512
_QUIET = ("-W", "ignore")  # an emulator lacks what a library then warns of


def output(*command: str) -> dict[str, object]:
    """The JSON object that this command of Python prints, in a process that computes portably."""
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def assert_golden(runs: tuple[str, ...], *emulator: str) -> None:
    found = output(*emulator, sys.executable, *_QUIET, "-m", "tests.portable.golden", *runs)
    named = [run.partition("=") for run in runs]
    assert found == {f"{name}={steps}": GOLDEN[name][steps] for name, _, steps in named}


@pytest.mark.slow
def test_the_runs_have_their_golden_digests() -> None:
    """Those of the digits are trained by the commands of the README."""
    assert_golden(("convolutions=3", "lstm=3"))


@pytest.mark.slow
@pytest.mark.long
def test_also_after_many_steps() -> None:
    assert_golden(("digits=60", "digits=400", "characters=3", "characters=20", "convolutions=30", "lstm=30"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.emulator
@pytest.mark.parametrize("processor", EMULATED)
def test_an_emulated_processor_comes_to_the_golden_digests(processor: str) -> None:
    runs = ("digits=5", "characters=3", "convolutions=3", "lstm=3")
    assert_golden(runs, "qemu-x86_64", "-cpu", processor)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.emulator
@pytest.mark.parametrize("processor", EMULATED)
def test_an_emulated_processor_agrees_on_the_page_of_operators(processor: str) -> None:
    command = (sys.executable, *_QUIET, "-m", "orchestrator.numerics.portable")
    found = output("qemu-x86_64", "-cpu", processor, *command)
    assert found["torch"] == checking.known_torch()
    hashes = found["hashes"]
    assert isinstance(hashes, dict)
    known = {name: entry.hash for name, entry in checking.known().items() if entry.hash is not None}
    assert {name: hashes[name] for name in known} == known


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.emulator
def test_what_is_served_has_the_same_bits_on_emulated_processors() -> None:
    """In batches of several sizes, of several models."""
    command = (sys.executable, *_QUIET, "-m", "tests.portable.answering")
    here = output(*command)
    assert set(here) == set(MODELS)
    for processor in EMULATED:
        assert output("qemu-x86_64", "-cpu", processor, *command) == here


def test_the_digest_of_the_demo_stands_in_the_readme() -> None:
    assert f"digest   {GOLDEN['digits']['400'][:16]}..." in Path(ROOT / "README.md").read_text()
