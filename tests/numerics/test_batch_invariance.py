"""Tiles: a row has the same bits whatever is asked with it, and what cannot be had by tiles is found out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from orchestrator.numerics import batch_invariance


class Cross(nn.Module):
    """Rows look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)

    def forward(self, rows: Tensor) -> Tensor:
        hidden: Tensor = self.inner(rows)
        return torch.softmax(hidden @ hidden.T, 1) @ hidden


def sums(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same but for rounding."""
    return (rows[:, 0] + rows[:, 1]) + rows[:, 2], rows[:, 0] + (rows[:, 1] + rows[:, 2])


def by_place(rows: Tensor) -> Tensor:
    """The bits of a row depend on where it stands, as at the end of vectors."""
    forth, back = sums(rows)
    return torch.where(torch.arange(len(rows)) % 2 == 0, forth, back)


def by_neighbours(rows: Tensor) -> Tensor:
    """The bits of a row depend on the others, as in a mixture of experts."""
    forth, back = sums(rows)
    return forth if rows[:, 3].sum() > 0 else back


def rows_of(number: int) -> Tensor:
    return torch.randn(number, 6, generator=torch.Generator().manual_seed(4))


def tried(call: Any, number: int = batch_invariance.EXAMPLES) -> batch_invariance.InvarianceTrial:
    torch.manual_seed(0)
    with torch.no_grad():
        return batch_invariance.tried(call, rows_of(number))


@pytest.mark.slow
def test_rows_that_are_apart_are_answered_by_tiles() -> None:
    found = tried(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh()).eval())
    assert found == batch_invariance.InvarianceTrial(batch_invariance.ROWS)


@pytest.mark.slow
@given(st.lists(st.integers(0, 63), min_size=1, max_size=64))
def test_a_row_stands_in_the_same_place_whatever_is_asked_with_it(chosen: list[int]) -> None:
    rows = rows_of(64)
    assert tried(by_place).rows == batch_invariance.ROWS
    alone = [
        batch_invariance.batch_invariant(by_place, rows[row : row + 1], batch_invariance.ROWS).item() for row in chosen
    ]
    assert batch_invariance.batch_invariant(by_place, rows[chosen], batch_invariance.ROWS).tolist() == alone


def test_where_neighbours_change_the_rounding_a_row_is_a_tile() -> None:
    found = tried(by_neighbours)
    assert found.rows == 1
    assert "one by one" in str(found.why)


def test_equal_rows_are_computed_once_and_parts_may_come_in_any_order() -> None:
    calls = []

    def call(inputs: Any) -> Tensor:
        calls.append(inputs["a"])
        return by_place(inputs["a"] + inputs["b"])

    rows = rows_of(40)
    found = batch_invariance.batch_invariant(call, {"a": rows[[3] * 40], "b": rows[[4] * 40]}, batch_invariance.ROWS)
    assert (len(calls), len(set(found.tolist())), len(found)) == (1, 1, 40)
    one, other = ({"a": rows, "b": rows.flip(0)}, {"b": rows.flip(0), "a": rows})
    assert torch.equal(
        batch_invariance.batch_invariant(call, one, batch_invariance.ROWS),
        batch_invariance.batch_invariant(call, other, batch_invariance.ROWS),
    )


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (Cross(), "depends on the rows beside it"),
        (nn.BatchNorm1d(6, track_running_stats=False).eval(), "depends on the rows beside it"),
        (lambda rows: rows / len(rows), "depends on the rows beside it"),
        (lambda rows: rows.argsort(0), "depends on the rows beside it"),
        (lambda rows: rows.mean(), "not give one answer for each row"),
        (lambda rows: {"hidden": [rows[None]]}, "not give one answer for each row"),
        (lambda rows: rows + torch.randn(()), "others each time"),
    ],
)
def test_what_tiles_would_answer_wrongly_stays_together_and_is_named(call: Any, why: str) -> None:
    found = tried(call)
    assert found.rows is None
    assert why in str(found.why)


def test_a_call_that_changes_its_inputs_in_place_is_tried_with_them_as_they_came() -> None:
    inputs = torch.arange(24.0).reshape(8, 3)
    assert batch_invariance.tried(lambda rows: rows.mul_(2).sum(1), inputs).rows is not None
    assert inputs[0].tolist() == [0, 1, 2]


def test_a_single_sample_proves_nothing() -> None:
    assert tried(nn.Identity(), 1).rows is None


def test_answers_of_every_kind_come_back_in_the_order_of_the_rows() -> None:
    def call(inputs: Any) -> Any:
        ids = inputs["ids"]
        return {"twice": ids * 2, "many": [ids, (ids.numpy(),)], "names": [f"n{each}" for each in ids.tolist()]}

    ids = torch.arange(21)
    found = batch_invariance.batch_invariant(
        call, {"ids": ids, "scale": 2.0, "words": numpy.array([str(each) for each in ids])}, 8
    )
    assert torch.equal(found["twice"], ids * 2)
    assert torch.equal(found["many"][0], ids)
    assert (found["many"][1][0] == ids.numpy()).all()
    assert found["names"] == [f"n{each}" for each in range(21)]


class Judged(NamedTuple):
    score: Any
    names: Any


def test_named_tuples_are_tuples_in_requests_and_answers() -> None:
    """They were told to be no answers for each row, and a request of one to have no rows."""

    def call(asked: Judged) -> Any:
        return Judged(asked.score * 2, [f"{each:g}" for each in asked.score.tolist()]), asked.score.view(-1, 1).max(1)

    scores = torch.arange(11.0)
    judged, most = batch_invariance.batch_invariant(call, Judged(scores, "shared"), 4)
    assert torch.equal(judged.score, scores * 2)
    assert judged.names == [f"{each}" for each in range(11)]
    assert torch.equal(most[0], scores)
    assert tried(lambda rows: Judged(rows, rows[:, 0])).rows == batch_invariance.ROWS


def test_rows_of_several_lengths_are_tiled_apart_and_nothing_is_padded() -> None:
    seen = []

    def call(rows: Tensor) -> Any:
        seen.append(tuple(rows.shape))
        return {"sum": rows.sum(1), "same": rows}

    rows = [torch.arange(1.0, length + 1) for length in (2, 5, 2, 3, 5, 2)]
    found = batch_invariance.batch_invariant(call, rows, 2)
    assert found["sum"].tolist() == [each.sum().item() for each in rows]
    assert all(torch.equal(one, other) for one, other in zip(found["same"], rows, strict=True))
    assert {shape[0] for shape in seen} == {2}
    assert {shape[1] for shape in seen} == {2, 3, 5}


def test_parts_of_several_numbers_of_rows_are_named() -> None:
    with pytest.raises(batch_invariance.NotByRows, match="a 3, b 4"):
        batch_invariance.count({"a": torch.zeros(3, 2), "b": torch.zeros(4)})
    assert batch_invariance.batch_invariant(lambda rows: rows, torch.zeros(0, 2), 8).shape == (0, 2)
