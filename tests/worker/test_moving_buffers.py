"""Buffers that move while batches are computed are one again by a rule that no layout can move (rule A8).

Models are in `pipelines.py`; here are the laws of the rules, what they give, the ways of a run in which they hold, and what is
refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from orchestrator.adapters import table
from orchestrator.config.resolve import resolve
from orchestrator.errors import ConfigurationError
from orchestrator.numerics.streams import seeded
from orchestrator.pipeline import Pipeline
from orchestrator.worker.model import construction
from orchestrator.worker.model.moving_buffers import RULES, BufferRemains, declared
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.elastic import EVERYTHING, Fault, stop_and_go_on, survive
from tests.worker.runs import ONE, Layout, assert_same_run, members_end, settings_for, train
from tests.worker.test_elastic import RICH

pytestmark = pytest.mark.threads

JOINING = sorted(name for name, rule in RULES.items() if rule.join is not None)
MODELS: list[type[Pipeline]] = [p.Spectral, p.Codebook, p.KeyQueue]
ODD = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1.0, -1.5, 1e-45, -1e-45]
floats = st.sampled_from(ODD)


# ---- laws, for every rule that joins


def _joined(rule: str, values: dict[int, Tensor], workers: list[list[int]], start: Tensor | None = None) -> Tensor:
    """The buffer that workers agree on which host these shards, in this order. start: its values at the start of
    the step; zeros by default."""
    buffer = torch.zeros_like(next(iter(values.values())))
    start = torch.zeros_like(buffer) if start is None else start
    each = [BufferRemains({rule: {"buffer": buffer}}, [start]) for _ in workers]
    for left, shards in zip(each, workers, strict=True):
        for shard in shards:
            buffer.copy_(values[shard])
            left.add(shard)
    payloads = [left.payload(min(values)) for left in each]
    results = [left.joined(payloads)[0] for left in each]
    assert all(torch.equal(_bits(other), _bits(results[0])) for other in results)
    return results[0]


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("rule", JOINING)
@given(
    st.dictionaries(st.integers(0, 20), st.lists(floats, min_size=3, max_size=3), min_size=1, max_size=8),
    st.lists(floats, min_size=3, max_size=3),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8]),
    st.randoms(use_true_random=False),
)
def test_whoever_hosts_which_shards_and_in_what_order(
    rule: str, told: dict[int, list[float]], before: list[float], workers: int, dtype: torch.dtype, dice: Any
) -> None:
    """Some workers have none, and some shards leave the buffer as it was."""
    dtype = dtype if RULES[rule].fits(dtype) else torch.int8
    start = _of(dtype, before)
    values = {shard: _of(dtype, before if dice.randrange(4) == 0 else row) for shard, row in told.items()}
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for shard in dice.sample(sorted(values), len(values)):
        dealt[dice.randrange(workers)].append(shard)
    assert torch.equal(
        _bits(_joined(rule, values, dealt, start)),
        _bits(_joined(rule, values, [sorted(values), *[[]] * (workers - 1)], start)),
    )


def _of(dtype: torch.dtype, row: list[float]) -> Tensor:
    if dtype.is_floating_point:
        return torch.tensor(row, dtype=dtype)
    return torch.tensor([61 * ODD.index(each) for each in row]).to(dtype)


@given(st.integers(0, 255), st.lists(st.integers(0, 255), min_size=1, max_size=6))
def test_a_sum_has_what_each_shard_has_added(begin: int, added: list[int]) -> None:
    values = {shard: torch.tensor([(begin + each) % 256], dtype=torch.uint8) for shard, each in enumerate(added)}
    total = _joined("sum", values, [[*values]], torch.tensor([begin], dtype=torch.uint8))
    assert total.item() == (begin + sum(added)) % 256


def test_what_is_changed_is_taken_from_whoever_has_changed_it() -> None:
    begin = torch.tensor([5.0, 5.0, 5.0, math.nan, 0.0])
    values = {
        0: torch.tensor([5.0, 2.0, 2.0, math.nan, 0.0]),
        1: torch.tensor([1.0, 5.0, 3.0, 4.0, -0.0]),
        2: torch.tensor([5.0, 5.0, 5.0, math.nan, 0.0]),
    }
    assert str(_joined("changed", values, [[2, 1], [0]], begin).tolist()) == "[1.0, 2.0, 3.0, 4.0, -0.0]"


@pytest.mark.parametrize("rule", JOINING)
@pytest.mark.parametrize("other", JOINING)
def test_buffers_without_elements_are_joined_too(rule: str, other: str) -> None:
    """A queue of no keys, as of a model whose queue is switched off."""
    dtype = {name: torch.int64 if name == "sum" else torch.float32 for name in JOINING}
    joined = {
        other: {"other": torch.ones(2, dtype=dtype[other])},
        rule: {"queue": torch.zeros(4, 0, dtype=dtype[rule])},
    }
    start = [buffer for buffers in joined.values() for buffer in buffers.values()]
    each = [BufferRemains(joined, start) for _ in range(3)]
    for shard in range(2):
        each[shard].add(shard)
    payloads = [left.payload(0) for left in each]
    for left in each:
        assert [value.shape for value in left.joined(payloads)] == [
            b.shape for bs in joined.values() for b in bs.values()
        ]


@given(st.lists(st.lists(floats, min_size=2, max_size=2), min_size=2, max_size=6))
def test_the_first_is_the_first_and_the_largest_the_largest(rows: list[list[float]]) -> None:
    values = {3 * number + 1: torch.tensor(row) for number, row in enumerate(rows)}
    assert torch.equal(_bits(_joined("first", values, [[*values]])), _bits(values[1]))
    expected = torch.stack([*values.values()]).amax(0)
    assert _joined("largest", values, [[*values]]).equal(expected) or expected.isnan().any()
    assert _joined("largest", values, [[*values]]).isnan().equal(expected.isnan())


def test_zero_is_larger_than_minus_zero_and_whole_numbers_and_flags_have_an_order() -> None:
    zeros = {0: torch.tensor([-0.0, -0.0]), 1: torch.tensor([0.0, -0.0])}
    assert [math.copysign(1, value) for value in _joined("largest", zeros, [[0], [1]]).tolist()] == [1, -1]
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool):
        values = {0: torch.tensor([1, 0], dtype=dtype), 1: torch.tensor([0, 1], dtype=dtype)}
        assert _joined("largest", values, [[0], [1]]).tolist() == [1, 1]


# ---- a buffer that holds nothing from batch to batch

AN_ATTRIBUTE = "layer = model.get_submodule('0'); value = layer.mem; del layer.mem; layer.mem = value"


class Membrane(nn.Linear):
    """Sets its potential anew for each batch, as layers of snntorch do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("mem", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mem = torch.zeros(len(x), self.out_features)
        for _ in range(2):
            self.mem = 0.9 * self.mem + super().forward(x)
        return self.mem


class Spiking(p.Small):
    def model(self) -> nn.Module:
        return nn.Sequential(Membrane(p.FEATURES, p.CLASSES))


class Cached(p.Small):
    """Makes its positions when it needs them, as the ALiBi of x-transformers does."""

    made = False

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("positions", None, persistent=False)
        if self.made:
            self._make(model)
        return model

    def _make(self, model: nn.Module) -> None:
        model.register_buffer("positions", torch.ones(1), persistent=False)

    def loss(self, model: nn.Module, batch: p.Batch) -> Any:
        if dict(model.named_buffers()).get("positions") is None:
            self._make(model)
        return super().loss(model, batch) * model.get_buffer("positions").sum()


class MadeBefore(Cached):
    made = True


def test_a_buffer_that_the_first_batch_makes_is_made_before() -> None:
    """The remedy of another buffer would have `register_buffer` raise KeyError, as there is such an attribute."""
    (end,) = members_end(Cached)
    assert "by one batch of the largest size through it" in str(end)
    assert_same_run(train(MadeBefore, Layout(2)), train(MadeBefore))


class WithAnAttribute(Spiking):
    def model(self) -> nn.Module:
        model = super().model()
        exec(AN_ATTRIBUTE, {"model": model})
        return model


def test_a_buffer_that_each_batch_sets_anew_may_be_an_attribute() -> None:
    """The remedy, to the letter."""
    (end,) = members_end(Spiking)
    assert AN_ATTRIBUTE in str(end)
    assert_same_run(train(WithAnAttribute, Layout(3)), train(WithAnAttribute))


# ---- what they give


class Leaving(p.Small):
    """Each row leaves its own number in all buffers; each shard has one row, and the first two have none that weighs."""

    def inputs(self, rows: int) -> Tensor:
        return torch.arange(rows, dtype=torch.float32).unsqueeze(1).expand(rows, p.FEATURES).clone()

    def model(self) -> nn.Module:
        model = super().model()
        for name in ("mean", "first", "largest"):
            model.register_buffer(name, torch.tensor(0.0))
        return model

    def buffers(self) -> dict[str, str]:
        return {name: name for name in ("mean", "first", "largest")}

    def loss(self, model: nn.Module, batch: p.Batch) -> Any:
        number = batch[0][0, 0]
        for buffer in model.buffers():
            buffer.copy_(number)
        return super().loss(model, batch), int(number != 2)


def test_a_shard_without_weight_counts_for_nothing() -> None:
    """Row 2 of four weighs nothing; the first shard is that of the order of samples."""
    numbers: list[float] = []
    for layout in (ONE, Layout(2), Layout(4, "parameter_server")):
        run = train(Leaving, layout, steps=1, shards=6, batch_size=6, args={"rows": 4, "held_out": None})
        assert run.parameters["mean"].item() == pytest.approx(4 / 3)
        assert run.parameters["largest"].item() == 3
        numbers.append(run.parameters["first"].item())
    assert numbers[0] in (0, 1, 3)
    assert set(numbers) == {numbers[0]}


class Requiring(Leaving):
    """Its buffers require gradients behind a loss, as one of vector-quantize-pytorch does."""

    def loss(self, model: nn.Module, batch: p.Batch) -> Any:
        for buffer in model.buffers():
            buffer.requires_grad_(False)
        loss = super().loss(model, batch)
        for buffer in model.buffers():
            buffer.requires_grad_()
        return loss


def test_buffers_that_require_gradients_move_as_others_do() -> None:
    few: dict[str, Any] = {"steps": 2, "shards": 6, "batch_size": 6, "args": {"rows": 4, "held_out": None}}
    for layout in (ONE, Layout(3)):
        assert_same_run(train(Requiring, layout, **few), train(Leaving, layout, **few))


def test_one_shard_leaves_what_plain_torch_leaves() -> None:
    run = train(p.Spectral, steps=1, shards=1)
    with seeded(7, "model"):
        model = p.Spectral().model()
    model.train()
    model(torch.zeros(2, p.FEATURES))  # a power iteration depends on the weights alone
    for name, buffer in model.named_buffers():
        assert torch.equal(run.parameters[name], buffer)
    many = train(p.Spectral, steps=1, shards=5)
    for name, buffer in model.named_buffers():
        assert torch.equal(many.parameters[name], buffer)


def test_shards_begin_a_step_with_the_same_buffers() -> None:
    """Each adds 1 in a step, whoever has computed others before."""
    for layout in (ONE, Layout(3)):
        assert train(p.Codebook, layout, steps=6).parameters["calls"].item() == 6


class Centred(p.Small):
    """The optimizer keeps moving averages of what shards have left in buffers: the centre of DINO."""

    def model(self) -> nn.Module:
        model = super().model()
        for name in ("mean", "first", "largest", "calls"):
            model.register_buffer(name, torch.zeros((), dtype=torch.int64 if name == "calls" else torch.float32))
        model.averages = nn.Parameter(torch.zeros(4), requires_grad=False)
        return model

    def buffers(self) -> dict[str, str]:
        return {name: name for name in ("mean", "first", "largest")}

    def loss(self, model: Any, batch: p.Batch) -> Any:
        loss = super().loss(model, batch)
        if model.training:
            for buffer in (model.mean, model.first, model.largest):
                buffer.copy_(batch[0].sum())
            model.calls.add_(1)
        return loss + model.averages.sum()

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        class Centering(torch.optim.SGD):
            @torch.no_grad()
            def step(self) -> None:  # type: ignore[override]
                super().step()
                model.averages.lerp_(torch.stack([model.mean, model.first, model.largest, model.calls.float()]), 0.1)

        return Centering([each for each in model.parameters() if each.requires_grad], lr=0.1)


def test_an_optimizer_reads_the_buffers_that_all_shards_have_left() -> None:
    alone = train(Centred, optimizer=None)
    assert alone.parameters["averages"].count_nonzero() == 4
    assert_same_run(train(Centred, Layout(3, "tree"), optimizer=None), alone)


# ---- the ways of a run

LOCAL: dict[str, Any] = {
    "local": {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}},
    "optimizer": {"name": "sgd", "lr": 1.0},
}
ADAM: dict[str, Any] = {"optimizer": {"name": "adam", "lr": 0.02}, "clip": 0.5}
WAYS: dict[str, tuple[dict[str, Any], Layout, dict[str, Any]]] = {
    "local steps": (LOCAL, Layout(3, "parameter_server"), {}),
    "compressed": ({"compression": {"name": "powersgd", "rank": 1}}, Layout(3, "parameter_server", servers=2), {}),
    "claims": ({"steps": 6, "shards": 7}, Layout(3), {"claims": True}),
    "a divided update": ({}, Layout(2), {"sharded": True}),
    "checks": ({"steps": 6}, Layout(3, "tree"), {"check_every": 2}),
    "stages": (ADAM, Layout(3, "tree", stages=2), {}),
    "stages, computed anew": (ADAM, Layout(2, stages=2), {"recompute": True}),
    "bfloat16": ({"precision": "bfloat16"}, Layout(4, "peer_to_peer"), {}),
    "on two nodes": ({"epochs": 2}, Layout(4, "hierarchical", nodes=2), {}),
}
PRODUCT = [(way, kind) for way in WAYS for kind in MODELS]


