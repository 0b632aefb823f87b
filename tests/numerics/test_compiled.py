"""The limits of the compiler, and the folders in which it keeps its work."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numba
import numpy
import pytest
import torch

from orchestrator.common import file_cache
from orchestrator.numerics import compiled, exact, loops
from orchestrator.numerics.exact import Accumulator
from orchestrator.numerics.grid import Grid
from orchestrator.numerics.layout import BLOCK, Layout


def _nearly_a_tie() -> tuple[float, float]:
    """A float32 and a weight whose product is a little more than 2.5, and 2.5 when it is rounded to float64."""
    for k in range(1, 1000):
        value = 1 + k * 2.0**-23
        weight = 2.5 / value
        if Fraction(value) * Fraction(weight) > Fraction(5, 2) and value * weight == 2.5:
            return value, weight
    raise AssertionError("there is one among so many")


@pytest.mark.parametrize("shards", [1, 4, 5])
def test_a_product_is_rounded_before_it_is_added(shards: int) -> None:
    """A fused multiplication and addition, which this processor has, would see more than a tie and round up to 3."""
    value, weight = _nearly_a_tie()
    layout = Layout.of([("a", torch.empty(67))])
    total = torch.zeros(layout.size, dtype=torch.float64)
    accumulator = Accumulator(layout, total, exact=True)
    for _ in range(shards):
        accumulator.add([torch.full((67,), value)], weight, Grid((0,), shards))
    accumulator.complete()
    assert layout.views(total)[0].tolist() == [2.0 * shards] * 67


def test_what_loops_and_their_callers_both_take_for_granted_is_the_same() -> None:
    assert (loops.BLOCK, loops.PIECE) == (BLOCK, exact._PIECE)


@pytest.mark.long
@pytest.mark.slow
def test_loops_are_made_though_a_user_debugs_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = numba.config
    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    assert set(compiled._made()) == set(compiled._signatures())
    assert config.DISABLE_JIT == 1


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders in which machine code is kept in a test; to be asked for after `construction`."""
    found = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setattr(compiled, "_folders", lambda: iter(found))
    return found


@pytest.fixture
def construction(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a word for each time that loops are made; what is made is taken from the cache of these tests."""
    made: list[str] = []
    kept = file_cache.read(compiled._folders(), f"loops-{compiled._version()}.o")
    assert kept is not None
    objects = compiled._unpacked(kept)

    def make() -> dict[str, bytes]:
        made.append("made")
        return objects

    monkeypatch.setattr(compiled, "_made", make)
    return made


def _adds(found: compiled.Loops) -> bool:
    total, last, scratch = numpy.ones(BLOCK), numpy.full(BLOCK, 2.0), numpy.empty(BLOCK)
    result = numpy.zeros(BLOCK, numpy.float32)
    parts = numpy.array([total.ctypes.data, last.ctypes.data])
    found["divide float64"](parts.ctypes.data, 2, BLOCK, 2.0, True, result.ctypes.data, 0, scratch.ctypes.data)
    return bool((result == 1.5).all())


def test_loops_are_made_once_and_then_read(construction: list[str], folders: list[Path]) -> None:
    assert _adds(compiled.Loops())
    assert _adds(compiled.Loops())
    assert construction == ["made"]
    assert [[file.suffix for file in folder.iterdir()] for folder in folders] == [[".o"]] * len(folders)


def test_what_another_checkout_made_is_found(construction: list[str], folders: list[Path]) -> None:
    compiled.Loops().load()
    next(folders[0].iterdir()).unlink()
    assert _adds(compiled.Loops())
    assert construction == ["made"]


def test_a_folder_that_takes_nothing_is_passed_over(construction: list[str], folders: list[Path]) -> None:
    folders[0].write_text("no folder")
    assert _adds(compiled.Loops())
    assert _adds(compiled.Loops())
    assert construction == ["made"]


def test_without_a_folder_to_write_to_each_process_makes_them(construction: list[str], folders: list[Path]) -> None:
    for folder in folders:
        folder.write_text("no folder")
    assert _adds(compiled.Loops())
    assert construction == ["made"]


def test_a_damaged_file_is_made_again(construction: list[str], folders: list[Path]) -> None:
    compiled.Loops().load()
    files = [next(folder.iterdir()) for folder in folders]
    whole = files[0].read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + b"?" + whole[41:]):
        for file in files:
            file.write_bytes(damaged)
        assert _adds(compiled.Loops())
        assert [file.read_bytes() for file in files] == [whole] * len(files)
    assert len(construction) == 4


def test_another_numba_or_processor_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {compiled._version()}
    monkeypatch.setenv("NUMBA_OPT", "1")
    versions.add(compiled._version())
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_name", lambda: "another")
    versions.add(compiled._version())
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "another")
    versions.add(compiled._version())
    assert len(versions) == 4
