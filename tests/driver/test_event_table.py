"""Each event of the table: its line in the journal, its metrics, its sentences, and the outcome after it."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from orchestrator.controller.checking import Verdict
from orchestrator.data.drift import Drift
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.run.event_table import EVENTS, only
from orchestrator.driver.run.stall_location import StallLocation
from orchestrator.records.files_read import FilesRead

SCHEDULE: Any = SimpleNamespace(workers=2)
GENERATION = SimpleNamespace(
    workers=2,
    begin=SimpleNamespace(shards=((0, 1), (2,)), absent=()),
    schedule=SCHEDULE,
    as_event=lambda: {"number": 0},
)


class Example(NamedTuple):
    event: str
    facts: dict[str, Any]
    line: dict[str, Any] | None  # in the journal
    sentences: tuple[str, ...] = ()
    metrics: dict[str, float] | None = None
    changes: dict[str, Any] | None = None  # of the outcome


EXAMPLES = [
    Example("signal", {"name": "SIGINT"}, {"name": "SIGINT"}),
    Example(
        "stop_waits",
        {"signal": "SIGINT", "what": "worker 0 (silent for 6 s)"},
        {"signal": "SIGINT", "what": "worker 0 (silent for 6 s)"},
        ("SIGINT: waiting for worker 0 (silent for 6 s); a second one ends the run at once",),
    ),
    Example("decided", {"from": "a", "to": "b", "reason": "c"}, {"from": "a", "to": "b", "reason": "c"}),
    Example("driver_lost", {"pid": 1, "steps_lost": 2}, {"pid": 1, "steps_lost": 2}),
    Example(
        "generation_started",
        {"generation": GENERATION, "members": [4, 5], "steps": 9, "away": ()},
        {"number": 0, "members": [4, 5], "steps": 9},
        metrics={"system/cluster/workers": 2},
        changes={"generations": 1, "workers": 2, "hosted": (2, 1), "schedule": SCHEDULE},
    ),
    Example(
        "recovered",
        {"kind": "lost", "seconds": 1.23456, "steps_lost": 0, "why": "", "workers": 1},
        {"kind": "lost", "seconds": 1.235, "steps_lost": 0},
        ("went on after 1.24 s, no step lost; 1 worker now",),
        {"system/recovery/lost_s": 1.23456},
        {"recoveries": ({"kind": "lost", "seconds": 1.235, "steps_lost": 0},)},
    ),
    Example(
        "shards_redealt",
        {"micro_batch_s": {1: 0.25}, "step_s": 1.0, "expected_s": 0.5, "moving": 2},
        {"step": 7, "micro_batch_s": [[1, 0.25]], "step_s": 1.0, "expected_s": 0.5, "moving": 2},
        changes={"rebalanced": 1},
    ),
    Example(
        "data_compared",
        {"run": "r", "drift": Drift((), only_a=("x",))},
        {"run": "r", "drifted": [], "only_a": ["x"], "only_b": [], "columns": []},
        ("note: since run r of this experiment the data have drifted:\n  x is gone",),
    ),
    Example(
        "worker_started",
        {"worker": 1, "rank": None, "pid": 2, "node": "n", "shards": [], "card": "GPU-a"},
        {"worker": 1, "rank": None, "pid": 2, "node": "n", "shards": [], "card": "GPU-a"},
    ),
    Example(
        "server_started",
        {"server": 1, "rank": 2, "pid": 3, "node": "n"},
        {"server": 1, "rank": 2, "pid": 3, "node": "n"},
    ),
    Example(
        "worker_lost",
        {"worker": 1, "why": "w", "where": "node a"},
        {"worker": 1, "step": 7, "why": "w"},
        ("worker 1 on node a was lost after step 7: w",),
    ),
    Example(
        "server_lost",
        {"server": 1, "why": "w", "where": None},
        {"server": 1, "step": 7, "why": "w"},
        ("server 1 was lost after step 7: w",),
    ),
    Example(
        "worker_left",
        {"worker": 1},
        {"worker": 1, "step": 7},
        ("worker 1 left after step 7, since its node goes away",),
    ),
    Example(
        "server_left",
        {"server": 1},
        {"server": 1, "step": 7},
        ("server 1 left after step 7, since its node goes away",),
    ),
    Example(
        "ray_gone",
        {"why": "the raylet has ended", "details": "its last lines", "stopping": None},
        {"why": "the raylet has ended", "details": "its last lines"},
    ),
    Example(
        "ray_gone",
        {"why": "the raylet has ended", "details": "", "stopping": "SIGTERM"},
        {"why": "the raylet has ended"},
        ("note: the raylet has ended, while the run is stopped (SIGTERM)",),
    ),
    Example(
        "node_drained",
        {"node": "n", "members": ["worker 1"], "seconds": 12.34, "is_ours": True},
        {"node": "n", "members": ["worker 1"], "step": 7, "seconds": 12.3},
        (
            "n goes away in 12 s (Ray drains it); worker 1 leaves when others have come",
            "warning: this launch runs there and ends with it\n"
            "  interrupt it (Ctrl-C), which saves a checkpoint, and resume it on another node",
        ),
    ),
    Example(
        "node_drained",
        {"node": "n", "members": [], "seconds": None, "is_ours": False},
        {"node": "n", "members": [], "step": 7},
        ("n goes away (Ray drains it)",),
    ),
    Example(
        "disturbed",
        {"number": 0, "kind": "pause", "worker": 1, "where": "n", "seconds": 1.23456},
        {"number": 0, "kind": "pause", "worker": 1, "step": 7, "seconds": 1.235},
        ("chaos: worker 1 on n is stopped for 1.2 s, disturbance 1",),
        changes={"injected": {"pause": 1}},
    ),
    Example(
        "disturbed",
        {"number": 1, "kind": "kill", "worker": 1, "where": "n", "seconds": None},
        {"number": 1, "kind": "kill", "worker": 1, "step": 7},
        ("chaos: worker 1 on n is killed, disturbance 2",),
        changes={"injected": {"kill": 1}},
    ),
    Example(
        "stacks",
        {"server": 1, "stuck": True, "stand": StallLocation("s", None, [["f"]], "")},
        {"server": 1, "stuck": True, "at": None, "why": "s", "seen_by": "", "stacks": [["f"]]},
    ),
    Example(
        "worker_slow",
        {"worker": 1, "where": "n", "micro_batch_s": 0.2, "others_s": 0.1, "seconds": 12.34},
        {"worker": 1, "where": "n", "step": 7, "micro_batch_s": 0.2, "others_s": 0.1, "seconds": 12.3},
        (
            "warning: a worker has been far slower than the others for 12 s; worker 1 on n: 200 ms for a micro-batch, others "
            "100 ms in the median\n  look at its machine: other jobs (uptime), its clock rate (heat), a part that fails",
        ),
        changes={"slow": ("worker 1 on n: 200 ms for a micro-batch, others 100 ms in the median",)},
    ),
    Example(
        "answers_differ",
        {
            "verdict": Verdict(4, 2, 3, (0,), (0, 1)),
            "workers": (5,),
            "wrong": ["w"],
            "between": ["w", "v"],
            "machines": True,
        },
        {
            "step": 4,
            "shard": 2,
            "since": 3,
            "wrong": (0,),
            "between": (0, 1),
            "copied": False,
            "workers": (5,),
            "names": ["w"],
        },
        (
            "warning: w computed shard 2 of step 4 wrongly; it may have done so since step 3; the step is repeated without its "
            "machine\n  steps before it are in the parameters: rerun=ID on another machine shows whether they are right",
        ),
        changes={"wrong": ("w computed shard 2 of step 4 wrongly; it may have done so since step 3",)},
    ),
    Example(
        "answers_differ",
        {
            "verdict": Verdict(4, None, 4, (), (1, 0), copied=True),
            "workers": (),
            "wrong": [],
            "between": ["worker 1 on n", "worker 0 on n"],
            "machines": False,
        },
        {
            "step": 4,
            "shard": None,
            "since": 4,
            "wrong": (),
            "between": (1, 0),
            "copied": True,
            "workers": (),
            "names": ["worker 1 on n", "worker 0 on n"],
        },
        ("warning: what worker 1 on n sent to worker 0 on n in step 4 arrived otherwise; the step is repeated",),
        changes={"wrong": ("what worker 1 on n sent to worker 0 on n in step 4 arrived otherwise",)},
    ),
    Example("shard_state_unprotected", {"worker": 1, "why": "w"}, {"worker": 1, "why": "w"}),
    Example(
        "checkpoint_saved",
        {
            "step": 5,
            "parts": 2,
            "bytes": 10,
            "state": "d",
            "without_streams": None,
            "seals": {"trace": "t"},
            "stall_s": 0.1234567,
            "seconds": 1.2345,
        },
        {"step": 5, "parts": 2, "bytes": 10, "state": "d", "trace": "t", "stall_s": 0.123457, "seconds": 1.234},
        metrics={"system/checkpoint/stall_s": 0.1234567, "system/checkpoint/seconds": 1.2345},
        changes={"checkpoint": 5},
    ),
    Example(
        "checkpoint_saved",
        {
            "step": 5,
            "parts": 2,
            "bytes": 10,
            "state": "d",
            "without_streams": "e",
            "seals": {},
            "stall_s": 0.5,
            "seconds": 1.5,
        },
        {"step": 5, "parts": 2, "bytes": 10, "state": "d", "without_streams": "e", "stall_s": 0.5, "seconds": 1.5},
        metrics={"system/checkpoint/stall_s": 0.5, "system/checkpoint/seconds": 1.5},
        changes={"checkpoint": 5},
    ),
    Example(
        "checkpoint_failed",
        {"step": 5, "why": "w"},
        {"step": 5, "why": "w"},
        ("warning: the checkpoint of step 5 could not be written, the run goes on without it: w",),
    ),
    Example("checkpoint_passed_over", {"why": "w"}, {"why": "w"}, ("warning: w",)),
    Example(
        "evaluated",
        {"step": 5, "metrics": {"m": math.inf}},
        {"step": 5, "metrics": {"m": "inf"}},
        ("after step 6: m inf",),
        {"m": math.inf},
        {"metrics": {"m": math.inf}},
    ),
    Example(
        "called_back",
        {"step": 5, "seconds": 0.5, "metrics": {"m": 2.0}},
        {"step": 5, "seconds": 0.5, "metrics": {"m": 2.0}},
        metrics={"callback/m": 2.0},
    ),
    Example(
        "called_back",
        {"step": 5, "failed": "f"},
        {"step": 5, "failed": "f", "metrics": {}},
        ("warning: on_evaluation after step 6, the run goes on: f",),
    ),
    Example(
        "called_back",
        {"step": 5, "failed": "f", "stopped": True},
        {"step": 5, "failed": "f", "stopped": True, "metrics": {}},
        ("warning: on_evaluation after step 6: f",),
    ),
    Example(
        "sent",
        {"step": 5, "bytes": 10},
        None,
        metrics={"system/exchange/bytes_per_step": 10},
        changes={"bytes_per_step": 10},
    ),
    Example(
        "card_measured",
        {"step": 5, "card": "GPU-a", "measured": {"utilization": 0.5}},
        None,
        metrics={"system/GPU-a/utilization": 0.5},
    ),
    Example("bytes_read", {"where": "n", "fetched": 1, "cached": 2}, None, changes={"bytes_read": {"n": (1, 2)}}),
    Example(
        "files_read",
        {"numbers": [1], "of": 3},
        None,
        changes={"files_read": FilesRead(frozenset({1}), 3)},
    ),
    Example("segment_begun", {"step": 5, "digest": "d"}, {"step": 5, "digest": "d"}),
    Example("caller_refused", {"member": 1, "why": "w"}, {"member": 1, "why": "w"}, ("member 1 w",)),
    Example("waiting", {"worker": 1, "what": "w"}, {"worker": 1, "what": "w"}, ("worker 1: w",)),
    Example("stages_proved", {"worker": 1, "seconds": [0.1]}, {"worker": 1, "seconds": [0.1]}),
    Example(
        "unserved",
        {"worker": 1, "why": "w", "detail": "d"},
        {"why": "w", "detail": "d"},
        ("note: when it is served, the model answers a whole request at once: w (d)",),
    ),
    Example("device", {"worker": 1, "why": "w"}, {"worker": 1, "why": "w"}, ("note: worker 1: w",)),
    Example(
        "device",
        {"worker": 1, "role": "server", "why": "w"},
        {"worker": 1, "role": "server", "why": "w"},
        ("note: server 1: w",),
    ),
    Example(
        "flops",
        {"worker": 1, "per_sample": 2.0, "card": "NVIDIA L4", "uuid": "u"},
        {"worker": 1, "per_sample": 2.0, "card": "NVIDIA L4", "uuid": "u"},
        changes={"flops_per_sample": 2.0, "cards": {"u": "NVIDIA L4"}},
    ),
    Example(
        "memory",
        {"worker": 1, "peak": 9, "reserved": 12, "largest_free": 2, "graphs": 0, "per_parameter": 20.5},
        {"worker": 1, "peak": 9, "reserved": 12, "largest_free": 2, "graphs": 0, "per_parameter": 20.5},
        changes={
            "gpu_memory": {
                "worker 1": {"peak": 9, "reserved": 12, "largest_free": 2, "graphs": 0, "per_parameter": 20.5}
            }
        },
    ),
    Example("loader_lost", {"worker": 1, "why": "w"}, {"worker": 1, "why": "w"}, ("worker 1: w",)),
    Example(
        "board_out_of_reach",
        {"worker": 1, "why": "w"},
        {"worker": 1, "why": "w"},
        (
            "note: worker 1 cannot reach the memory in which the workers of its host claim shards (w); there they compute "
            "those that are dealt to them",
        ),
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.event)
def test_an_event_is_written_as_its_row_says(example: Example) -> None:
    row, facts = EVENTS[example.event], {"step": 7, **example.facts}
    line = None if row.fields is None else row.fields(facts)
    assert line == example.line
    assert list(line or ()) == list(example.line or ()), "in another order"
    json.dumps(line, allow_nan=False)
    assert tuple(row.sentences(facts)) == example.sentences
    assert row.metrics(facts) == (example.metrics or {})
    after, changes = row.outcome(RunOutcome(), facts), example.changes or {}
    assert {each.name: getattr(after, each.name) for each in fields(after)} == {**vars(RunOutcome()), **changes}


def test_every_row_has_an_example() -> None:
    assert {example.event for example in EXAMPLES} == EVENTS.keys()


def test_what_is_told_twice_adds_up() -> None:
    outcome = RunOutcome()
    told: list[tuple[str, dict[str, Any]]] = [
        ("bytes_read", {"where": "a", "fetched": 1, "cached": 2}),
        ("bytes_read", {"where": "a", "fetched": 10, "cached": 20}),
        ("files_read", {"numbers": [1], "of": 3}),
        ("files_read", {"numbers": [0, 1], "of": 3}),
        *[("disturbed", {"kind": "kill"})] * 2,
    ]
    for event, facts in told:
        outcome = EVENTS[event].outcome(outcome, facts)
    assert outcome == RunOutcome(
        bytes_read={"a": (11, 22)}, files_read=FilesRead(frozenset({0, 1}), 3), injected={"kill": 2}
    )


def test_the_picture_is_of_the_generation_with_most_workers() -> None:
    smaller = SimpleNamespace(workers=1, begin=SimpleNamespace(shards=((0,),)), schedule=SimpleNamespace(workers=1))
    began = EVENTS["generation_started"].outcome
    outcome = began(began(RunOutcome(), {"generation": GENERATION}), {"generation": smaller})
    assert (outcome.schedule, outcome.workers, outcome.generations) == (SCHEDULE, 1, 2)


def test_a_site_whose_shards_sit_out_is_told_with_them() -> None:
    generation = SimpleNamespace(begin=SimpleNamespace(absent=(2, 5)))
    told = EVENTS["generation_started"].sentences({"generation": generation, "away": ["b"]})
    assert told == ("b away: shards 2, 5 sit out until they are back",)


def test_a_field_is_rounded_or_left_out_as_its_name_says() -> None:
    fields_of = only("a", "b:1", "c?", "d:2?")
    assert fields_of({"a": None, "b": 0.25, "c": "", "d": None, "e": 1}) == {"a": None, "b": 0.2}
    assert fields_of({"a": [], "b": 1.0, "c": [], "d": 1.234}) == {"a": [], "b": 1.0, "c": [], "d": 1.23}
    with pytest.raises(KeyError):
        fields_of({"a": 1})