@pytest.mark.parametrize(
    "number", thinned(range(len(PRODUCT)), 14, 3), ids=lambda n: f"{PRODUCT[n][0]}-{PRODUCT[n][1].__name__}"
)
def test_in_every_way_of_a_run(number: int) -> None:
    way, kind = PRODUCT[number]
    settings, layout, more = WAYS[way]
    assert_same_run(train(kind, layout, **settings, **more), train(kind, ONE, **settings))


@pytest.mark.parametrize("kind", thinned(MODELS, 3), ids=lambda kind: kind.__name__)
def test_whoever_dies_comes_or_goes_on_from_a_checkpoint(kind: type[Pipeline]) -> None:
    whole = survive(kind, Layout(1), steps=3)
    told = survive(kind, Layout(2), [Fault(0, 17, "join"), Fault(1, 38, "die")], steps=3)
    assert told.generations == 3
    assert (told.trace, told.digest, told.metrics) == (whole.trace, whole.digest, whole.metrics)
    whole = survive(kind, Layout(1), **RICH)
    before, after = stop_and_go_on(kind, 16, **RICH)
    assert before.trace + after.trace == whole.trace
    assert after.digest == whole.digest


@pytest.mark.long
@pytest.mark.parametrize("what", ["die", "call off", "regroup"])
def test_a_stage_that_is_lost_takes_its_buffers_from_another_worker(what: Any) -> None:
    unsplit = survive(p.KeyQueue, ONE, checkpoint_every=2, **EVERYTHING)
    for at in (40, 90, 140):
        told = survive(p.KeyQueue, Layout(4, stages=2), [Fault(at % 4, at, what)], 2, **EVERYTHING)
        assert (told.trace, told.digest, told.metrics) == (unsplit.trace, unsplit.digest, unsplit.metrics), at


