"""Private names of a library are used in these files alone, for these reasons.

A name is found where it is imported, read as an attribute of what is imported or of any object that is not of the same file,
asked for as text, or given as an argument's. `torch.utils._pytree`, `TorchDispatchMode` and `DisableTorchFunctionSubclass` are
what torch's own pages on extending it use.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Set

import pytest

from orchestrator.common import tested_versions
from orchestrator.common.tested_versions import Tables, Tried
from orchestrator.numerics import torch_names
from tests.sources import PACKAGE, ROOT, Source, package

LIBRARIES = ("ray", "torch", "mlflow", "numba", "llvmlite", "dvc", "optuna", "pandas", "litdata", "numpy", "sqlalchemy")
WITHOUT = (
    *("torch.utils._pytree", "torch.utils._python_dispatch.TorchDispatchMode"),
    "torch._C.DisableTorchFunctionSubclass",
)
INSPECTED = re.compile(r"inspect_llvm")  # has a public name, and a text that no version promises
DOCUMENTED = {  # with their underscore, by Python's own pages
    *("os._exit", "sys._getframe", "sys._current_frames"),
    *("._fields", "._asdict", "._replace", "._make"),
}
ASKING = ("getattr", "hasattr", "setattr", "delattr", "replaced", "_inside", "methodcaller", "attrgetter")
PINNED = ("mlflow", "optuna")  # what pyproject.toml allows is what was tested

# Left out, or done another way, with other versions than `tested_versions` names.
GATED = {
    "cluster/placement/project_transfer.py": "no public way takes what git ignores",
    "cluster/placement/reservation.py": "what is free on each node",
    "cluster/sessions/environment.py": "Ray's handler of signals, and its note of the command line",
    "cluster/sessions/isolation.py": "processes of a private Ray that signals to the launch do not reach",
    "cluster/sessions/joined.py": "draining, the token and the raylet of a Ray that is joined",
    "cluster/sessions/local.py": "a private Ray of fewer processes, at the loopback alone",
    "cluster/sessions/workers.py": "forked workers",
    "data/files/readers/litdata.py": "litData's own serializers and trees",
    "numerics/compiled.py": "loops that are kept as machine code",
    "numerics/shape_kernels.py": "shapes without torch's compiler",
}
# Private names of torch. If it lacks one, the work is done in a public way (`AROUND`), or refused before a run starts
# (`torch_names.NEEDED`).
OF_TORCH = {
    "adapters/lightning/devices.py": "the device that a module of Lightning tells of",
    "checkpoint/writer.py": "whether a tensor was changed while it was copied",
    "numerics/determinism.py": "the public function imports torch's compiler, a second; that of scripts is a block",
    "numerics/foreach.py": "one call for many tensors",
    "numerics/inductor.py": "whether a module is compiled, and what its code reads",
    "numerics/portable/conformance/drawing.py": "where torch itself begins a backward pass",
    "numerics/portable/conformance/optimizers.py": "operators of which none is noted",
    "numerics/portable/operator_overrides.py": "the LSTM beneath torch.lstm",
    "optim/by_element.py": "whether an optimizer has hooks",
    "optim/aside.py": "whether an optimizer changes a tensor that it keeps aside",
    "optim/optimizer_state.py": "whether an optimizer changes buffers of the model, or a tensor that it keeps",
    "provenance/environment/node.py": "where torch's libraries lie",
    "worker/admission/beginning.py": "whether a tensor has been written in place",
    "worker/admission/state_detection.py": "what a module holds, and whether it was changed",
    "worker/between_steps/late_digests.py": "whether a parameter was changed while it was copied",
    "worker/model/held_memory.py": "whether a tensor that a recording reads was changed",
    "worker/model/construction.py": "the classes of norms",
    "worker/model/refusals.py": "the classes of norms",
    "worker/model/moving_buffers.py": "the classes of norms with moving buffers, and the hooks of the older ones",
    "worker/model/replica.py": "whether a parameter was changed, and that the buffers of a micro-batch under way were not",
    "worker/model/recorder.py": "memory of a capture that failed",
    "worker/pipeline_parallel/fake_tensors.py": "a parameter that is no tensor of numbers, and shapes that autocast casts",
    "worker/pipeline_parallel/planning.py": "whether parameters and modules have hooks, and a tensor was changed",
    "worker/pipeline_parallel/replay.py": "where modules hold a tensor",
}
AROUND = {
    "torch._foreach_copy_": "each is copied",
    "torch._foreach_add": "each is added",
    "torch._foreach_mul": "each is multiplied",
    "torch._foreach_norm": "the norm of each is taken",
    "torch._C._autograd": "torch refuses a backward pass in stages that uses a buffer which its own forward pass has moved",
    "._unsafe_set_version_counter": "the same",
    "torch._C._set_deterministic_algorithms": "the public function",
    "torch._C._set_graph_executor_optimize": "the proof refuses what comes out otherwise",
    "torch._C._cuda_endAllocateToPool": "that memory is not given again",
    "torch._C._cuda_releasePool": "that memory is not given again",
    "torch.autograd.graph._engine_run_backward": "the public function",
    "torch._functorch.config.graphsafe_rng_functionalization": "the proof refuses what comes out otherwise",
    "torch._inductor": "as its function to compile",
    "torch._inductor.compile": "the worker refuses to compile",
    "._optimizer_step_pre_hooks": "an optimizer counts as watched, and its step is not divided",
    "._optimizer_step_post_hooks": "an optimizer counts as watched, and its step is not divided",
    "torch.optim.optimizer._global_optimizer_pre_hooks": "an optimizer counts as watched, and its step is not divided",
    "torch.optim.optimizer._global_optimizer_post_hooks": "an optimizer counts as watched, and its step is not divided",
    "._device": "a module of Lightning tells of the device on which it was made",
    "._is_param": "a model is refused where it is cut, before the run",
    "torch._C.__file__": "a module's file is Python's to name",
}
# Private names of Python's own library, whose version is part of a run's environment.
OF_PYTHON = {
    "cli/process_setup.py": "options of warnings, read as Python reads them at its start",
    "cluster/forkserver/launch_server.py": "options of this interpreter, for another one",
    "numerics/digests.py": "the type of a hash, in annotations alone",
    "provenance/environment/interpreters.py": "the interpreter of a virtual environment; this one where it has none",
    "records/hash_seal.py": "the type of a hash, in annotations alone",
}
LISTED = {**GATED, **OF_TORCH, **OF_PYTHON}


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def _of_library(name: str) -> bool:
    return name.partition(".")[0] in LIBRARIES and _is_private(name) and not name.startswith(WITHOUT)


@functools.cache
def defined(read: Source) -> frozenset[str]:
    """The names that a module gives to functions, classes, variables and attributes of its own objects."""
    made = read.of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = {node.id for node in read.of(ast.Name) if isinstance(node.ctx, ast.Store)}
    own = {node.attr for node in read.of(ast.Attribute) if isinstance(node.ctx, ast.Store) and _is_of_self(node)}
    return frozenset(node.name for node in made) | names | own


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _imported(read: Source) -> Iterator[tuple[str, str]]:
    """(name, what it stands for) for the names that a module imports."""
    for node in read.of(ast.Import):
        yield from ((each.asname or each.name, each.name) for each in node.names)
    for node in read.of(ast.ImportFrom):
        if node.module and not node.level:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def private_names(read: Source, inherited: Set[str] = frozenset()) -> Iterator[str]:
    """The private names of libraries that a module uses, with their dots; for an object of an unknown library the attribute
    with a dot before it. inherited: what `self` may have of classes in other modules."""
    imported, own = dict(_imported(read)), defined(read)
    yield from filter(_of_library, imported.values())
    attributes = list(read.of(ast.Attribute))
    inner = {id(node.value) for node in attributes}
    for node in attributes:
        known = (own, inherited if _is_of_self(node) else frozenset())
        yield from _in_attribute(node, imported, known, id(node) not in inner)
    for node in read.of(ast.Call):
        yield from _in_call(node, imported, own)


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """`a.b.c`, where a is what the name stands for; "" for what is an attribute of anything but names."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    before = _dotted(node.value, imported) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def _in_attribute(
    node: ast.Attribute, imported: dict[str, str], known: Iterable[Set[str]], is_whole: bool
) -> Iterator[str]:
    if INSPECTED.fullmatch(node.attr):
        yield node.attr
    is_private = _is_private(node.attr)
    if not (is_whole or is_private):
        return
    name = _dotted(node, imported)
    if name.partition(".")[0] in LIBRARIES:
        if is_whole and _of_library(name):
            yield name
    elif is_private and not {name, f".{node.attr}"} & DOCUMENTED and not any(node.attr in names for names in known):
        yield f".{node.attr}"


