"""A run computes what an ordinary loop computes: the exact sum is a better sum, not another one.

The loops here use nothing of the engine but the order of samples and the streams, which are part of a run's identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from orchestrator.common.values import Steps
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import shuffled
from orchestrator.numerics.streams import seeded
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.runs import SGD, Layout, train

pytestmark = pytest.mark.slow

SEED, BATCH = 7, 10


class Loop:
    """A pipeline with its model and rows, drawn as a run draws them."""

    def __init__(self, pipeline: p.Small, shards: int) -> None:
        self.pipeline = pipeline
        with seeded(SEED, "datasets"):
            self.rows, _ = pipeline.datasets()
        with seeded(SEED, "model"):
            self.model = pipeline.model()
        self.model.train()
        self._sampler = shuffled(Epochs(SEED, pipeline.rows, Steps.constant(BATCH), shards))

    def loss(self, step: int, shard: int) -> torch.Tensor:
        indices = self._sampler.indices(step, shard)
        with seeded(SEED, "samples", step, shard):
            batch = self.pipeline.collate([self.rows[index] for index in indices])
        with seeded(SEED, "compute", step, shard):
            more = {"step": step} if isinstance(self.pipeline, p.Annealed) else {}
            loss: torch.Tensor = self.pipeline.loss(self.model, batch, **more)
        return loss

    def named(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return self.model.named_parameters()


@pytest.mark.parametrize("optimizer", [SGD, {"name": "adamw", "lr": 0.01}], ids=lambda o: str(o["name"]))
@pytest.mark.parametrize(
    "pipeline", [p.Mlp, p.Lstm, p.Attention, p.Batchnorm, p.CumulativeBatchnorm, p.Augmented, p.Annealed]
)
def test_one_shard_is_an_ordinary_loop(pipeline: type[p.Small], optimizer: dict[str, Any]) -> None:
    run = train(pipeline, shards=1, steps=4, optimizer=optimizer)
    loop = Loop(pipeline(), 1)
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    plain = kinds[optimizer["name"]](loop.model.parameters(), lr=optimizer["lr"])
    losses = []
    for step in range(4):
        plain.zero_grad()
        loss = loop.loss(step, 0)
        loss.backward()  # type: ignore[no-untyped-call]
        plain.step()
        losses.append(loss.item())
    assert run.losses == pytest.approx(losses, rel=1e-5)
    for name, expected in loop.model.state_dict().items():
        assert torch.allclose(run.parameters[name], expected, rtol=1e-4, atol=1e-5), name


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    """Also where a schedule changes it, which writes into it as those of torch do."""
    gamma = 0.7
    run = train(p.RateInATensor, shards=1, optimizer=None, schedule={"name": "exponential", "gamma": gamma})
    loop = Loop(p.RateInATensor(), 1)
    plain = loop.pipeline.optimizer(loop.model)
    assert plain is not None
    first, last = plain.param_groups
    kept = last["lr"].item()
    for step in range(4):
        first["lr"] = 0.02 * gamma**step
        last["lr"].fill_(kept * gamma**step)
        plain.zero_grad()
        loop.loss(step, 0).backward()  # type: ignore[no-untyped-call]
        plain.step()
    assert all(torch.equal(run.parameters[name], parameter) for name, parameter in loop.named())


@pytest.mark.parametrize("pipeline", thinned([p.Mlp, p.Wide, p.Lstm, p.Attention, p.Images, p.Frozen], 2))
def test_the_gradient_is_the_mean_over_the_micro_batches(pipeline: type[p.Small]) -> None:
    """The learning rate is so large that after one step a parameter is its gradient but for rounding."""
    rate = 2.0**12
    shards = 4
    run = train(pipeline, Layout(3, "tree"), shards=shards, steps=1, optimizer={"name": "sgd", "lr": rate})
    loop = Loop(pipeline(), shards)
    rows = [2, 3, 2, 3]  # ten rows over four shards
    for name, parameter in loop.named():
        mean = torch.zeros_like(parameter, dtype=torch.float64)
        for shard, weight in enumerate(rows):
            loop.model.zero_grad()
            loop.loss(0, shard).backward()  # type: ignore[no-untyped-call]
            if parameter.grad is not None:
                mean += parameter.grad.double() * weight / sum(rows)
        found = (parameter.detach().double() - run.parameters[name].double()) / rate
        assert (found - mean).abs().max() <= 1e-6 * mean.abs().max(), name


def test_a_weight_counts_as_often_as_it_says() -> None:
    """The loss of a step is the mean over its tokens, not over its shards."""
    run = train(p.MaskedTokens, steps=1, shards=4)
    loop = Loop(p.MaskedTokens(), 4)
    pairs: list[Any] = [loop.loss(0, shard) for shard in range(4)]
    known = [(loss.item(), int(weight)) for loss, weight in pairs if weight]
    assert len({weight for _, weight in known}) > 1
    assert run.losses[0] == pytest.approx(sum(loss * w for loss, w in known) / sum(w for _, w in known))


def test_statistics_are_the_mean_over_the_shards() -> None:
    """Weighted by rows, like the gradient: shards of 3 and 4 rows."""
    run = train(p.Batchnorm, Layout(2), steps=1, shards=3)
    loop = Loop(p.Batchnorm(), 3)
    start = {name: buffer.clone() for name, buffer in loop.model.named_buffers()}
    expected = {name: torch.zeros_like(buffer, dtype=torch.float64) for name, buffer in start.items()}
    for shard, weight in enumerate([3, 3, 4]):
        loop.model.load_state_dict(start, strict=False)
        loop.loss(0, shard)
        for name, buffer in loop.model.named_buffers():
            expected[name] += buffer.double() * weight / 10
    for name, buffer in expected.items():
        assert torch.allclose(run.parameters[name].double(), buffer, rtol=1e-6, atol=0), name


def test_clipping_bounds_the_step() -> None:
    limit, rate = 0.05, 0.5
    loop = Loop(p.Mlp(), 5)
    run = train(p.Mlp, Layout(2), steps=1, clip=limit, optimizer={"name": "sgd", "lr": rate})
    moved = torch.cat([(run.parameters[name] - parameter.detach()).reshape(-1) for name, parameter in loop.named()])
    assert float(moved.norm()) == pytest.approx(limit * rate, rel=1e-4)
