"""Private names of a library are used in these files alone, for these reasons.

A name is found where it is imported, or read as an attribute of what is imported. `torch.utils._pytree` and
`torch.utils._python_dispatch` are what torch's own pages on extending it import.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.common import tested_versions
from orchestrator.common.tested_versions import Tried

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "orchestrator"
LIBRARIES = ("ray", "torch", "mlflow", "numba", "llvmlite", "dvc", "optuna", "pandas", "litdata", "numpy", "sqlalchemy")
WITHOUT = ("torch.utils._pytree", "torch.utils._python_dispatch.TorchDispatchMode")
INSPECTED = re.compile(r"inspect_llvm")  # has a public name, and a text that no version promises
PINNED = ("torch", "mlflow")  # what pyproject.toml allows is what was tested

# Left out, or done another way, with other versions than `tested_versions` names.
GATED = {
    "cluster/sessions/joined.py": "draining, the token and the raylet of a Ray that is joined",
    "cluster/sessions/local.py": "a private Ray of fewer processes, at the loopback alone",
    "cluster/sessions/workers.py": "forked workers",
    "numerics/compiled.py": "loops that are kept as machine code",
}
# An insides' name that is missing costs a convenience, or the call is refused; no result depends on it.
UNGATED = {
    "cluster/placement/project_transfer.py": "no public way takes what git ignores; without it the launch is refused",
    "cluster/placement/reservation.py": "falls back to the public total where Ray does not tell of each node",
    "cluster/sessions/environment.py": "a function that Ray does not have is left as it is",
    "data/files/readers/litdata.py": "litData's own table of its types; an optional reader",
}
# Of torch, which is pinned to the tested version.
OF_TORCH = {
    "checkpoint/parts.py": "one copy of many tensors",
    "numerics/determinism.py": "the public function imports torch's compiler, a second",
    "numerics/portable/conformance/drawing.py": "where torch itself begins a backward pass",
    "numerics/portable/conformance/optimizers.py": "operators of which none is noted",
    "numerics/portable/conformance/reductions.py": "an operator that optimizers call is tried",
    "numerics/portable/operator_overrides.py": "oneDNN's switch of this thread, and the LSTM beneath torch.lstm",
    "numerics/staging.py": "one copy of many tensors",
    "optim/chunked_step.py": "one copy of many tensors",
    "optim/clipping.py": "one product of many tensors",
    "provenance/environment/node.py": "where torch's libraries lie",
    "worker/model/construction.py": "the class of all batch norms",
    "worker/model/moving_buffers.py": "the classes of norms with moving buffers",
    "worker/model/replica.py": "one copy of many tensors",
    "worker/model/sharded_optimizer.py": "one copy of many tensors",
    "worker/pipeline_parallel/boundary.py": "a tensor beneath its subclass, as torch's page on extending it says",
    "worker/pipeline_parallel/fake_tensors.py": "a tensor beneath its subclass, as torch's page on extending it says",
    "worker/pipeline_parallel/stubs.py": "a tensor beneath its subclass, as torch's page on extending it says",
    "worker/pipeline_parallel/trainer.py": "one norm of many tensors",
    "worker/serving/served.py": "as numerics/determinism.py",
}
LISTED = {**GATED, **UNGATED, **OF_TORCH}


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def private_names(source: str) -> Iterator[str]:
    """Of `LIBRARIES`, with their dots."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {
                each.asname or each.name.partition(".")[0]: each.name if each.asname else each.name.partition(".")[0]
                for each in node.names
            }
            yield from (each.name for each in node.names if _of_library(each.name))
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            imported |= names
            yield from filter(_of_library, names.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = _dotted(node).partition(".")
            name = f"{imported.get(head, '')}.{rest}"
            if _of_library(name):
                yield name
            if INSPECTED.fullmatch(node.attr):
                yield node.attr


def _dotted(node: ast.expr) -> str:
    """`a.b.c`; "" for what is an attribute of anything but names."""
    if isinstance(node, ast.Name):
        return node.id
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def _of_library(name: str) -> bool:
    return name.partition(".")[0] in LIBRARIES and _is_private(name) and not name.startswith(WITHOUT)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import ray._private.services", ["ray._private.services"]),
        ("from torch import _C", ["torch._C"]),
        ("import torch\ntorch._C", ["torch._C"]),
        ("import torch as t\nt.nn._x", ["torch.nn._x"]),
        ("from ray import util\nutil._y", ["ray.util._y"]),
        ("made.inspect_llvm()", ["inspect_llvm"]),
        ("import torch\ntorch.__version__", []),
        ("from torch.utils._pytree import tree_leaves", []),
        ("self._own", []),
    ],
)
def test_a_private_name_is_found(source: str, found: list[str]) -> None:
    assert list(private_names(source)) == found


def test_private_names_stand_in_listed_files_alone() -> None:
    found = {
        str(file.relative_to(PACKAGE)): names
        for file in sorted(PACKAGE.rglob("*.py"))
        if (names := set(private_names(file.read_text(encoding="utf-8"))))
    }
    assert {name: names for name, names in found.items() if name not in LISTED} == {}
    assert set(LISTED) - set(found) == set(), "nothing private is used there any more"
    of_torch = {name for name, names in found.items() if all(each.startswith("torch") for each in names)}
    assert of_torch == set(OF_TORCH)


@pytest.mark.parametrize("name", GATED)
def test_what_is_gated_asks_for_the_version(name: str) -> None:
    assert re.search(r"(RAY|NUMBA)\.is_here", (PACKAGE / name).read_text(encoding="utf-8"))


def _told() -> dict[tuple[str, str], set[str]]:
    """(library, version) -> the files that the table of docs/architecture.md names."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("What hangs on the insides of a library")[2].partition("\nBeside them stand")[0]
    rows = re.findall(r"^\| (\w+) (\d[\d.]*) \| `([\w/.]+)`", table, re.MULTILINE)
    return {
        (library, version): {file for *of, file in rows if of == [library, version]} for library, version, _ in rows
    }


def test_the_page_names_the_tested_versions_and_who_asks_for_them() -> None:
    tried = {name: each for name, each in vars(tested_versions).items() if isinstance(each, Tried)}
    files = {
        str(file.relative_to(PACKAGE)): set(re.findall(r"\b([A-Z]+)\.is_here", file.read_text(encoding="utf-8")))
        for file in PACKAGE.rglob("*.py")
        if file.name != "tested_versions.py"
    }
    assert _told() == {
        (each.package, version): {file for file, names in files.items() if name in names}
        for name, each in tried.items()
        for version in each.versions
    }


@pytest.mark.parametrize("package", PINNED)
def test_what_is_pinned_was_tested(package: str) -> None:
    """No other version can be installed, so none has to be asked for."""
    range_ = re.search(
        rf'"{package}>=(\d+)\.(\d+),<(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert range_ is not None
    major, minor, end_major, end_minor = map(int, range_.groups())
    assert (end_major, end_minor) == (major, minor + 1)
    tried: Tried = getattr(tested_versions, package.upper())
    assert tried.versions == (f"{major}.{minor}",)