def _in_call(node: ast.Call, imported: dict[str, str], own: Set[str]) -> Iterator[str]:
    """Private names that are asked for as text, and private arguments."""
    yield from (f"{each.arg}=" for each in node.keywords if each.arg and _is_private(each.arg) and each.arg not in own)
    if getattr(node.func, "attr", getattr(node.func, "id", "")) not in ASKING:
        return
    place = _dotted(node.args[0], imported)
    texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    for text in filter(_is_private, texts):
        if _of_library(text):
            yield text
        elif f".{text}" not in DOCUMENTED and text not in own:
            yield f"{place if place.partition('.')[0] in LIBRARIES else ''}.{text}"


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
        ("import torch\nwith torch._C.DisableTorchFunctionSubclass(): pass", []),
        ("node._node_id", ["._node_id"]),
        ("def f(x):\n    return x.tensor()._version.bit_length()", ["._version"]),
        ("from orchestrator import api\napi._hidden()", ["._hidden"]),
        ("class A:\n    def f(self, other):\n        self._own = other._own", []),
        ("self._of_a_base_of_ours", []),
        ("self._of_nobody", ["._of_nobody"]),
        ("import os, sys\nos._exit(1), sys._getframe(), item._replace(a=1)", []),
        ("import torch\ngetattr(torch, '_foreach_add', None)", ["torch._foreach_add"]),
        ("hasattr(module, '_hooks')", ["._hooks"]),
        ("_inside('litdata._a', 'b')", ["litdata._a"]),
        ("event.removesuffix('_lost')", []),
        ("init(_temp_dir='x')", ["_temp_dir="]),
    ],
)
def test_a_private_name_is_found(source: str, found: list[str]) -> None:
    assert list(private_names(Source(source), {"_of_a_base_of_ours"})) == found


