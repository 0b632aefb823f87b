"""The house: each floor imports only from floors below it, and the heavy libraries live in one room each.

Imports are read from the syntax tree, those inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.sources import FILES, PACKAGE, ROOT, Source, source

FLOORS = [
    *("__main__", "cli", "api", "experiments", "driver", "cluster", "worker", "provenance", "checkpoint", "controller"),
    *("config", "data", "comm", "optim", "numerics", "adapters", "pipeline", "records", "common", "errors", "moved"),
]
# Rooms of a floor, in the same order: packages, and modules that stand beside them.
ROOMS = {
    "cli": [
        *(
            "main",
            "completion",
            "help",
            "usage",
            "command_table",
            "conf",
            "resume",
            "jobs",
            "export",
            "rerun",
            "tune",
            "sweep",
            "ui",
        ),
        *("compare", "doctor", "cards", "index", "look", "new", "origins", "runs", "simulate"),
        *("template", "verify", "watch"),
        *("command_result", "arguments", "process_setup"),
    ],
    "experiments": [
        *("compare", "export", "rerun", "resume", "sweep", "look", "listing", "history", "trained", "tuning"),
        *("pictures", "simulation", "addresses", "search"),
    ],
    "driver": ["launch", "run", "recording", "preflight", "report", "copies", "folders", "supervision", "terminal"],
    "cluster": ["placement", "slurm", "sessions", "actors", "forkserver", "ray_jobs", "ray_calls"],
    "worker": [
        *("worker", "server", "hooks", "serving", "strategies", "memory_needs", "loop", "asynchronous"),
        "pipeline_parallel",
        "step",
        *(
            "ensemble",
            "admission",
            "between_steps",
            "card_trial",
            "device",
            "device_memory",
            "model",
            "step_report",
            "footprint",
            "member",
        ),
    ],
    "provenance": ["crates", "data", "environment", "code", "tracking"],
    "controller": [
        *(
            "controller",
            "rendezvous",
            "fault_attribution",
            "fault_injection",
            "decision",
            "membership",
            "state",
            "member_table",
            "load_balancing",
        ),
        *("state_recovery", "shard_assignment", "sites", "events", "checking"),
    ],
    "config": ["resolve", "plan", "settings"],
    "adapters": ["table", "lightning", "transformers", "adapted", "source"],
    "comm": ["collectives", "transports", "synchronization", "pipeline_schedules", "topologies"],
    "common": [
        "registry",
        "checked_values",
        "values",
        "figures",
        "import_string",
        "file_cache",
        "once",
        "temporary",
        "locks",
        "child",
        "bounded_command",
        "frames",
        "gpu_memory",
        "card_faults",
        "processes",
        "injection",
        "tested_versions",
        "shadowing",
        "early_signals",
        "distributions",
        "nondeterministic",
        "control_groups",
        "descriptors",
        "kernel_calls",
        "listings",
    ],
}
ONLY_ROOM = {
    "ray": ("cluster",),
    "mlflow": ("provenance",),
    "dvc": ("provenance",),
    "matplotlib": ("driver", "experiments"),
    "jinja2": ("driver",),
    "optuna": ("experiments",),
    "dp_accounting": ("optim",),
    **dict.fromkeys(("lightning", "pytorch_lightning", "transformers"), ("adapters",)),
}
# Modules for which a launch does not wait: they come with what needs them, such as beside the start of Ray, or with a model
# in stages.
LATER = [
    *("mlflow", "dvc", "matplotlib", "jinja2", "optuna", "pandas", "scipy", "sklearn", "numba", "llvmlite", "fsspec"),
    *("orchestrator.worker.worker", "orchestrator.worker.strategies", "orchestrator.worker.asynchronous"),
    *("orchestrator.worker.pipeline_parallel", "orchestrator.experiments.simulation", "orchestrator.experiments.sweep"),
]
MOST_PARAMETERS = 7
CALLS = ("importlib.import_module", "import_module", "__import__")
STANDARD_LIBRARY_ONLY = [
    *("records", "errors", "moved"),
    *("common.child", "common.descriptors", "common.import_string", "common.injection", "common.processes"),
    "common.kernel_calls",
]
PYDANTIC_TOO = [
    *("common.values", "common.checked_values", "common.registry"),
    *("comm.topologies", "comm.pipeline_schedules", "comm.synchronization"),
]


def floor_of(file: Path) -> str:
    """The floor that a file stands on; "" for the package's own `__init__.py`."""
    first = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@functools.cache
