"""The page about variants of one's own, in a project of its own: launched once, and all that is refused before."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.comm.synchronization import laws as synchrony_laws
from orchestrator.config.settings import load
from orchestrator.driver.preflight import checks
from orchestrator.errors import ConfigurationError
from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "extending.md").read_text()
OWN = (REPOSITORY / "docs" / "own-project.md").read_text()

WRONG = '''
import itertools
import math
from orchestrator.comm.synchronization import Mode
from orchestrator.comm.topologies import Move, listed

count = itertools.count()
not_callable = 3

def bare():
    return None

def forgetful(workers):
    others = range(1, workers - 1)
    return listed("forgetful", workers, 0, (0,), (tuple(Move(w, 0, 0, "add") for w in others),))

def push_only(workers, servers: int = 1):
    rounds = (tuple(Move(w, workers, 0, "add") for w in range(workers)),)
    return listed("push only", workers, 1, (workers,), rounds)

def hasty(workers):
    """The owner ends the step before the last worker has its result from another one's hands."""
    moves = [Move(w, 0, 0, "add") for w in range(1, workers)], [Move(0, w, 0, "copy") for w in range(1, workers - 1)]
    return listed("hasty", workers, 0, (0,), tuple(map(tuple, moves)))

def crooked(workers):
    raise RuntimeError("no plan")

def other(workers):
    return 3

def below(at):
    return 1.0 - at.step

def drifting(at):
    return float(next(count))

def needy(at, *, knee: int):
    return 1.0

def none(params, lr: float = 1.0):
    return None

def rash():
    return Mode("sprints", staleness=2)

class Forgets:
    def init(self, parameters):
        return {"count": parameters[0].new_zeros(1)}

    def update(self, gradients, state):
        return gradients, {}

class Understates:
    kept = ()

    def __init__(self, model):
        from orchestrator.optim.compressions.codec import Means
        self.phases = (Means(tuple(math.prod(shape) for shape in model.shapes)),)

    def replicated(self):
        return {}

    def encode(self, phase, agreement, held, earlier):
        from orchestrator.optim.compressions.codec import Rows
        return Rows([each.tensors for each in held], [0.5] * 4)

    def decode(self, agreement, results, mean):
        return {}

class Beside(Understates):
    def encode(self, phase, agreement, held, earlier):
        rows = super().encode(phase, agreement, held, earlier)
        return type(rows)([[each if len(held) > 1 else None for each in row] for row in rows.rows], agreement.largest)

class Overwrites(Forgets):
    def update(self, gradients, state):
        return [None if each is None else each.mul_(2) for each in gradients], state

class Lends(Forgets):
    memory = {}
    def update(self, gradients, state):
        places = [None if each is None else self.memory.setdefault(each.shape, each.clone()) for each in gradients]
        pairs = zip(places, gradients)
        return [None if each is None else place.copy_(each) for place, each in pairs], state
