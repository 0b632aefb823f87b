"""Definitions of a notebook as a module: the smallest one that has them, or a refusal that names what has no source."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigurationError
from orchestrator.provenance.code import cells
from tests.refusals import refused

NET = "import torch.nn as nn\nclass Net:\n    def model(self):\n        return nn.Linear(WIDTH, half(8))\n"
HALF = "def half(n):\n    return n // 2\n"


def executed(monkeypatch: pytest.MonkeyPatch, *sources: str) -> dict[str, Any]:
    """The names of a `__main__` in which these cells were executed; a cell that raises has done what stands before."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for number, source in enumerate(sources):
        exec(compile(source, f"<cell {number}>", "exec", dont_inherit=True), vars(main))
    return vars(main)


def module_of(monkeypatch: pytest.MonkeyPatch, *sources: str, wanted: str = "Net") -> dict[str, Any]:
    """The names of the module that is made for `wanted`, imported where nothing of the notebook is."""
    text = cells.module_of([wanted], sources, executed(monkeypatch, *sources), "of a test")
    module = ModuleType("notebook_cells")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look
    exec(compile(text, "notebook_cells.py", "exec", dont_inherit=True), vars(module))
    return {**vars(module), "text": text}


def test_what_a_class_needs_comes_along_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module_of(monkeypatch, "WIDTH = 4\nleft = object()", HALF, "print(half(2))\nraised = 1", NET)
    assert made["Net"]().model().weight.shape == (4, 4)
    assert made["text"].startswith('"""of a test"""\n\nimport torch.nn as nn\nWIDTH = 4\n\n\ndef half(n):')
    assert not {"left", "raised"} & made.keys()


def test_a_definition_is_the_one_that_was_executed_last_and_values_are_those_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = module_of(monkeypatch, "WIDTH = 4", NET, HALF, "def half(n):\n    return n", "WIDTH *= 2")
    assert made["Net"]().model().weight.shape == (8, 8)
    assert made["text"].count("def half") == 1


def test_a_cell_that_was_edited_and_not_executed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed(monkeypatch, HALF)
    text = cells.module_of(["half"], [HALF, "def half(n):\n    return n // 3"], names, "t")
    assert "n // 2" in text
    assert "n // 3" not in text


LATER = "class Net(Base):\n    size: Pair = Pair(1, 2)\n    @deco\n    def f(self):\n        return act(self.size.a)\n"
BEFORE = (
    "from collections import namedtuple\nimport functools as ft, os.path\nPair = namedtuple('Pair', 'a b')\n"
    "def deco(f):\n    @ft.wraps(f)\n    def g(*a):\n        return f(*a) + len(os.path.sep)\n    return g\n"
    "class Base: pass\nact = lambda x: [x + ONE for _ in range(3)][0]\nONE = 1\n"
)


def test_bases_decorators_lambdas_and_named_tuples_stand_before_what_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert module_of(monkeypatch, BEFORE + LATER)["Net"]().f() == 3


VALUES = (
    "import torch\nfrom pathlib import Path\nPLACE = Path('data') / 'x'\nKIND = torch.float32\nCARD = torch.device('cuda', 1)\n"
    "class Net:\n    def f(self):\n        return PLACE, KIND, CARD, Path\n"
)


def test_paths_types_and_devices_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found = module_of(monkeypatch, VALUES)["Net"]().f()
    assert found == (Path("data/x"), torch.float32, torch.device("cuda", 1), Path)


DATA = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Net:\n    n: Missing = 3\n"


PLAIN = st.recursive(
    st.integers() | st.text(max_size=3) | st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    lambda below: (
        st.lists(below, max_size=3)
        | st.lists(below, max_size=3).map(tuple)
        | st.dictionaries(st.text(), below, max_size=3)
    ),
)


@given(PLAIN)
def test_values_are_written_as_python_writes_them(value: Any) -> None:
    assert cells._text(value) == repr(value)


def test_a_set_is_written_in_one_order_whatever_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order hangs on the seed of hashes, which is another one in each notebook."""
    kept = [f"class {number}" for number in range(20)]
    made = module_of(monkeypatch, f"KEPT = {{*{kept}}}\nclass Net:\n    kept = [KEPT, (1, {{2}}), set()]")
    assert made["Net"].kept == [{*kept}, (1, {2}), set()]
    assert f"KEPT = {{{', '.join(map(repr, sorted(kept)))}}}\n" in made["text"]


def test_a_dataclass_whose_annotations_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module_of(monkeypatch, DATA)["Net"]().n == 3


@pytest.mark.parametrize(
    ("code", "sources"),
    [
        ("cells.computed", ["import torch", "W = torch.ones(2)", "class Net:\n    def f(self): return W"]),
        ("cells.computed", ["W = list(range(9999))", "class Net:\n    def f(self): return W"]),
        ("cells.computed", ["W = []\nW.append(W)", "class Net:\n    def f(self): return W"]),
        ("cells.computed", ["W = float('nan')", "class Net:\n    def f(self): return W"]),
        ("cells.undefined", ["class Net:\n    def f(self): return W"]),
        ("cells.of-notebooks", ["class Net:\n    def f(self): display(self)"]),
        ("cells.no-source", ["exec('def g(): pass')", "class Net:\n    def f(self): return g()"]),
        ("cells.changed", ["class Net:\n    def f(self): pass", "def f(self): return 1\nNet.f = f"]),
        ("cells.changed", ["def make(n):\n    def g(): return n\n    return g\ng = make(1)", "class Net:\n    g = g"]),
        ("cells.same-name", ["class Net: pass", "class Net(Net):\n    def f(self): pass"]),
        ("cells.earlier", ["class A: pass\nB = A\nclass A(B): pass", "class Net(B): pass"]),
        (
            "cells.older-base",
            ["class A: pass", "class Net(A): pass", "class A:\n    x = 1"],
        ),
    ],
)
def test_what_has_no_source_is_refused(code: str, sources: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(code):
        module_of(monkeypatch, *sources)


def test_all_are_told_at_once_with_who_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import io\nA = io.StringIO()\nB = io.StringIO()\nclass Net:\n    def f(self): return A, g()\ndef g(): return B"
    )
    with pytest.raises(ConfigurationError) as caught:
        module_of(monkeypatch, source)
    assert sorted(caught.value.problems) == [
        "A: its value, of StringIO, was computed in a cell, and has no source; Net uses it",
        "B: its value, of StringIO, was computed in a cell, and has no source; g uses it",
    ]


def test_names_of_a_star_import_are_imported_from_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module_of(
        monkeypatch, "from functools import *\nclass Net:\n    @cached_property\n    def f(self): return 1"
    )
    assert made["cached_property"] is functools.cached_property