# ---- what is refused


def _declares(told: Any) -> type[Pipeline]:
    class Declaring(p.Small):
        def model(self) -> nn.Module:
            model = super().model()
            model.register_buffer("scale", torch.ones(3))
            model.register_buffer("count", torch.zeros(2, dtype=torch.int64))
            model.register_buffer("phase", torch.tensor(1j))
            model.register_buffer("wide", torch.zeros(1).expand(6))
            return model

        def buffers(self) -> dict[str, str]:
            if isinstance(told, Exception):
                raise told
            return told  # type: ignore[no-any-return]

    return Declaring


REFUSED: list[tuple[Any, str, str]] = [
    (None, "buffers() returned None", '{"codebook": "mean"'),
    (["scale"], "buffers() returned ['scale']", '{"codebook": "mean"'),
    ({"scale": "total"}, "names the rule 'total', of which there is none", "mean, first, largest"),
    ({"scale": ["mean"]}, "names the rule ['mean']", "mean, first, largest"),
    ({"scales": "mean"}, "names 'scales', and the model has no such buffer", "scale"),
    ({"count": "mean"}, "'count' is torch.int64, and the rule 'mean' is for torch.float32", '"first"'),
    ({"scale": "sum"}, "'scale' is torch.float32, and the rule 'sum' is for integers", '"first"'),
    ({"phase": "largest"}, "'phase' is torch.complex64, and the rule 'largest' is for", '"first"'),
    ({"w*": "first"}, "'wide', for which buffers() has a rule, has gaps in memory or elements that share", "register"),
]