'''

REFUSED = {
    "topology=wrong:forgetful": r"^topology: wrong:forgetful with 2 workers is not exact: member 0 ends with worker 1's "
    r"contribution to chunk 0 0 times",
    "topology=wrong:push_only": r"^topology: wrong:push_only with 1 workers and 1 servers is not exact: member 0 ends with",
    "topology=wrong:hasty": r"with 2 workers is not exact: member 1 ends with worker 0's contribution to chunk 0 0 times",
    "topology=wrong:crooked": r"^topology: wrong:crooked with 1 workers raised RuntimeError: no plan \(.*wrong\.py:\d+\)",
    "topology=wrong:other": r"with 1 workers returns int; it must be an orchestrator\.comm\.topologies\.Schedule",
    "topology=wrong:not_callable": r"^topology: wrong:not_callable is of type int; it must be a function or a class",
    "topology=wrong:bare": r"^topology: wrong:bare takes 0 positional arguments, and one parameter of it come",
    "topology=wrong:forgetfull": r"^topology: wrong has no topology 'forgetfull'; did you mean wrong:forgetful\?",
    "topology=nowhere:star": r"^topology: there is no module 'nowhere' \(modules are looked up from the working directory",
    "topology.centre=2": r"^topology\.centre: variants\.star:star has no centre; did you mean center\?",
    "topology.center=-1": r"^topology\.center: must be at least 0, got -1",
    "schedule=wrong:below": r"^schedule: wrong:below gives -1\.0 at step 2 of \d+; the factor must be finite and at least 0",
    "schedule=wrong:drifting": r"^schedule: wrong:drifting is not pure: at step",
    "schedule=wrong:needy": r"^schedule\.knee: required by schedule=wrong:needy",
    "schedule.shar=2": r"^schedule\.shar: variants\.knee:knee has no shar; did you mean share\?",
    "schedule.share=2": r"^schedule\.share: must be greater than 0 and at most 1, got 2",
    "sync=wrong:rash": r"^sync: wrong:rash is not safe: shard \d starts 3 updates ahead of the slowest; the bound is 2",
    "sync={name: variants.steady:steady, leed: 3}": r"^sync\.leed: variants\.steady:steady has no leed; did you mean lead\?",
    "optimizer.momentun=2": r"^optimizer\.momentun: variants\.signs:Signs has no momentun; did you mean momentum\?",
    "optimizer.momentum=much": r"^optimizer\.momentum: expected a number, got 'much'",
    "contribution=wrong:Forgets": r"^contribution: wrong:Forgets returns a state with other names, shapes or types",
    "contribution=wrong:Overwrites": r"^contribution: wrong:Overwrites changes gradients or state in place",
    "contribution=wrong:Lends": r"^contribution: wrong:Lends returns tensors in the memory of those before, which may wait",
    "compression=wrong:Understates": r"^compression: wrong:Understates puts \d[\d.]* into phase 0, where it says that 0\.5 is",
    "compression=wrong:Beside": r"^compression: wrong:Beside makes of a shard what depends on the shards beside it",
    "compression.evry=2": r"^compression\.evry: variants\.by_turns:ByTurns has no evry; did you mean every\?",
    "compression.every=1": r"^compression\.every: must be at least 2, got 1",
    "contribution.spacin=2": r"^contribution\.spacin: variants\.feedback:Feedback has no spacin; did you mean spacing\?",
    "optimizer.name=wrong:none": r"^optimizer: wrong:none is not fit: returned a NoneType",
}


def write(folder: Path, page: str, *names: str) -> None:
    """The files of a page, all of them if none is named."""
    for name, text in re.findall(r"^```(?:python|yaml) ([\w./]+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if not names or name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


def make(folder: Path) -> Path:
    write(folder, PAGE)
    write(folder, OWN, "spirals.py", "pipeline.py")
    (folder / "points.csv").write_text("".join(f"{i / 600},{i % 7 / 7},{i % 2}\n" for i in range(600)))
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    make(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("wrong", "variants", "pipeline", "spirals"):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize(("override", "problem"), REFUSED.items())
def test_a_variant_that_is_wrong_is_refused_before_the_start(project: Path, override: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checks.check(load(["own"], [override]), project)
    assert caught.value.exit_code == 2
    (found,) = caught.value.problems
    assert re.search(problem, found), found


def test_the_variants_of_the_page_keep_to_the_laws(project: Path) -> None:
    for overrides in ([], ["cluster.workers={min: 2, max: 4}", "topology.center=7"], ["schedule.warmup=3"]):
        checks.check(load(["own"], overrides), project)
    assert synchrony_laws.problems("variants.steady:steady", {"lead": 0.0}) == []


@pytest.mark.long
@pytest.mark.ray
def test_the_page_is_launched_and_had_again_from_what_was_recorded(tmp_path: Path) -> None:
    project = Project(make(tmp_path))
    project.commit()
    (command,) = re.findall(r"^```bash\n(.*?)\n```", PAGE, re.DOTALL | re.MULTILINE)
    done = project.shell(f"{command} data.inputs=[] output=json")  # points.csv is recorded with the code
    assert done.code == 0, done.err
    assert "topology variants.star:star" in done.err
    (run,) = project.runs()
    settings = (project.folder(run) / "settings.yaml").read_text()
    assert "name: variants.star:star\n  center: 1\n" in settings
    assert (
        "name: variants.knee:knee\n  warmup: 0\n  scale: none\n  base_batch: null\n  share: 0.7\n  low: 0.2\n"
        in settings
    )
    wrong = project.shell(f"{command} topology.centre=2")
    assert (wrong.code, "Traceback" in wrong.err) == (2, False)
    assert "topology.centre: variants.star:star has no centre; did you mean center?" in wrong.err
    for name in ("star", "knee", "signs", "by_turns"):
        (project.path / "variants" / f"{name}.py").unlink()
    again = project.run(f"rerun={run}", "output=json")
    assert (again.code, again.report["verdict"]) == (0, "exact"), again.err
    assert project.leftovers() == []
