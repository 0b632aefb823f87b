"""Segments of a run that an audit repeats, on other layouts: their lines and the states at their ends are those of the run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.plan import Segments
from orchestrator.config.settings import Every
from orchestrator.pipeline import Pipeline
from orchestrator.records import audit
from tests.products import thinned
from tests.refusals import refused
from tests.worker import pipelines as p
from tests.worker.runs import ONE, Keeping, Layout, train
from tests.worker.test_streams import OfStream

pytestmark = pytest.mark.threads

CASES: dict[str, tuple[type[Pipeline], Layout, dict[str, Any]]] = {
    "adam, by a cosine": (
        p.Lstm,
        Layout(3, "tree"),
        {"optimizer": {"name": "adam", "lr": 0.01}, "schedule": {"name": "cosine", "warmup": 2}},
    ),
    "with servers": (p.Batchnorm, Layout(2, "parameter_server", servers=2), {"optimizer": {"name": "adam"}}),
    "what shards keep": (p.Mlp, Layout(3, "ring"), {"compression": {"name": "topk", "ratio": 0.2}}),
    "patience": (
        p.Mlp,
        Layout(2, "ring"),
        {
            "evaluate_every": Every(steps=2, seconds=None),
            "schedule": {"name": "plateau", "patience": 1, "gamma": 0.5},
        },
    ),
    "local steps": (
        p.Mlp,
        Layout(2, "ring"),
        {"local": {"steps": 3, "optimizer": {"name": "sgd", "lr": 0.1}}},
    ),
    "in stages": (p.Mlp, Layout(4, "ring", stages=2), {"optimizer": {"name": "adam"}}),
    "loaders": (p.Mlp, Layout(2, "ring"), {"loaders": 1}),
    "buffers that are joined": (p.KeyQueue, Layout(3, "tree"), {"optimizer": {"name": "adam"}}),
}


LONG = ("adam, by a cosine", "local steps", "patience", "with servers", "loaders", "buffers that are joined")
MARKS = {"in stages": pytest.mark.slow, **dict.fromkeys(LONG, pytest.mark.long)}


@pytest.mark.parametrize("chosen", thinned([[0, 2], [1, 2, 4], [3]], 3, 1), ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CASES])
def test_segments_come_out_as_in_the_whole_run(name: str, chosen: list[int], tmp_path: Path) -> None:
    pipeline, layout, settings = CASES[name]
    settings = {"steps": 14, "digest_every": 0, "shards": 4, "batch_size": 12, **settings}
    kept = Keeping(tmp_path / "kept", archive=3)
    whole = train(pipeline, ONE, keeping=kept, **settings)
    segments = audit.segments_of(0, whole.trace, kept.saved)
    assert [each[:2] for each in segments] == [(0, 3), (3, 6), (6, 9), (9, 12), (12, 14)]
    ranges = tuple(segments[number][:2] for number in chosen)
    again = Keeping(tmp_path / "again", segments=Segments("a", str(kept.folder), ranges))
    run = train(pipeline, layout, keeping=again, **settings)
    assert [line["step"] for line in run.trace] == [step for range_ in ranges for step in range(*range_)]
    for number in chosen:
        part = audit.compared(segments[number], whole.trace, run.trace, again.begun, again.saved)
        assert part.parted is None


STAGES = Layout(2, stages=2)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "other"), [(ONE, STAGES), (STAGES, ONE)], ids=str)
def test_segments_of_streams_agree_though_one_of_the_two_keeps_no_places_in_them(
    first: Layout, other: Layout, tmp_path: Path
) -> None:
    """A model in stages does not."""
    settings: dict[str, Any] = {"steps": 6, "shards": 2, "batch_size": 8, "args": {"kind": "WithState"}}
    kept = Keeping(tmp_path / "kept", archive=3)
    whole = train(OfStream, first, keeping=kept, **settings)
    segments = audit.segments_of(0, whole.trace, kept.saved, kept.without_streams)
    again = Keeping(tmp_path / "again", segments=Segments("a", str(kept.folder), ((0, 3), (3, 6))))
    run = train(OfStream, other, keeping=again, **settings)
    for segment in segments:
        found = audit.compared(segment, whole.trace, run.trace, again.begun, again.saved, again.without_streams)
        assert found.parted is None
    assert {bool(kept.without_streams), bool(again.without_streams)} == {first == ONE, other.stages == 1}


def test_another_state_in_a_kept_checkpoint_is_seen(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 8, "optimizer": {"name": "adam", "lr": 0.1}}
    kept, other = Keeping(tmp_path / "kept", archive=4), Keeping(tmp_path / "other", archive=4)
    whole = train(p.Mlp, ONE, keeping=kept, **settings)
    train(p.Mlp, ONE, keeping=other, **{**settings, "seed": 8})
    segment = audit.segments_of(0, whole.trace, kept.saved)[1]
    again = Keeping(tmp_path / "again", segments=Segments("a", str(other.folder), ((4, 8),)))
    run = train(p.Mlp, ONE, keeping=again, **settings)
    found = audit.compared(segment, whole.trace, run.trace, again.begun, again.saved).parted
    assert found is not None
    assert (found["step"], found["what"], found["expected"]) == (3, "parameters", whole.trace[3]["parameters"])


def test_a_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    again = Keeping(tmp_path / "again", segments=Segments("a" * 8, str(tmp_path / "nowhere"), ((2, 4),)))
    with refused("audit.checkpoint-unusable"):
        train(p.Mlp, ONE, keeping=again)


@given(st.sets(st.integers(0, 60), min_size=2), st.booleans())
def test_whoever_goes_by_the_number_of_steps_does_every_segment_once(borders: set[int], side_by_side: bool) -> None:
    """Also a member that begins again anywhere, as after a loss: it never does a step outside of them."""
    ordered = sorted(borders)
    apart = zip(ordered[::2], ordered[1::2], strict=False)
    pairs = list(itertools.pairwise(ordered) if side_by_side else apart)
    segments = Segments("a", "nowhere", tuple(pairs))
    inside = {step for first, end in pairs for step in range(first, end)}
    for start in (0, *ordered):
        steps, done = start, []
        while not segments.over(steps):
            due = segments.due(steps)
            steps = steps if due is None else due
            done.append(steps)
            steps += 1
        assert done == sorted(step for step in inside if step >= start)
        assert segments.due(steps) is None
    assert all(segments.end_at(end) for _, end in pairs)