def imported(file: Path) -> list[tuple[int, str]]:
    return list(imports(source(file), file))


def imports(read: Source, file: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; of `from a import b` both a and a.b, since b may be a module."""
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in read.of(ast.Import, ast.ImportFrom, ast.Call):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        else:
            yield from ((node.lineno, name) for name in imported_by(node))


def imported_by(call: ast.Call) -> Iterator[str]:
    """The module that a call such as `importlib.import_module("name")` imports."""
    if call.args and isinstance(call.args[0], ast.Constant) and ast.unparse(call.func) in CALLS:
        yield str(call.args[0].value)


def floors_used(file: Path) -> set[str]:
    """The floors that a file imports from; an import of `orchestrator` itself is one of its only content, pipeline."""
    found = set()
    for _, name in imported(file):
        parts = name.split(".")
        if parts[0] == "orchestrator":
            found.add(parts[1] if len(parts) > 1 and parts[1] in FLOORS else "pipeline")
    return found


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_every_module_has_a_floor() -> None:
    assert {floor_of(file) for file in FILES} <= {*FLOORS, ""}


PUBLIC = {"api", "common", "data", "pipeline", "errors", "moved"}  # floors of which the package itself has names


def test_imports_go_down() -> None:
    for file in FILES:
        floor = floor_of(file)
        allowed = set(FLOORS[FLOORS.index(floor) :]) if floor else PUBLIC
        assert floors_used(file) <= allowed, relative(file)


def rooms_of(floor: str) -> set[str]:
    return {
        path.stem for path in (PACKAGE / floor).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }


@pytest.mark.parametrize("floor", ROOMS)
def test_every_room_has_a_place(floor: str) -> None:
    assert rooms_of(floor) - {"__init__"} == set(ROOMS[floor])


@pytest.mark.parametrize("floor", [floor for floor in ROOMS if floor != "cli"])  # of which it names what is no command
def test_the_page_names_all_rooms_of_a_floor_in_their_order(floor: str) -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{floor}` \|.*\|(.*)\|$", page, re.M)
    assert list(dict.fromkeys(name for name in re.findall(r"`(\w+)`", row) if name in ROOMS[floor])) == ROOMS[floor]


@pytest.mark.parametrize("floor", ROOMS)
def test_imports_go_down_within_a_floor(floor: str) -> None:
    rooms = ROOMS[floor]
    for file in FILES:
        if floor_of(file) != floor:
            continue
        room = file.relative_to(PACKAGE / floor).parts[0].removesuffix(".py")
        allowed = set() if room == "__init__" else set(rooms[rooms.index(room) :])
        names = [name.split(".") for _, name in imported(file)]
        used = {name[2] for name in names if name[:2] == ["orchestrator", floor] and len(name) > 2}
        assert used & set(rooms) <= allowed, relative(file)


def test_heavy_libraries_have_one_room() -> None:
    for file in FILES:
        for _, name in imported(file):
            library = name.split(".")[0]
            assert floor_of(file) in ONLY_ROOM.get(library, (floor_of(file),)), (relative(file), name)


def at_once(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are carried out with a module: not those within functions, and not those for types alone."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from at_once([*node.body, *node.orelse])
        elif isinstance(node, ast.Try | ast.With):
            yield from at_once(node.body)


def test_a_launch_waits_for_no_import_that_it_does_not_need_before_ray() -> None:
    names, seen = (
        ["orchestrator", "orchestrator.cli.main", "orchestrator.cli.conf", "orchestrator.driver.launch.launch"],
        set(),
    )
    while names:
        name = names.pop()
        place = PACKAGE.parent / name.replace(".", "/")
        file = next((each for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists()), None)
        seen.add(name)
        if file is None:
            continue
        statements = at_once(source(file).tree.body)
        text = "\n".join(ast.unparse(node) for node in statements)
        found = {each for _, each in imports(Source(text), file)}
        found |= {each.rpartition(".")[0] for each in found if "." in each}
        names += sorted(found - seen - {*names})
    late = {name for name in seen if any(name == each or name.startswith(f"{each}.") for each in LATER)}
    assert late == set()


def stands_in(file: Path, places: Iterable[str]) -> bool:
    """Whether the file is one of these modules, or inside of one of these packages."""
    parts = list(file.relative_to(PACKAGE).with_suffix("").parts)
    return any(parts[: len(place)] == place for place in (each.split(".") for each in places))


GROUND = [
    file
    for file in FILES
    if stands_in(file, (*STANDARD_LIBRARY_ONLY, *PYDANTIC_TOO)) and not stands_in(file, ["records.loggers"])
]


def test_the_ground_floors_need_next_to_nothing_installed() -> None:
    assert len(GROUND) > len(STANDARD_LIBRARY_ONLY) + len(PYDANTIC_TOO)
    for file in GROUND:
        installed = {"pydantic", "pydantic_core"} if stands_in(file, PYDANTIC_TOO) else set()
        for _, name in imported(file):
            known = name.split(".")[0] in {"orchestrator", *installed, *sys.stdlib_module_names}
            assert known, (relative(file), name)


def test_modules_form_no_circle() -> None:
    """Inside a floor, too, there is an order. `from package import module` needs the module, not what the package exports."""
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in FILES}
    below: dict[str, set[str]] = {}
    for module, file in modules.items():
        found = [(line, name) for line, name in imported(file) if name in modules]
        packages = {(line, name.rpartition(".")[0]) for line, name in found}
        below[module] = {name for line, name in found if (line, name) not in packages}
    while free := [module for module, others in below.items() if not others]:
        for module in free:
            del below[module]
        for others in below.values():
            others.difference_update(free)
    assert below == {}


def constructors(read: Source) -> Iterator[tuple[str, int]]:
    """(name, parameters beside self) of every `__init__`, `__new__` and class method; dataclasses have none that is written."""
    for kind in read.of(ast.ClassDef):
        for each in kind.body:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            makes = any(ast.unparse(decorator) == "classmethod" for decorator in each.decorator_list)
            if each.name in ("__init__", "__new__") or makes:
                found = each.args
                given = [*found.posonlyargs, *found.args, *found.kwonlyargs]
                yield f"{kind.name}.{each.name}", len(given) - 1


def test_no_constructor_has_many_parameters() -> None:
    """Arguments that belong together are handed over together: a part of the plan, or a small value."""
    found = ((file, name, count) for file in FILES for name, count in constructors(source(file)))
    assert [(relative(file), name) for file, name, count in found if count > MOST_PARAMETERS] == []


def test_no_parameter_is_overlooked() -> None:
    scene = (
        "class A:\n    def __init__(self, a, /, b, *rest, c=1, **more): ...\n    @classmethod\n    def of(cls, d): ..."
    )
    assert list(constructors(Source(scene))) == [("A.__init__", 3), ("A.of", 1)]


SCENE = """
import ray.util
def late():
    from orchestrator.worker import worker
    import importlib
    importlib.import_module("mlflow")
if TYPE_CHECKING:
    from . import session
    from ...cluster.sessions.local import LocalRay
"""


def test_no_way_of_importing_is_overlooked() -> None:
    """The tests above are only as good as this reading."""
    found = {name for _, name in imports(Source(SCENE), PACKAGE / "driver" / "run" / "scene.py")}
    assert found == {
        "ray.util",
        "importlib",
        "mlflow",
        "orchestrator.worker",
        "orchestrator.worker.worker",
        "orchestrator.driver.run",
        "orchestrator.driver.run.session",
        "orchestrator.cluster.sessions.local",
        "orchestrator.cluster.sessions.local.LocalRay",
    }
    assert len(set(FLOORS)) == len(FLOORS)
    assert all(a != b for a, b in itertools.pairwise(FLOORS))
