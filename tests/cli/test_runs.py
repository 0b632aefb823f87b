"""The table of runs: what is shown, and of which runs."""

from __future__ import annotations

import pytest

from orchestrator.experiments.listing import USUAL, columns, frame, selected, table
from orchestrator.provenance.tracking import Past
from tests.refusals import refused


def past(run_id: str, status: str, lr: str, loss: float) -> Past:
    metrics = {"validation/loss": loss}
    settings = {"optimizer.lr": lr, "topology.name": "ring"}
    who = "bob" if run_id == "b" else "ann"
    return Past(run_id * 8, "digits", "default", status, 0, 4, metrics, "d" * 64, user=who, settings=settings)


RUNS = [past("a", "FINISHED", "0.01", 0.5), past("b", "FAILED", "0.1", 0.25), past("c", "FINISHED", "0.001", 0.125)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, "abc"),
        ("status=finished", "ac"),
        ("status!=finished", "b"),
        ("optimizer.lr<0.1", "ac"),
        ("optimizer.lr<=0.1,validation/loss<0.3", "bc"),
        ("validation/loss>=0.25,topology.name=ring", "ab"),
        ("steps>4", ""),
        ("user=ann", "ac"),
    ],
)
def test_conditions(where: str | None, expected: str) -> None:
    assert [each.run_id[0] for each in selected(RUNS, where)] == list(expected)


@pytest.mark.parametrize(
    ("where", "code", "named"),
    [
        ("optimizer.lrr=1", "record.no-such-name", "optimizer.lr"),
        ("finished", "record.condition", "finished"),
        ("topology.name<3", "record.not-comparable", "'ring'"),
    ],
)
def test_what_is_no_condition_is_said(where: str, code: str, named: str) -> None:
    with refused(code, named):
        selected(RUNS, where)


def test_columns_may_be_chosen() -> None:
    assert columns(None) == USUAL
    assert table(RUNS, columns("run,optimizer.lr,validation/loss")).splitlines() == [
        "run       optimizer.lr  validation/loss",
        "aaaaaaaa  0.01          0.5",
        "bbbbbbbb  0.1           0.25",
        "cccccccc  0.001         0.125",
    ]
    with refused("record.no-such-name"):
        table(RUNS, ["stats"])
    assert table([]) == "no such runs; launch one with conf=NAME"


@pytest.mark.slow  # pandas
def test_a_frame_has_numbers_whole_ids_and_every_result() -> None:
    found = frame(RUNS)
    assert list(found.columns) == [*(name for name in USUAL if name != "results"), "validation/loss"]
    assert found.run.tolist() == [past.run_id for past in RUNS]
    chosen = frame(RUNS, ["optimizer.lr", "topology.name", "steps"])
    assert chosen.to_dict("list") == {
        "optimizer.lr": [0.01, 0.1, 0.001],
        "topology.name": ["ring"] * 3,
        "steps": [4, 4, 4],
    }
    assert frame([]).empty
    with refused("record.no-such-name"):
        frame(RUNS, ["speed"])