@pytest.mark.parametrize(("told", "words", "remedy"), REFUSED, ids=str)
def test_rules_that_cannot_be_are_refused_before_anything_is_started(
    told: Any, words: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = _rehearsed(_declares(told), monkeypatch)
    assert words in error.message
    assert remedy in (error.remedy or "")


def test_the_first_pattern_that_fits_counts_alone() -> None:
    """As for a codebook with a flag, `vq.*` of vector-quantize-pytorch."""
    model = nn.Module()
    model.register_buffer("initted", torch.tensor(False))
    model.register_buffer("codes", torch.zeros(6))
    pipeline = _declares({"init*": "first", "*": "mean"})()
    assert declared(pipeline, model) == {"initted": "first", "codes": "mean"}


def _rehearsed(kind: type[Pipeline], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> ConfigurationError:
    monkeypatch.setattr(table, "find", lambda *_: kind)
    with pytest.raises(ConfigurationError) as caught:
        construction.rehearse(resolve(settings_for(p.Small, **settings)))
    return caught.value


class Seen(p.Small):
    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("seen", torch.zeros(20, dtype=torch.int64))
        return model

    def buffers(self) -> dict[str, str]:
        return {"seen": "largest"}


@pytest.mark.parametrize("mode", [{"name": "ssp", "staleness": 1}, {"name": "gossip", "graph": "ring"}], ids=str)
@pytest.mark.parametrize(
    ("kind", "rule", "is_mean_named"),
    [(p.Spectral, "first", True), (p.Codebook, "largest", True), (Seen, "largest", False)],
    ids=str,
)
def test_replicas_that_run_free_have_no_first_shard(
    kind: type[Pipeline], rule: str, is_mean_named: bool, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is no remedy for whole numbers."""
    error = _rehearsed(kind, monkeypatch, sync=mode)
    assert f"has the rule '{rule}', and under sync={mode['name']}" in error.message
    assert "set sync=bsp" in (error.remedy or "")
    assert ("or declare another rule" in (error.remedy or "")) == is_mean_named


class Averaged(p.Spectral):
    def buffers(self) -> dict[str, str]:
        return {"*_u": "mean", "*_v": "mean"}


@pytest.mark.long
def test_another_rule_takes_the_place_of_that_of_a_layer_and_goes_with_replicas_that_run_free() -> None:
    mode = {"name": "ssp", "staleness": 0}
    run = train(Averaged, Layout(2), sync=mode)
    again = train(Averaged, Layout(3), sync=mode, replay=run.rests)
    assert (again.trace, again.digest) == (run.trace, run.digest)


@pytest.mark.parametrize("kind", [p.Spectral, p.Codebook], ids=lambda kind: kind.__name__)
def test_no_clipping_bounds_a_buffer(kind: type[Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    error = _rehearsed(kind, monkeypatch, privacy={"clipping_norm": 1.0})
    assert "moves while batches are computed, and no clipping bounds how far" in error.message


class Undeclared(p.Codebook):
    def buffers(self) -> dict[str, str]:
        return {"codes.*": "mean"}


def test_a_buffer_without_a_rule_is_told_with_what_to_write() -> None:
    (end,) = members_end(Undeclared)
    assert "the buffer 'calls' of the model changed while a batch was computed" in str(end)
    for place in ("in the pipeline: def buffers(self): return", "in a LightningModule: buffer_rules ="):
        assert f'{place} {{"calls": "mean"}}; ' in str(end)
    assert '; "first" for a queue, and for what is drawn at random; ' in str(end)  # whose mean would be no key at all
    assert "docs/porting.md, a moving average of the weights" in str(end)  # as what counts the updates of one


class Initialised(p.Small):
    """Sets itself by its first batch, as the ActNorm of nflows does."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer("initialized", torch.tensor(False))
        return model

    def loss(self, model: nn.Module, batch: p.Batch) -> Any:
        model.get_buffer("initialized").fill_(True)
        return super().loss(model, batch)


def test_a_flag_that_the_first_batch_sets_is_told_with_what_to_write() -> None:
    """A rule for it leads to the next refusal, that of the parameters which go with it."""
    (end,) = members_end(Initialised)
    assert "where the first batch sets this flag, send one through the model in model(); else say by which" in str(end)


class Tied(p.Codebook):
    """One book of codes under two names, of which the rule names the other."""

    def model(self) -> nn.Module:
        model = super().model()
        model.again = model.codes
        return model

    def buffers(self) -> dict[str, str]:
        return {"again.*": "mean", "calls": "first"}


def test_a_tied_buffer_may_be_named_by_any_of_its_names() -> None:
    alone = train(Tied)
    assert_same_run(train(Tied, Layout(2)), alone)
    assert torch.equal(alone.parameters["codes.sums"], train(p.Codebook).parameters["codes.sums"])
