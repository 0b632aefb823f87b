"""The tests that `-m` leaves out are seen in the text of a file, in decorators and in products; a named file is collected
whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import collecting
from tests.products import thinned
from tests.sources import ROOT

QUICK = "not ray and not long"


@pytest.mark.long
def _minutes() -> None: ...


@pytest.mark.slow
def _seconds() -> None: ...


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = set(collecting._left_out)
    yield
    collecting._left_out.clear()
    collecting._left_out.update(before)


@pytest.mark.parametrize(
    ("expression", "marks"),
    [
        ("", set()),
        ("long", set()),
        (QUICK, {"ray", "long"}),
        ("slow and not long", {"long"}),
        ("not (ray and long)", set()),
        ("not ray or slow", set()),
    ],
)
def test_an_expression_leaves_out_what_it_says_and_no_more(expression: str, marks: set[str]) -> None:
    assert collecting.marks_left_out(expression) == marks


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("pytestmark = pytest.mark.ray\n", True),
        ("pytestmark = pytest.mark.slow\nLATER = [pytest.mark.ray]\n", False),
        ("pytestmark = [\n    pytest.mark.slow,\n    pytest.mark.long,  # they take minutes\n]\n", True),
        ("pytestmark = [pytest.mark.slow]\nCASES = [pytest.mark.ray]\n", False),
        ("@pytest.mark.ray\ndef test_it() -> None: ...\n", False),
    ],
)
def test_a_file_is_left_out_by_its_own_marks(text: str, left_out: bool, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(text)
    collecting.begin(QUICK, ["tests"])
    assert collecting.is_file_left_out(tmp_path / "test_it.py") is left_out
    collecting.begin(QUICK, ["tests/test_it.py::test_one"])
    assert not collecting.is_file_left_out(tmp_path / "test_it.py")


def test_a_test_is_left_out_by_its_decorators() -> None:
    collecting.begin(QUICK, [])
    assert collecting.is_left_out(_minutes)
    assert not collecting.is_left_out(_seconds)
    assert not collecting.is_left_out(pytest)


def test_of_a_product_those_are_made_that_are_run() -> None:
    collecting.begin(QUICK, [])
    assert thinned(range(7), 3, 1) == [1, 4]
    collecting.begin("", [])
    assert [case for case in thinned(range(7), 3, 1) if isinstance(case, int)] == [1, 4]
    assert len(thinned(range(7), 3, 1)) == 7


def test_files_that_need_the_same_go_to_one_process() -> None:
    assert collecting.unit("tests/test_prose.py") == collecting.unit("tests/test_docs.py")
    assert collecting.unit("tests/worker/test_loop.py") == "tests/worker/test_loop.py"
    assert all((ROOT / beginning).exists() for beginning in collecting.TOGETHER)
