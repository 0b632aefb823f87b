"""The page for those who have a script: its pipelines train, and do what it says of them."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from orchestrator.common.values import Steps
from orchestrator.config.plan import Segments
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import shuffled
from orchestrator.numerics.streams import seeded
from orchestrator.worker.model import construction, watched_step
from tests.projects import REPOSITORY
from tests.refusals import refused
from tests.worker.runs import Keeping, Layout, settings_for, train

PAGE = (REPOSITORY / "docs" / "porting.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"^```python (\w+)\.py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
ADAM = {"name": "adamw", "lr": 0.01}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The modules of the page by their names."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield {name: importlib.import_module(name) for name in BLOCKS}
    for name in BLOCKS:
        sys.modules.pop(name)


@pytest.mark.long
def _as_a_loop_has(kind: Any, steps: int) -> tuple[Any, Any, list[Any]]:
    """The pipeline, its model, and the batches of so many steps, of 24 rows each, with the bits of a run."""
    pipeline = kind()
    with seeded(7, "datasets"):
        rows, _ = pipeline.datasets()
    with seeded(7, "model"):
        model = pipeline.model()
    sampler = shuffled(Epochs(7, len(rows), Steps.constant(24), 1))
    return pipeline, model, [pipeline.collate([rows[i] for i in sampler.indices(step, 0)]) for step in range(steps)]


@pytest.mark.slow
def test_two_networks_in_turn_have_one_result(written: dict[str, Any]) -> None:
    gan: Any = written["gan"].Gan
    assert construction.rehearse(resolve(settings_for(gan, optimizer=None))).notes == []
    runs = [
        train(gan, layout, optimizer=None, steps=6, shards=6, batch_size=24, tensors_every=1)
        for layout in (Layout(), Layout(3), Layout(3, "tree"))
    ]
    assert len({run.digest for run in runs}) == 1
    assert all(run.trace == runs[0].trace for run in runs)
    tensors = [line["tensors"] for line in runs[0].trace]
    for step, (before, after) in enumerate(itertools.pairwise(tensors), start=1):
        changed = {name.partition(".")[0] for name in before if before[name] != after[name]}
        assert changed == {"discriminator" if step % 2 == 0 else "generator"}


def test_they_are_trained_as_by_two_optimizers(written: dict[str, Any]) -> None:
    gan: Any = written["gan"].Gan
    run = train(gan, optimizer=None, steps=6, shards=1, batch_size=24)
    pipeline, model, batches = _as_a_loop_has(gan, 6)
    networks = {1: (model.generator, 0.001), 0: (model.discriminator, 0.002)}
    optimizers = {
        turn: torch.optim.Adam(network.parameters(), lr=rate, betas=(0.5, 0.999))
        for turn, (network, rate) in networks.items()
    }
    for step, batch in enumerate(batches):
        model.zero_grad()
        with seeded(7, "compute", step, 0):
            pipeline.loss(model, batch, step).backward()
        optimizers[step % 2].step()
    for name, expected in model.state_dict().items():
        assert torch.allclose(run.parameters[name], expected, rtol=1e-4, atol=1e-5), name


def test_optimizers_that_step_together_are_those_of_a_loop(written: dict[str, Any]) -> None:
    products: Any = written["muon"].Products
    assert construction.rehearse(resolve(settings_for(products, optimizer=None))).notes == []
    run = train(products, optimizer=None, steps=6, shards=1, batch_size=24)
    pipeline, model, batches = _as_a_loop_has(products, 6)
    others = [each for each in model.parameters() if each is not model[2].weight]
    muon, adam = torch.optim.Muon([model[2].weight], lr=0.02), torch.optim.AdamW(others, lr=0.003)
    for step, batch in enumerate(batches):
        model.zero_grad()
        pipeline.loss(model, batch).backward()
        muon.param_groups[0]["momentum"] = 0.85 + 0.1 * step / 300
        muon.step()  # type: ignore[no-untyped-call]
        adam.step()
    for name, expected in model.state_dict().items():
        assert torch.allclose(run.parameters[name], expected, rtol=1e-4, atol=1e-6), name


def test_optimizers_that_step_together_go_on_from_a_checkpoint(written: dict[str, Any], tmp_path: Path) -> None:
    products: Any = written["muon"].Products
    settings: dict[str, Any] = {"optimizer": None, "steps": 6, "shards": 2, "batch_size": 24}
    kept = Keeping(tmp_path / "kept", archive=3)
    whole = train(products, keeping=kept, **settings)
    again = Keeping(tmp_path / "again", segments=Segments("a", str(kept.folder), ((3, 6),)))
    part = train(products, Layout(2), keeping=again, **settings)
    assert part.trace == whole.trace[3:]
    assert part.digest == whole.digest


def test_optimizers_within_one_that_have_a_state_of_their_own_are_told_to_share_it(written: dict[str, Any]) -> None:
    class Apart(written["muon"].Together):  # type: ignore[misc]
        def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
            super().__init__(*optimizers)
            for each in optimizers:
                each.state = defaultdict(dict)

    model = written["muon"].Products().model()
    first, *others = model.parameters()
    apart = Apart(torch.optim.Muon([first], lr=0.1), torch.optim.AdamW(others, lr=0.1))
    with refused("optimizer.attribute", "'optimizers'") as caught:
        watched_step.refuse_unfit(apart, model, 7)
    assert "each.state = self.state" in str(caught.value)


def test_a_loss_at_weights_that_lie_uphill_is_that_of_sam(written: dict[str, Any]) -> None:
    sharpness: Any = written["sharpness"].Sharpness
    assert construction.rehearse(resolve(settings_for(sharpness, optimizer=None))).notes == []
    run = train(sharpness, optimizer=None, steps=6, shards=1, batch_size=24)
    pipeline, model, batches = _as_a_loop_has(sharpness, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        model.zero_grad()
        pipeline.loss(model.eval(), (x, y)).backward()  # in one pass
        before = [each.detach().clone() for each in model.parameters()]
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        with torch.no_grad():
            norm = torch.stack([each.norm() for each in gradients]).norm()
            for each, gradient in zip(model.parameters(), gradients, strict=True):
                each.add_(gradient * (0.05 / (norm + 1e-12)))
        model.zero_grad()
        pipeline.loss(model.eval(), (x, y)).backward()  # in one pass
        with torch.no_grad():
            for each, own in zip(model.parameters(), before, strict=True):
                each.copy_(own)
        optimizer.step()
    assert all(torch.equal(run.parameters[name], expected) for name, expected in model.state_dict().items())


def test_a_moving_average_is_that_of_torch(written: dict[str, Any]) -> None:
    """But that it begins with the initial parameters."""
    regression: Any = written["averaged"].Regression
    options: dict[str, Any] = {"optimizer": None, "batch_size": 80}
    assert construction.rehearse(resolve(settings_for(regression, **options))).notes == []
    runs = [train(regression, steps=steps, **options) for steps in (1, 2, 3)]
    with seeded(7, "model"):
        model = regression().model().net
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    averaged.n_averaged += 1  # so that the first is not copied
    for run in runs:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(run.parameters[f"net.{name}"])
        averaged.update_parameters(model)
        for i, expected in enumerate(averaged.module.parameters()):
            assert torch.equal(run.parameters[f"average.{i}"], expected)


@pytest.mark.long
@pytest.mark.slow
def test_a_moving_average_is_the_same_on_each_layout(written: dict[str, Any]) -> None:
    regression: Any = written["averaged"].Regression
    layouts = Layout(), Layout(3), Layout(2, "parameter_server", servers=1)
    assert len({train(regression, layout, optimizer=None, batch_size=80, steps=6).digest for layout in layouts}) == 1


@pytest.mark.long
@pytest.mark.slow
def test_windows_that_warm_up_train(written: dict[str, Any]) -> None:
    recurrent: Any = written["recurrent"].Recurrent
    first, second = (train(recurrent, layout, optimizer=ADAM, steps=12) for layout in (Layout(), Layout(3)))
    assert first.digest == second.digest
    assert first.losses[-1] < first.losses[0]


def test_one_cycle_is_that_of_torch(written: dict[str, Any]) -> None:
    """But for its end, which torch has at a thousandth of a percent."""
    cycle: Any = written["one_cycle"].OneCycle(steps=100, rise=30)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=101, pct_start=31 / 101)
    expected = []
    for _ in range(100):
        expected += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert [cycle.rate(step) for step in range(100)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("example", re.findall(r"`(schedule: \{[^`]*\})`", PAGE))
def test_the_schedules_of_the_page_load(example: str) -> None:
    needed = {"run": {"steps": 1000}, "pipeline": {"target": "a:B"}, "evaluation": {"every": 100}}
    assert load([needed, yaml.safe_load(example)], [])
