"""Loader processes give the bits that the compute thread gives, tell the user's faults, and end with their worker."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.adapters.source import Source
from orchestrator.cluster.forkserver.children import child
from orchestrator.common.values import Steps
from orchestrator.data.loaders import Key, Loaders, Recipe, fingerprint, is_compared, upcoming
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import shuffled
from tests.products import thinned
from tests.refusals import refused
from tests.worker import faulty
from tests.worker import pipelines as p
from tests.worker.runs import ONE, Layout, train

RECIPE = Recipe(Source("tests.worker.pipelines:Augmented", {}), seed=3, threads=1)
KEYS = [Key(step, shard, tuple(range(shard, shard + 3))) for step in range(2) for shard in range(2)]


READING = """
import os
from pathlib import Path
import torch
from orchestrator import Pipeline

class Rows:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(0.0 * float(os.environ["SCALE"]))

class Reading(Pipeline):
    def __init__(self, file):
        self.scale = Path(file).read_text()
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        return Rows(), None
    def loss(self, model, batch):
        return model(batch).mean()
"""


@pytest.fixture(params=[pytest.param("started", marks=pytest.mark.long), "forked"])
def way(request: pytest.FixtureRequest) -> str:
    """How loaders come: forked from the server that their worker was forked from, or by themselves."""
    if request.param == "forked":
        request.getfixturevalue("forked")
    return str(request.param)


@pytest.fixture
def loaders(way: str) -> Iterator[Loaders]:
    started = Loaders(RECIPE, 2, start=child)
    assert all(type(each._process).__name__ == way.title() for each in started._loaders)
    yield started
    started.close()


@pytest.mark.ray
def test_a_batch_depends_on_its_key_only(loaders: Loaders) -> None:
    forwards = [loaders.batch(key, iter(KEYS[i + 1 :])) for i, key in enumerate(KEYS)]
    backwards = [loaders.batch(key, iter(())) for key in reversed(KEYS)][::-1]
    for first, second in zip(forwards, backwards, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A recipe whose pipeline reads a file and a variable."""
    (tmp_path / "scale.txt").write_text("2")
    (tmp_path / "reading.py").write_text(READING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SCALE", "3")
    return Recipe(Source("reading:Reading", {"file": str(tmp_path / "scale.txt")}), seed=3, threads=1)


@pytest.mark.ray
@pytest.mark.long
def test_what_loaders_read_up_to_their_proof_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = reading(tmp_path, monkeypatch)
    with contextlib.closing(Loaders(recipe, 1)) as loaders:
        loaders.verify(KEYS[0], torch.zeros(3))
        assert list(loaders.input_audit.files) == [str(tmp_path / "scale.txt")]
        assert loaders.input_audit.variables == {"SCALE": ("3",)}


@pytest.mark.ray
@pytest.mark.long
def test_what_has_changed_when_another_loader_reads_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = reading(tmp_path, monkeypatch)
    lost: list[str] = []
    with contextlib.closing(Loaders(recipe, 1, lost.append)) as loaders:
        for written in ("2", "4", "4"):
            (tmp_path / "scale.txt").write_text(written)
            loaders.batch(KEYS[0], iter(()))
            loaders._loaders[0]._process.kill()
    told = [each for each in lost if "changed" in each]
    assert told == [
        f"{tmp_path / 'scale.txt'} changed while the run trained, and a new loader process has read it: its samples may be "
        "others"
    ]


@pytest.mark.ray
@pytest.mark.usefixtures("way")
def test_loaders_that_die_are_replaced_and_no_bit_changes() -> None:
    lost: list[str] = []
    loaders = Loaders(RECIPE, 1, lost.append, child)
    undisturbed = [loaders.batch(key, iter(())) for key in KEYS]
    for moment in range(3):  # while it rests; while it reads what was foreseen; while it reads what is not wanted then
        asked = iter(()) if moment == 0 else iter(KEYS[1:])
        first = loaders.batch(KEYS[0], asked)
        for loader in loaders._loaders:
            loader._process.kill()
        if moment == 2:
            loaders.forget()
        rest = [loaders.batch(key, iter(())) for key in KEYS[1:]]
        for batch, expected in zip([first, *rest], undisturbed, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    loaders.close()
    assert len(lost) >= 3
    assert lost[0] == (
        "a loader process ended with code -9 before it had read step 0, shard 1; another one takes its place"
    )


@pytest.mark.ray
@pytest.mark.usefixtures("way")
def test_a_micro_batch_that_ends_every_loader_is_named() -> None:
    loaders = Loaders(Recipe(Source("tests.worker.faulty:EndsItsReader", {}), seed=3, threads=1), 1, start=child)
    loaders.batch(KEYS[0], iter(()))
    with refused("data.loader-deaths"):
        loaders.batch(KEYS[1], iter(()))
    loaders.close()


@pytest.mark.ray
@pytest.mark.usefixtures("way")
def test_a_keyboard_interrupt_of_the_users_code_is_named() -> None:
    """It ended loaders without a word."""
    loaders = Loaders(Recipe(Source("tests.worker.faulty:InterruptsItsReader", {}), seed=3, threads=1), 1, start=child)
    loaders.batch(KEYS[0], iter(()))
    with refused("pipeline.raised", "KeyboardInterrupt"):
        loaders.batch(KEYS[1], iter(()))
    loaders.close()


@pytest.mark.long
@pytest.mark.ray
def test_a_loader_ends_when_its_worker_is_killed() -> None:
    script = (
        "import signal; from orchestrator.adapters.source import Source;"
        "from orchestrator.data.loaders import Key, Loaders, Recipe;"
        f"started = Loaders({RECIPE!r}, 1); started.batch({KEYS[0]!r}, iter(()));"
        "print(started._loaders[0]._process.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        loader = os.pidfd_open(int(worker.stdout.readline()))
        worker.kill()
    ended, _, _ = select.select([loader], [], [], 30)
    os.close(loader)
    assert ended


@pytest.mark.ray
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("pipeline", thinned([p.Augmented, p.Mlp, p.CustomBatches], 3))
@pytest.mark.parametrize(("layout", "loaders"), [(Layout(2, "tree"), 1), pytest.param(ONE, 2, marks=pytest.mark.long)])
def test_a_run_has_the_same_bits_with_loaders(pipeline: type[p.Small], layout: Layout, loaders: int) -> None:
    reference = train(pipeline, ONE, epochs=2)
    assert train(pipeline, layout, epochs=2, loaders=loaders).trace == reference.trace


def test_a_fingerprint_of_nested_rows_is_of_their_values() -> None:
    """Torch tells no shape of the strided kind."""
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # that they are a prototype
        one, same, other = (
            torch.nested.nested_tensor([torch.full((2, 3), x), torch.ones(1, 3)]) for x in (1.0, 1.0, 2.0)
        )
    assert fingerprint((one,)) == fingerprint((same,)) != fingerprint((other,))


@pytest.mark.ray
@pytest.mark.usefixtures("forked")
def test_tensors_that_share_memory_share_it_with_loaders() -> None:
    """The loss writes into one, and changes the other."""
    settings: dict[str, Any] = {"steps": 3}
    expected = train(p.Overlapping, **settings)
    found = train(p.Overlapping, loaders=1, **settings)
    assert (found.trace, found.digest) == (expected.trace, expected.digest)


@pytest.mark.ray
@pytest.mark.usefixtures("forked")
def test_a_fault_in_reading_names_the_sample_and_the_users_line() -> None:
    with refused("pipeline.raised") as raised:
        train(faulty.RaisesInDataset, ONE, loaders=1)
    assert "faulty.py:" in str(raised.value)


@pytest.mark.ray
@pytest.mark.usefixtures("forked")
def test_samples_that_no_seed_decides_are_told() -> None:
    with refused("data.loader-differs"):
        train(faulty.ReadsOtherSamplesInEachProcess, ONE, loaders=1)


@pytest.mark.ray
@pytest.mark.usefixtures("forked")
def test_samples_that_training_changes_are_told() -> None:
    """A run had the samples of the first weights, or of the present ones where a worker read a shard itself."""
    with refused("data.loader-stale", "step 1, "):
        train(faulty.MovesSamplesByItsModel, ONE, loaders=1, steps=3)


def test_a_micro_batch_is_compared_in_the_first_step_of_each_doubling() -> None:
    compared = [key for step in range(10) for shard in (2, 3) if is_compared(key := Key(step, shard, (0,)), 2)]
    assert [(key.step, key.shard) for key in compared] == [(1, 2), (2, 2), (4, 2), (8, 2)]


@pytest.mark.ray
@pytest.mark.usefixtures("forked")
def test_batches_of_any_kind_prove_the_same_in_two_processes() -> None:
    assert train(p.Packed, ONE, loaders=1).trace == train(p.Packed, ONE).trace


def test_what_comes_next_is_what_a_worker_computes_next() -> None:
    sampler = shuffled(Epochs(seed=0, samples=10, batch_size=Steps.constant(4), shards=4))
    keys = [(key.step, key.shard) for key in upcoming(0, 2, (1, 2, 3), range(4), sampler.indices)]
    assert keys == [(0, 3), (1, 1), (1, 2), (1, 3), (2, 1), (2, 3)]
    assert list(upcoming(2, 3, (1, 2, 3), range(4), sampler.indices)) == []
