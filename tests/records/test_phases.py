"""The phases before the first step, and their times."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from contextvars import copy_context

import pytest

from orchestrator.records import phases, times


@phases.of_a_launch()
def of_a_launch(*notes: tuple[str, float, float, str | None]) -> list[dict[str, object]]:
    for what, began, ended, line in notes:
        phases.note(what, began, ended, line)
    return phases.recorded()


def test_each_line_begins_with_its_first_phase() -> None:
    told = of_a_launch(("b", 11.0, 12.5, "driver"), ("a", 10.0, 10.5, "driver"), ("c", 9.0, 9.25, "worker 1"))
    assert told == [
        {"member": "driver", "started": 10.0, "spans": [["a", None, None, 0.0, 0.5], ["b", None, None, 1.0, 1.5]]},
        {"member": "worker 1", "started": 9.0, "spans": [["c", None, None, 0.0, 0.25]]},
    ]
    names = [each["args"]["name"] for each in times.chrome(told) if each["name"] == "thread_name"]
    assert sorted(names) == ["driver", "worker 1"]


def test_a_phase_is_noted_also_where_it_fails_and_entering_is_all_of_it() -> None:
    @contextmanager
    def resource():  # type: ignore[no-untyped-def]
        yield 5

    with phases.of_a_launch():
        with pytest.raises(ValueError, match="no"), phases.of("fails"):
            raise ValueError("no")
        with phases.entered("enters", resource()) as found:
            assert found == 5
            assert [span[0] for span in phases.recorded()[0]["spans"]] == ["fails", "enters"]


def test_launches_side_by_side_have_lists_of_their_own_and_threads_take_them_along() -> None:
    with phases.of_a_launch():
        target, noted = copy_context().run, (phases.note, "beside", 1.0, 2.0)
        thread = threading.Thread(target=target, args=noted, name="record")
        thread.start()
        thread.join()
        assert of_a_launch() == []
        assert [line["member"] for line in phases.recorded()] == ["driver, record"]


def test_a_process_has_an_age_that_a_jump_of_the_wall_clock_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = phases.process_age()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 7200.0)
    assert 0 < before <= phases.process_age() < before + 600
    with phases.of_a_launch():
        assert phases.since_command() == 0
        phases.began(phases.COMMAND)
        assert before <= phases.since_command() < before + 600
