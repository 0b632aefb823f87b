"""A member allocates what its part of the schedule needs, and the sentence about it says what is really there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from orchestrator.comm.collectives import Memory, partial_places
from orchestrator.comm.topologies import build_schedule
from orchestrator.common.figures import sized
from orchestrator.config.resolve import resolve
from orchestrator.numerics.exact import FAST_MEANS, INTEGERS, MEANS, Sums
from orchestrator.numerics.layout import BLOCK, Layout
from orchestrator.numerics.staging import Resident
from orchestrator.optim import optimizers
from orchestrator.optim.compressions import COMPRESSIONS
from orchestrator.optim.compressions.codec import Model
from orchestrator.worker import footprint, memory_needs
from orchestrator.worker.asynchronous import footprint as free_footprint
from orchestrator.worker.footprint import Needed, region_bytes
from orchestrator.worker.pipeline_parallel import border_memory
from orchestrator.worker.pipeline_parallel import footprint as stage_footprint
from orchestrator.worker.step.carriers import Carriers, bytes_beside
from tests.comm.topologies.cases import NAMES, variants
from tests.comm.transports.memory import Hub, LocalRegions
from tests.products import thinned
from tests.worker import pipelines as p
from tests.worker.runs import Layout as On
from tests.worker.runs import _Members, members_end, settings_for

BLOCKS = 12
LAYOUT = Layout.of([("w", torch.empty(BLOCKS * BLOCK))])


class Counting(LocalRegions):
    """Knows how many bytes are allocated now, and how many were at most."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.most = 0

    @property
    def now(self) -> int:
        return sum(self.sizes.values())

    def allocate(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        region = super().allocate(elements, dtype)
        self.sizes[region.data_ptr()] = elements * dtype.itemsize
        self.most = max(self.most, self.now)
        return region

    def free(self, region: torch.Tensor) -> None:
        super().free(region)
        self.sizes.pop(region.data_ptr(), None)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sums", [MEANS, FAST_MEANS, INTEGERS])
def test_the_regions_are_those_that_are_foretold(name: str, sums: Sums) -> None:
    for workers in range(1, 9):
        for schedule in variants(name, workers):
            for rank in range(schedule.members):
                regions = Counting()
                memory = Memory(LAYOUT, regions, sums=sums, contributes=rank < workers)
                memory.suit(schedule, rank)
                assert regions.now == regions.most == region_bytes(LAYOUT, schedule, rank, sums)


@pytest.mark.parametrize("workers", [17, *(pytest.param(many, marks=pytest.mark.long) for many in (36, 50))])
@pytest.mark.parametrize("blocks", [1, 12, 100])
@pytest.mark.parametrize("name", NAMES)
def test_of_many_workers_none_needs_a_block_more_than_those_that_are_looked_at(
    name: str, blocks: int, workers: int
) -> None:
    """Borders of chunks lie between blocks, so members that do alike keep as much but for one."""
    layout = Layout((), blocks * BLOCK)
    looked_at = set(footprint.ranks_that_tell(workers))
    assert {0, 1, workers - 1} < looked_at < set(range(workers))
    for schedule in variants(name, workers, (1, 2)):
        needed = [region_bytes(layout, schedule, rank, MEANS) for rank in range(workers)]
        assert max(needed) - max(needed[rank] for rank in looked_at) <= BLOCK * MEANS.dtype.itemsize


def test_of_few_workers_all_are_looked_at() -> None:
    assert list(footprint.ranks_that_tell(16)) == list(range(16))
    assert len(set(footprint.ranks_that_tell(1000))) == 16


@pytest.mark.parametrize(
    ("name", "workers", "blocks"),
    [
        ("ring", 1, [0]),
        ("tree", 1, [0]),
        ("peer_to_peer", 1, [0]),
        ("ring", 2, [0, 0]),
        ("ring", 4, [6, 6, 6, 6]),
        ("peer_to_peer", 4, [3, 3, 3, 3]),
        ("tree", 2, [0, 0]),
        ("tree", 4, [12, 12, 0, 0]),
        ("parameter_server", 4, [0, 0, 0, 0, 12]),
    ],
)
def test_sums_are_kept_only_where_they_are_handed_on_or_grow(name: str, workers: int, blocks: list[int]) -> None:
    schedule = build_schedule(name, workers)
    kept = [partial_places(LAYOUT, schedule, rank).values() for rank in range(schedule.members)]
    assert [sum(place.stop - place.start for place in places) // BLOCK for places in kept] == blocks


def test_a_generation_that_needs_more_gives_back_what_there_was() -> None:
    regions = Counting()
    memory = Memory(LAYOUT, regions, sums=MEANS)
    alone = regions.now
    assert alone == LAYOUT.size * (8 + 4)
    for workers, blocks in ((1, 0), (4, 6), (2, 6), (6, 8)):
        memory.suit(build_schedule("ring", workers), 0)
        assert regions.now - alone == memory.partial.numel() * 8 == blocks * BLOCK * 8


@pytest.mark.parametrize(
    ("name", "options", "elements"),
    [
        ("sgd", {"lr": 0.1}, 0),
        ("sgd", {"lr": 0.1, "momentum": 0.9}, 1),
        ("adamw", {"lr": 0.1, "betas": [0.9, 0.99]}, 2),
        ("adam", {"amsgrad": True}, 3),
        ("adafactor", {}, 0),
    ],
)
def test_what_an_optimizer_remembers_is_found_out(name: str, options: dict[str, Any], elements: int) -> None:
    assert optimizers.remembered(name, options) == elements


def test_a_driver_that_tries_an_optimizer_looks_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **how: looks.append(how))
    assert optimizers.remembered("adam", {"lr": 0.123}) == 2
    assert not looks
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()
    assert looks


@pytest.mark.slow
@pytest.mark.parametrize("on", [On(), On(3, "ring"), On(4, "tree")])
def test_the_sentence_says_what_a_worker_has(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(p.Mlp, on, optimizer={"name": "adamw", "lr": 0.01})
    monkeypatch.setattr("tests.worker.runs.LocalRegions", Counting)
    members = _Members(settings, Hub.transport)
    members.run()
    regions: list[Any] = members._regions
    model, optimizer = members.members[0]._workload.model, members.members[0]._strategy.model_state._updater.optimizer  # type: ignore[union-attr]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    remembered = sum(
        value.numel() for state in optimizer.state.values() for key, value in state.items() if key != "step"
    )
    schedule = build_schedule(on.topology, on.workers)
    layout = Layout.from_dict(members._run_manifest["layout"])
    gradients = -(-settings.data.shards // on.workers) * sum(slot.elements for slot in layout.slots)
    foretold = footprint.worker_needs(layout, schedule, resolve(settings), parameters=parameters).host
    assert foretold == max(each.now for each in regions) + 4 * (parameters + remembered + gradients)
    said = memory_needs.sentence(members._run_manifest, resolve(settings))
    assert said == f"each worker holds {parameters:,} parameters and needs about {foretold / 1e6:.1f} MB for them"


def test_facts_that_do_not_tell_have_no_sentence() -> None:
    settings = settings_for(p.Mlp, On())
    assert memory_needs.sentence({}, resolve(settings)) is None


FREE: list[dict[str, Any]] = [{"name": "bap"}, {"name": "asp", "threshold": 0.05}]


@pytest.mark.slow
@pytest.mark.parametrize("mode", FREE, ids=str)
@pytest.mark.parametrize(
    "on", thinned([On(), On(3, "ring"), On(4, "tree"), On(2, "parameter_server", servers=2)], 4, 3), ids=str
)
def test_so_it_does_where_replicas_run_free(on: On, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(p.Mlp, on, optimizer={"name": "adamw", "lr": 0.01}, sync=mode)
    monkeypatch.setattr("tests.worker.runs.LocalRegions", Counting)
    members = _Members(settings, Hub.transport)
    members.run()
    strategy: Any = members.members[0]._strategy  # type: ignore[union-attr]
    free, updates = strategy._free, strategy._free._updates
    own = [free._x, free._last_barrier.parameters, strategy._deltas.pending]
    own += [updates._before, updates._memory.gradient, updates._memory.update]
    regions: list[Any] = members._regions
    hosted, size = -(-settings.data.shards // on.workers), free.size
    held_back = 8 * size * hosted if mode.get("threshold") else 0
    rows = [[each for each in free._states.of(shard).values() if each.dtype == torch.float32] for shard in free.shards]
    row = max(rows, key=len)  # a shard whose worker was slow may not have made an update, and keeps nothing yet
    elements, steps = (
        len(rows) * sum(map(count, row)) for count in (torch.Tensor.numel, lambda each: each.numel() == 1)
    )
    layout, plan = free.replica.layout, resolve(settings)
    schedule = build_schedule(on.topology, on.workers, **on.options())
    parameters = sum(parameter.numel() for parameter in free.replica.parameters)
    foretold = free_footprint.worker_needs(layout, schedule, plan, parameters=parameters).host
    there = sum(tensor.numel() * tensor.itemsize for tensor in own) + held_back + 4 * parameters
    workers = regions[: on.workers]
    assert foretold == max(each.now for each in workers) + there + 2 * 4 * (elements - steps)
    assert memory_needs.by_stage(members._run_manifest, plan) == [Needed(foretold)]


def test_a_model_of_each_shard_needs_more() -> None:
    gossips = [{"name": "gossip", "graph": graph} for graph in ("ring", "complete")]
    settings = [settings_for(p.Mlp, On(2), optimizer={"name": "sgd", "lr": 0.1}, sync=sync) for sync in gossips]
    few, many = (
        free_footprint.worker_needs(LAYOUT, build_schedule("ring", 2), resolve(each), parameters=0).host
        for each in settings
    )
    assert few == many == 8 * LAYOUT.size * 2 + 20 * LAYOUT.size + 8 * LAYOUT.size * (4 * 3 + 2)


@pytest.mark.parametrize("mode", [{"name": "bap"}, {"name": "gossip"}], ids=str)
def test_who_has_not_the_memory_says_so_before_the_start(mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "available_bytes", lambda: 1000)
    (error,) = members_end(p.Mlp, On(2), sync=mode)
    assert isinstance(error, MemoryError)
    assert str(error).startswith("a worker needs about 0.")
    assert str(error).endswith(" MB for a model whose replicas run free, and 0.0 MB of memory are available")


def test_in_lockstep_too_where_its_first_steps_would_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adam = {"name": "adam", "lr": 0.01}
    monkeypatch.setattr(footprint, "available_bytes", lambda: 100_000)
    (error,) = members_end(p.Wide, On(2, "peer_to_peer"), optimizer=adam)
    assert isinstance(error, MemoryError)
    elements = 6 * 2000 + 2000 + 2000 * 3 + 3
    assert str(error).startswith("a worker needs at least 0.")
    assert f"beside the {elements:,} parameters that it trains, and 0.1 MB of memory are available" in str(error)
    monkeypatch.setattr(footprint, "available_bytes", lambda: 1 << 40)
    assert not [end for end in members_end(p.Wide, On(2, "peer_to_peer"), optimizer=adam) if isinstance(end, Exception)]


CPU = resolve(settings_for(p.Mlp)).run.compute


def _on_cards(**settings: Any) -> Any:
    on_processors = settings_for(p.Mlp, settings.pop("on", On(2)), optimizer={"name": "adamw", "lr": 0.01}, **settings)
    run, cluster = replace(on_processors.run, device="cuda"), replace(on_processors.cluster, gpus_per_worker=1.0)
    return resolve(replace(on_processors, run=run, cluster=cluster))


SIZE = LAYOUT.size
MANIFEST = {"parameters": SIZE, "trained": 1, "layout": LAYOUT.as_dict(), "shard_state": False}


def test_on_a_card_no_gradient_waits_and_nothing_is_in_host_memory() -> None:
    """Own sum 8, result 4, parameters 4, gradient 4, optimizer 8; where it is clipped a copy."""
    plain, clipped = _on_cards(), _on_cards(clip=1.0)
    assert memory_needs.by_stage(MANIFEST, plain) == [Needed(0, 28 * SIZE)]
    assert memory_needs.by_stage(MANIFEST, clipped) == [Needed(0, 32 * SIZE)]
    assert memory_needs.sentence(MANIFEST, plain) == (
        f"each worker holds {SIZE:,} parameters and needs about {28 * SIZE / 1e6:.3g} MB of its GPU for them"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"sync": {"name": "asp", "threshold": 0.05}}, {"clip": 1.0}], ids=str)
def test_no_worker_needs_at_once_more_than_is_told_of_the_one_that_needs_most(name: str, more: dict[str, Any]) -> None:
    """In lockstep one needs just that; replicas that run free give 12 bytes an element to their passes."""
    workers = 4
    plan = _on_cards(on=On(workers, topology=name), shards=4, **more)
    (most,) = memory_needs.by_stage(MANIFEST, plan)
    each = memory_needs.at_once(MANIFEST, plan, footprint.first_schedule(plan), ())
    assert len(each) == workers
    assert max(each) == most.card - (0 if plan.lockstep else 12 * SIZE)


@pytest.mark.parametrize(
    ("more", "elements"),
    [
        ({}, 20),
        ({"clip": 1.0}, 20),
        ({"sync": {"name": "asp", "threshold": 0.05}}, 56),
        ({"sync": {"name": "gossip"}}, 32),
        ({"compression": {"name": "topk", "ratio": 0.1}}, 12),
        ({"privacy": {"clipping_norm": 1.0}}, 20),
        ({"reduction": "fast"}, 16),
    ],
    ids=str,
)
def test_a_spare_holds_what_it_has_prepared(more: dict[str, Any], elements: int) -> None:
    """As torch's allocator told of workers that had prepared."""
    plan, large = _on_cards(shards=4, **more), 6_000_640
    layout = Layout.of([("w", torch.empty(large, device="meta"))])
    manifest = {**MANIFEST, "parameters": large, "layout": layout.as_dict()}
    assert memory_needs.of_a_spare(manifest, plan) == elements * large
    assert memory_needs.of_a_spare(manifest, replace(plan, run=replace(plan.run, compute=CPU))) == 0
    assert memory_needs.of_a_spare({"stages": {}}, plan) == 0


def test_a_server_needs_the_sum_of_its_part_and_the_result_where_it_adds_up_on_a_card() -> None:
    schedule = build_schedule("parameter_server", 2, servers=2)
    lockstep, free = _on_cards(), _on_cards(sync={"name": "bap"})
    for plan, each in ((lockstep, [8 * SIZE // 2 + 4 * SIZE] * 2), (free, [0, 0])):
        assert memory_needs.of_servers(MANIFEST, plan, schedule) == each


def test_of_stages_each_worker_needs_what_its_own_does() -> None:
    plan = _on_cards(on=On(4, stages=2), shards=6)
    cut = {"borders": ["2"], "parameters": [600, 400], "shares": [0.5, 0.5], "crossing": [0]}
    schedule = footprint.first_schedule(plan)
    assert memory_needs.at_once({"stages": cut}, plan, schedule, (0, 1, 1, 0)) == [28 * n for n in (600, 400, 400, 600)]


def test_plain_sums_take_half_as_much_of_a_card_as_exact_ones() -> None:
    """A gradient, the own sum and the result, all of float32, and the model with what AdamW remembers."""
    (kept,) = memory_needs.by_stage(MANIFEST, _on_cards(reduction="fast", shards=6))
    assert kept == Needed(0, (4 + 4 + 4 + 4 + 8) * SIZE)


@pytest.mark.parametrize(("feedback", "each"), [(False, 4), (True, 8)])
def test_contributions_that_are_compressed_are_held_on_the_card(feedback: bool, each: int) -> None:
    """They are of three shards, with what those kept; beside them a gradient, the result and the model."""
    compressed = _on_cards(compression={"name": "topk", "ratio": 0.1}, shards=6)
    (kept,) = memory_needs.by_stage({**MANIFEST, "shard_state": feedback}, compressed)
    assert kept == Needed(0, (3 * each + 4 + 4 + 4 + 8) * SIZE)


@pytest.mark.parametrize(
    ("name", "options"),
    [("quantize", {}), ("quantize", {"bits": 16}), ("topk", {}), ("powersgd", {}), ("powersgd", {"reset": 2})],
    ids=str,
)
def test_the_sums_of_a_compression_on_the_card_are_foretold(name: str, options: dict[str, Any]) -> None:
    """In the footprint of a worker, and of a spare, which has prepared them."""
    taken: list[int] = []

    class Counted(Resident):
        def empty(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
            taken.append(elements * dtype.itemsize)
            return super().empty(elements, dtype)

    shapes = ((70, 90), (9000,), (3, 4, 5))
    codec = COMPRESSIONS.build(name, options)(Model(shapes, 8, 0))
    assert codec is not None
    carriers = Carriers(codec, (), 8, LocalRegions(), staging=Counted(torch.device("cpu")))
    assert bytes_beside(codec) == carriers.held_bytes == sum(taken)
    layout = Layout.of([(str(shape), torch.empty(shape, device="meta")) for shape in shapes])
    manifest = {**MANIFEST, "layout": layout.as_dict(), "trained": len(shapes)}
    with_it, without = (
        _on_cards(compression={"name": each, **given}, shards=8)
        for each, given in ((name, options), ("topk", {"error_feedback": False}))
    )
    needed = [memory_needs.by_stage(manifest, plan)[0].card for plan in (with_it, without)]
    waiting = [memory_needs.of_a_spare(manifest, plan) for plan in (with_it, without)]
    assert needed[0] - needed[1] == waiting[0] - waiting[1] == sum(taken)


@pytest.mark.parametrize(("masked", "here"), [(False, 16), (True, 24)])
def test_clipped_contributions_are_integers_on_the_card_and_add_up_in_host_memory(masked: bool, here: int) -> None:
    """Own sum 8, gradient 4, result 4, and the model; what is contributed, and the sum; to be masked, a copy of the own sum."""
    (kept,) = memory_needs.by_stage(MANIFEST, _on_cards(privacy={"clipping_norm": 1.0}, masked=masked))
    assert kept == Needed(here * SIZE, (8 + 4 + 4 + 4 + 8) * SIZE)
    assert str(kept) == f"{sized(28 * SIZE)} of its GPU and {sized(here * SIZE)} of host memory"


@pytest.mark.parametrize("mode", [{"name": "bap"}, {"name": "asp", "threshold": 0.05}, {"name": "gossip"}], ids=str)
def test_replicas_that_run_free_are_on_the_card_with_what_is_kept_of_optimizers(mode: dict[str, Any]) -> None:
    plan = _on_cards(sync=mode, shards=4)
    (here,) = memory_needs.by_stage(MANIFEST, replace(plan, run=replace(plan.run, compute=CPU)))
    (there,) = memory_needs.by_stage(MANIFEST, plan)
    assert here.card == 0
    assert there == Needed(0, here.host + 4 * SIZE)
    assert "of its GPU for them" in str(memory_needs.sentence(MANIFEST, plan))


def test_a_stage_has_places_for_what_crosses_its_borders() -> None:
    plan = _on_cards(on=On(4, stages=2), shards=6, clip=1.0)
    cut = {"borders": ["2"], "parameters": [600, 400], "shares": [0.5, 0.5], "crossing": [1000]}
    assert stage_footprint.by_stage(cut, plan) == [Needed(0, 32 * 600 + 3 * 1024), Needed(0, 32 * 400 + 3 * 1024)]
    older = {name: value for name, value in cut.items() if name != "crossing"}
    assert stage_footprint.by_stage(older, plan) == [Needed(0, 32 * 600), Needed(0, 32 * 400)]
    assert memory_needs.sentence({"parameters": 1000, "stages": cut}, plan) == (
        "the model of 1,000 parameters is cut: stage 0 from the first layers (600 parameters, 22.3 kB of its GPU, 50% of the "
        "computation), stage 1 from 2 (400 parameters, 15.9 kB of its GPU, 50% of the computation)"
    )


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert border_memory.bytes_of_places(300 << 20, 300 << 20, 8) == 600 << 20  # two would be more than a GiB
    assert border_memory.bytes_of_places(600 << 20, 600 << 20, 8) == 0
    assert border_memory.bytes_of_places(0, 0, 8) == 0
    monkeypatch.setattr(border_memory, "_MOST_BYTES", 4 * 512)
    for sizes in ((1, 0), (500, 12), (513, 511)):
        for shards in range(6):
            regions = Counting()
            memory = border_memory.BorderMemory(regions, *sizes)
            memory.suit(range(shards))
            assert regions.now == border_memory.bytes_of_places(*sizes, shards)