@functools.cache
def _sources() -> dict[str, Source]:
    return {str(file.relative_to(PACKAGE)): read for file, read in package().items()}


@functools.cache
def _found() -> dict[str, set[str]]:
    """file -> the private names in it."""
    ours = {name for read in _sources().values() for name in defined(read)}
    return {file: names for file, read in _sources().items() if (names := set(private_names(read, ours)))}


def test_private_names_stand_in_listed_files_alone() -> None:
    assert {name: names for name, names in _found().items() if name not in LISTED} == {}
    assert set(LISTED) - set(_found()) == set(), "nothing private is used there any more"


def test_a_name_of_torch_has_a_way_round_or_is_looked_for_before_a_run() -> None:
    used = {name for file in OF_TORCH for name in _found()[file]}
    assert {name for name in used if not name.startswith(("torch.", "."))} == set()
    modules = {name.rpartition(":")[0] for name in torch_names.NEEDED} | {"torch._C"}
    assert used - modules == _looked_for() | set(AROUND)


def _looked_for() -> set[str]:
    names = (name.replace(":", ".") for name in (*torch_names.NEEDED, *torch_names.NEEDED_OF_MODULES))
    objects = "torch.Tensor."
    return {f".{name.removeprefix(objects)}" if name.startswith(("_", objects)) else name for name in names}


@pytest.mark.parametrize("name", GATED)
def test_what_is_gated_asks_for_the_version(name: str) -> None:
    assert re.search(r"(RAY|NUMBA|LITDATA|TORCH)\.is_here", _sources()[name].text)


def _told() -> dict[tuple[str, str], set[str]]:
    """(library, version) -> the files that the table of docs/architecture.md names."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("Some files use the insides of a library")[2].partition("\nBeside them stand")[0]
    rows = re.findall(r"^\| (\w+) (\w[\w.]*) \| `([\w/.]+)`", table, re.MULTILINE)
    return {
        (library, version): {file for *of, file in rows if of == [library, version]} for library, version, _ in rows
    }


def _asking(name: str, asks: Iterable[str]) -> set[str]:
    """The files that ask for one of the tested versions."""
    asked = [f"{name}.{each}" for each in asks]
    return {
        file
        for file, read in _sources().items()
        if file != "common/tested_versions.py"
        and any(re.search(rf"\b{each}\b", read.text) for each in asked if each in read.text)
    }


def test_the_page_names_the_tested_versions_and_who_asks_for_them() -> None:
    tried = {name: each for name, each in vars(tested_versions).items() if isinstance(each, Tried | Tables)}
    expected = {
        (each.package, version): _asking(name, ["is_here"] if isinstance(each, Tried) else ["versions", "are_in"])
        for name, each in tried.items()
        for version in each.versions
    }
    assert _told() == {key: files for key, files in expected.items() if key[0] not in PINNED or files}


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
