"""To import a module changes nothing outside of it: no library is patched, and no machine code is loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sources import PACKAGE, Source, package

# Effects on a class or a table that the same module makes, and those that can be of use at no other time.
ALLOWED = {
    "__init__.py: Try": "of its own imports, of which one that a file of the project has hidden is named",
    "__init__.py: moved.install()": "old names of modules, which a promise keeps, are found by whoever imports them",
    "cluster/actors/host_turns.py: os.register_at_fork()": "of this module's own turns, which a forked process lets go",
    "common/kernel_calls.py: _libc.syscall.restype": "of this module's own handle of libc",
    "comm/transports/shared_memory.py: _libc.mmap.restype": "of this module's own handle of libc",
    "comm/transports/shared_memory.py: _libc.mmap.argtypes": "of this module's own handle of libc",
    "comm/transports/shared_memory.py: _libc.munmap.argtypes": "of this module's own handle of libc",
    "config/settings/sources.py: Loader.add_implicit_resolver()": "of a class that is made there",
    "config/settings/sources.py: Loader.yaml_implicit_resolvers": "of a class that is made there",
    "config/settings/sources.py: _Dumper.yaml_implicit_resolvers": "of a class that is made there",
    "config/settings/views.py: _Dumper.add_representer()": "of a class that is made there",
    "data/files/places.py: _ONE_TRY['s3a']": "of a table that is made there",
}
PROGRAM = """
import sys
import torch
usual = dict(vars(torch.optim.Optimizer)), dict(vars(torch.optim.SGD)), torch.lstm
from orchestrator.numerics import determinism, exact
from orchestrator.optim import optimizers
from orchestrator.numerics.portable import operator_overrides
assert (dict(vars(torch.optim.Optimizer)), dict(vars(torch.optim.SGD)), torch.lstm) == usual
assert not {"numba", "llvmlite", "torch._dynamo"} & set(sys.modules)
model = torch.nn.Linear(2, 2)
optimizers.build("sgd", {}, model).step()
assert "torch._dynamo" not in sys.modules
"""


def effects(read: Source) -> Iterator[str]:
    """The effects of a module at its top level besides binding names of its own."""
    for node in read.tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield f"{ast.unparse(node.value.func)}()"
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            yield from (ast.unparse(each) for each in targets if isinstance(each, ast.Attribute | ast.Subscript))
        elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            yield type(node).__name__


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch.lstm = None", ["torch.lstm"]),
        ("install(CLASSES)", ["install()"]),
        ("for each in (1, 2):\n    print(each)", ["For"]),
        ("del os.environ['A']", ["os.environ['A']"]),
        ("TABLE = Table('x')\n'a text'\ndef f():\n    torch.lstm = None", []),
    ],
)
def test_an_effect_is_found(source: str, found: list[str]) -> None:
    assert list(effects(Source(source))) == found


@pytest.mark.slow
def test_modules_have_no_effect_when_they_are_imported() -> None:
    found = {f"{file.relative_to(PACKAGE)}: {effect}" for file, read in package().items() for effect in effects(read)}
    assert found == set(ALLOWED)


@pytest.mark.long
@pytest.mark.slow
def test_torch_is_patched_when_the_first_optimizer_is_built_and_machine_code_loaded_when_it_is_needed() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
