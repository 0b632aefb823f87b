"""Cells that cannot be have a reason; results of several parts are put together; the table shows what is not met."""

from __future__ import annotations

import json
from typing import Any

import pytest

from campaign import cells, kinds, modes, moments, table
from campaign.cells import Cell, Results


def launch(id: str, mode: str = "bsp", **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"seed": 1, "storm": False, "load": 2.0, "findings": [], "struck": 1}
    return {"what": "launch", "id": id, "mode": mode, **plain, **more}


def fault(id: str, kind: str = "SIGKILL", moment: str = "vote", **more: Any) -> dict[str, Any]:
    return {"what": "fault", "id": id, "kind": kind, "moment": moment, "struck": True, **more}


@pytest.mark.parametrize(
    ("kind", "moment", "mode", "reason"),
    [
        ("SIGKILL", "held sum", "bsp", "second vote"),
        ("SIGKILL", "held sum", "stages of 2", None),
        ("SIGKILL", "rest", "bsp", "no rests"),
        ("SIGKILL", "rest", "ssp", None),
        ("GIL held", "anywhen", "bsp", "from outside"),
        ("SIGKILL", "anywhen", "bsp", None),
        ("disk full", "vote", "bsp", "surroundings"),
    ],
)
def test_a_cell_that_cannot_be_has_a_reason(kind: str, moment: str, mode: str, reason: str | None) -> None:
    why = cells.impossible(kinds.BY_NAME[kind], moments.BY_NAME[moment], modes.BY_NAME[mode])
    assert why is None if reason is None else reason in str(why)


def test_every_cell_is_possible_or_has_a_reason() -> None:
    shown = [kind for kind in kinds.KINDS if kind.has_moments]
    every = len(shown) * len(moments.MOMENTS) * len(modes.MODES)
    assert len(cells.possible([kind.name for kind in shown])) + sum(cells.reasons().values()) == every


def test_results_of_several_parts_are_put_together() -> None:
    lines = [
        fault("a"),
        launch("a"),
        fault("b"),
        fault("b", moment="sum", struck=False),
        launch("b", mode="ssp"),
        fault("c"),
    ]
    found = cells.read(lines)
    assert found.struck == {Cell("SIGKILL", "vote", "bsp"): 1, Cell("SIGKILL", "vote", "ssp"): 1}
    assert len(found.launches) == 2


def test_what_is_kept_in_short_has_the_same_table() -> None:
    flipped = fault("b", "flipped gradients", every=5, first=3, found=5, named=True, out=True, repeated=True)
    faults = [fault("a", seconds=0.25), fault("a", "abort", "sum", pair=True), flipped]
    lives: list[dict[str, Any]] = [
        {
            "what": "lives",
            "kind": "stages",
            "first": first,
            "count": 10,
            "failed": [],
            "ended": [{"seed": first, "why": "w"}],
        }
        for first in (0, 10)
    ]
    whole = cells.read([*faults, launch("a", storm=True), launch("b", findings=["bits: no"]), *lives])
    short = cells.read(json.loads(json.dumps(line)) for line in cells.folded(whole))
    assert table.markdown(short, "here") == table.markdown(whole, "here")


def test_a_launch_that_was_repeated_counts_once() -> None:
    found = cells.read([fault("a"), launch("a", findings=["bits"]), fault("a"), fault("a", moment="sum"), launch("a")])
    assert [each["findings"] for each in found.launches] == [[]]
    assert len(found.faults) == 2


def test_what_is_not_met_is_known() -> None:
    met = dict.fromkeys(cells.possible(kinds.WITH_MOMENTS)[3:], 1)
    assert len(Results(met).unfilled) == 3


def test_the_table_shows_counts_dashes_and_zeros() -> None:
    lines = [*[fault("a", seconds=0.1 * n) for n in range(1, 4)], launch("a", findings=["bits: another digest"])]
    made = table.markdown(cells.read(lines), "2 cores")
    row = next(line for line in made.splitlines() if line.startswith("| SIGKILL |"))
    columns = [column.strip() for column in row.strip("|").split("|")][1:]
    assert dict(zip(moments.NAMES, columns, strict=True)) == {**dict.fromkeys(moments.NAMES, "0"), "vote": "3"}
    row = next(line for line in made.splitlines() if line.startswith("| GIL held |"))
    assert row.endswith("| - |")
    assert "| bits that differed | 1 | 0 |" in made
    assert "| from the loss of a worker to the next step, median of 3 | 0.20 s | 0.3 s |" in made
    assert "| the worst | 0.30 s (SIGKILL at vote of a) |  |" in made
    assert "| launches in which something did not hold | 1 of 1 | 0 |" in made


def test_times_of_a_quiet_machine_are_told_apart() -> None:
    lines = [fault("a", seconds=0.2), launch("a"), fault("b", seconds=3.0), launch("b", load=9.0)]
    made = table.markdown(cells.read(lines), "2 cores")
    assert "| median, and 99 %, of 1 at a load below 3 | 0.20 s, 0.20 s | 0.3 s, 2 s |" in made


def test_the_table_is_written_between_its_markers() -> None:
    page = f"before\n{table.BEGIN}\nof yesterday\n{table.END}\nafter"
    made = table.on_page(page, Results(), "2 cores")
    assert made.startswith(f"before\n{table.BEGIN}")
    assert made.endswith(f"{table.END}\nafter")
    assert "of yesterday" not in made
    assert "| cells met | 0 of " in made


def test_seeds_are_told_as_ranges() -> None:
    assert table._ranges([1, 2, 3, 7, 9, 10]) == "1 to 3, 7, 9 to 10"
