"""`make gpu` where no GPU is: what it makes of figures and time, and each of its parts in toy sizes on processors."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import pages
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import bits, machine, memory, parts, plain, runs, sharing
from benchmarks.gpu.__main__ import NO_GPU, main, perform
from benchmarks.gpu.budget import granted
from benchmarks.gpu.kept import Kept
from benchmarks.gpu.order import Slots, ordered
from benchmarks.gpu.parts import CARD, CASES, PARTS, TOY, Bench, Part, Step, half, trials
from benchmarks.gpu.plain import Loop, heard
from benchmarks.gpu.report import ROWS, Row, page, table
from benchmarks.gpu.runs import OutOfTime, RunFailed, checkpoint_ms, number, step_ms
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.numerics.device.kernels import Adder, Operations
from orchestrator.numerics.layout import Layout
from tests.products import thinned
from tests.projects import REPOSITORY

STEP = Row("s", "a step", "ms", ("deterministic", "eager"), None, 90, 0.41)
COMPILED = Row("c", "compiled", "ms", ("deterministic", "eager"), "s", 70, 0.32)
SOON = Row("k", "a loss", "s", (), None, 0.15)


# --- Time -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "planned", "elapsed", "seconds"),
    [
        (30, 0, 0, 30),
        (30, 50, 20, 60),  # what those before it have left
        (30, 50, 70, 30),  # they took more: its share stays
        (30, 50, 80, 20),  # less, but enough
        (30, 50, 90, None),
        (5, 80, 95, 5),  # a shorter one still fits
    ],
)
def test_a_part_takes_its_share_and_what_was_left_and_never_more_than_there_is(
    share: float, planned: float, elapsed: float, seconds: float | None
) -> None:
    assert granted(share, planned, elapsed, 100) == seconds


def needed(*, checks: bool) -> list[float]:
    """Seconds of a half, from the look at the card to the last part that is not spare."""
    return [gpu.LOOK_S, *(part.share_s for part in half(checks=checks) if part.half != "spare")]


def test_the_shares_of_each_half_fit_its_time_and_a_command_of_8_minutes() -> None:
    assert sum(needed(checks=True)) <= gpu.CHECKS_S < 8 * 60
    assert sum(needed(checks=False)) <= gpu.TIMES_S < 8 * 60
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert {part.name for checks in (True, False) for part in half(checks=checks)} == set(names)


@given(st.lists(st.tuples(st.floats(0.5, 500), st.floats(0, 1)), max_size=20), st.floats(0, 100), st.floats(0, 1))
def test_where_all_shares_fit_each_part_gets_its_own_at_least_and_the_end_is_in_time(
    parts_of_time: list[tuple[float, float]], look_s: float, looked: float
) -> None:
    """Each part takes some of what it is granted, also all of it."""
    planned_s, elapsed_s = look_s, look_s * looked
    total_s = look_s + math.fsum(share for share, _ in parts_of_time)
    for share_s, used in parts_of_time:
        seconds = granted(share_s, planned_s, elapsed_s, total_s)
        assert seconds is not None
        assert seconds >= share_s * (1 - 1e-9)
        planned_s, elapsed_s = planned_s + share_s, elapsed_s + used * seconds
    assert elapsed_s <= total_s * (1 + 1e-9)


def test_each_goal_is_measured_by_a_part_that_is_not_spare() -> None:
    """But those of one shard that is compiled, and of what only `--only` has the time for."""
    keys = set(map(measured_by, (part for part in half(checks=False) if part.half != "spare")))
    wanted = {row.key for row in ROWS if row.wanted is not None or row.ratio is not None}
    assert wanted - set().union(*keys) == {"bfloat16, 1, compile", "llama, memory", "memory, card"}


def measured_by(part: Part) -> frozenset[str]:
    """The keys of what a part measures."""
    step = part.work.args[0] if isinstance(part.work, partial) else part.work
    if isinstance(step, Step):
        further = {"checkpoint", "memory"} if step.saves else set()
        return frozenset({step.key} | further | ({"start"} if step.model != "Gpt" else set()))
    return frozenset({part.name})


# --- Small runs side by side ------------------------------------------------------------------------------------------------


SHOWN = st.lists(st.frozensets(st.sampled_from("abcdef")), max_size=12)


@given(SHOWN, st.data())
def test_all_that_can_be_shown_is_shown_before_anything_is_shown_again(
    shown: list[frozenset[str]], data: st.DataObject
) -> None:
    after = {place: data.draw(st.integers(0, place - 1)) for place in range(1, len(shown)) if data.draw(st.booleans())}
    after = {place: other for place, other in after.items() if other not in after}  # of one that needs none itself
    order = ordered(shown, after)
    assert sorted(order) == list(range(len(shown)))
    assert all(order.index(other) < order.index(place) for place, other in after.items())
    seen: set[str] = set()
    for place in order:
        if seen == frozenset().union(*shown):
            break
        assert shown[place] - seen or place in after.values()
        seen |= shown[place]


def test_each_promise_is_shown_once_before_second_examples() -> None:
    order = trials(CASES)
    kinds = {layout.kind for _, layout in order}
    assert kinds == {"1 worker", "SIGKILL", "4 workers", "checked", "stages", "repeated"}
    beginnings = {case.name: next(case.layouts) for case in CASES}
    compared = [(case, layout) for case, layout in order if layout != beginnings[case.name]]
    first = compared[: len(CASES) + 2]
    assert {case.name for case, _ in first} == set(beginnings)
    assert {layout.kind for _, layout in first} == kinds - {"1 worker"}
    assert len(order) == len(set(order_of_names(order))) == sum(len([*case.layouts]) + 1 for case in CASES)


def order_of_names(order: Sequence[tuple[Any, Any]]) -> list[tuple[str, str]]:
    return [(case.name, layout.name) for case, layout in order]


def test_who_asks_for_processors_first_is_served_first_and_never_more_are_taken_than_there_are() -> None:
    slots, lock = Slots(4), threading.Lock()
    began: list[int] = []
    taken, most = 0, 0

    def runs_on(place: int, turn: Any) -> None:
        nonlocal taken, most
        with turn:
            with lock:
                began.append(place)
                taken += turn.wanted
                most = max(most, taken)
            threading.Event().wait(0.002)
            with lock:
                taken -= turn.wanted

    wanted = [2, 1, 9, 1, 1, 3, 2, 4, 1]  # nine are more than there are: all are taken
    threads = [threading.Thread(target=runs_on, args=(place, slots.turn(each))) for place, each in enumerate(wanted)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(began) == list(range(9))
    assert began.index(2) == 2
    assert most <= 4


def test_parts_that_fail_are_told_and_the_others_follow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    turns = []

    def does(raised: BaseException | None = None) -> Any:
        def work(_: Bench, seconds: float) -> None:
            turns.append(seconds)
            if raised is not None:
                raise raised

        return work

    monkeypatch.setattr(Bench, "elapsed_s", 0.0)
    bench = Bench(TOY, kept=Kept(tmp_path))
    given = [
        Part("fails", 10, does(ValueError("no such key"))),
        Part("exits", 10, does(SystemExit("it stands still"))),
        Part("late", 10, does(OutOfTime("it was not done"))),
        Part("lacks", 10, does(), needs="no_such_setting"),
        Part("long", 1000, does()),
        Part("good", 10, does()),
    ]
    perform(bench, given, 50)
    assert turns == [10, 20, 30, 50]
    assert bench.failed
    assert bench.missing == [
        "fails: no such key",
        "exits: it stands still",
        "late: it was not done (skipped)",
        "lacks: this version has no run.no_such_setting (skipped)",
        "long: 0 of 50 s are over; --only long measures it (skipped)",
    ]
    assert "FAILED: fails: no such key" in capsys.readouterr().out


def test_what_a_failure_says_is_kept_with_its_traceback_and_the_records_of_its_run(tmp_path: Path) -> None:
    bench = Bench(TOY, kept=Kept(tmp_path / "kept"))

    def fails(bench: Bench, _seconds: float) -> None:
        with bench.project("a case, in a ring") as project:
            run = project / ".orchestrator" / "7f"
            run.mkdir(parents=True)
            for name in ("error.txt", "journal.jsonl", "weights.safetensors"):
                (run / name).write_text(name)
            (project / "run.yaml").write_text("{}")
            raise RunFailed("it exited with 1", "all that it said")

    perform(bench, [Part("some", 1, fails)], 100)
    folder = tmp_path / "kept"
    assert {each.name for each in folder.iterdir()} == {"log.txt", "failures.txt", "records.tar.gz"}
    with tarfile.open(folder / "records.tar.gz") as archive:
        assert set(archive.getnames()) == {
            f"a-case-in-a-ring/{name}" for name in ("run.yaml", "7f/error.txt", "7f/journal.jsonl")
        }
    told = (folder / "failures.txt").read_text()
    assert told.startswith("some: it exited with 1\nTraceback (most recent call last):\n")
    assert told.rstrip().endswith("all that it said")
    assert "FAILED: some: it exited with 1" in (folder / "log.txt").read_text()


def test_a_run_that_fails_or_stands_still_hides_nothing_of_the_others_of_its_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[float] = []

    def launch(_project: Path, settings: Mapping[str, Any], timeout_s: float, **_: Any) -> runs.Run:
        given.append(timeout_s)
        cluster = settings["cluster"]
        if cluster["workers"] == 1:
            raise RunFailed("it exited with 1", "all that it said")
        if "chaos" in settings:
            raise OutOfTime("it was not done")
        digest = "b" if cluster["stages"] == 2 else "a"
        return runs.Run({"digest": digest, "recoveries": [], "run_id": "7f"}, [])

    monkeypatch.setattr(parts, "launched", launch)
    monkeypatch.setattr(parts, "CASES", CASES[:1])
    monkeypatch.setattr(parts, "processors", lambda: 1)
    monkeypatch.setattr(runs, "said", lambda *_: {"verdict": "exact"})
    bench = Bench(CARD, kept=Kept(tmp_path))
    parts.digests(bench, 1000)
    name = CASES[0].name
    assert bench.missing == [
        f"{name}, 1 worker: it exited with 1",
        f"{name}, 3 workers in a ring, SIGKILL: it was not done (skipped)",
        f"{name}, 2 workers, 2 stages: digest b, and a with 4 workers, tree",
    ]
    assert [line.partition(": ")[0] for line in bench.checks] == [
        f"{name}, 4 workers, tree",
        f"{name}, 3 workers, each step checked",
        f"{name}, repeated by 2 workers, tree",
    ]
    assert given == [pytest.approx(500, abs=20)] * 5
    assert "all that it said" in (tmp_path / "failures.txt").read_text()


def test_a_ray_of_two_hosts_that_does_not_come_up_is_ended_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = threading.Event()

    @contextmanager
    def network(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(names=["a", "b"], processes=[SimpleNamespace(kill=ended.set)])

    def ray_on(*_: Any, **__: Any) -> Any:
        assert ended.wait(60)
        raise AssertionError("all that Ray said")

    for module, double in (
        ("benchmarks.namespaces", SimpleNamespace(wired=network)),
        ("benchmarks.hosts", SimpleNamespace(ADDRESS="a:1", ray_on=ray_on)),
    ):
        monkeypatch.setitem(sys.modules, module, double)
    monkeypatch.setattr(parts, "launched", lambda *_, **__: runs.Run({"digest": "a", "recoveries": []}, []))
    bench = Bench(CARD, kept=Kept(tmp_path))
    perform(bench, [Part("hosts", 0.1, parts.two_hosts)], 100)
    assert bench.missing == ["hosts: all that Ray said"]


def test_a_way_to_sum_that_ends_its_process_is_told_and_tried_again_where_each_call_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Mapping[str, str]] = []

    def executed(
        command: Sequence[str], _folder: Path, _s: float, place: runs.Place = runs.HERE
    ) -> tuple[int, str, str]:
        asked.append(place.variables)
        if command[3] == "kernels":
            return 1, "", "Traceback\nAcceleratorError: an illegal memory access"
        return 0, '{"count": 9, "differed": ["layout 3: total of tensor 0"]}\n', ""

    monkeypatch.setattr(runs, "executed", executed)
    bench = Bench(CARD, kept=Kept(tmp_path))
    parts.kernels(bench, 100)
    assert bench.missing == [
        "sums by kernels: the process exited with 1: AcceleratorError: an illegal memory access",
        "operations of torch: layout 3: total of tensor 0",
    ]
    assert bench.checks == ["sums by operations of torch: 8 of 9 random layouts have the bits of the processor"]
    assert asked == [{}, {"CUDA_LAUNCH_BLOCKING": "1"}, {}]
    assert "again with CUDA_LAUNCH_BLOCKING=1\n" in (tmp_path / "failures.txt").read_text()


def test_what_the_card_tells_of_itself_is_told_as_far_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([(None, "Python\nnvidia-smi: ours\n", ""), (0, f"Python\n{machine.CARD}ours\n", "")])
    monkeypatch.setattr(machine, "executed", lambda *_: next(said))
    told: list[str] = []
    card, trouble = machine.look("cuda", told.append, 9.0)
    assert (told, card) == (["Python", "nvidia-smi: ours"], "a card that does not tell of itself")
    assert trouble.startswith("it did not end in 9 s, after these lines:\nPython\n")
    assert machine.look("cuda", told.append) == ("ours", "")
    assert next(iter(machine.lines("cpu"))).startswith("Python ")


# --- What records say -------------------------------------------------------------------------------------------------------


def window(first: int, steps: int, wall: float, rank: int = 0, **seconds: float) -> Mapping[str, Any]:
    return {"rank": rank, "first": first, "steps": steps, "wall": wall, "seconds": seconds}


def test_a_step_is_that_of_rank_0_after_the_warm_up_without_what_lies_around() -> None:
    windows = [
        window(0, 5, 20.0, compute=19.0),  # graphs are captured
        window(5, 10, 1.0, compute=0.9),
        window(5, 10, 9.0, rank=1, compute=9.0),
        window(15, 0, 0.5, connect=0.5),
        window(15, 10, 2.0, compute=0.9, checkpoint=0.8, evaluate=0.2),
        {**window(25, 10, 7.0), "rank": None},  # a spare
        window(25, 2, 3.0, report=2.8),  # the run ends
    ]
    assert step_ms(windows) == [100.0, pytest.approx(100.0)]
    assert step_ms(windows[:2]) == [100.0]
    assert step_ms(windows, until=15) == [100.0]  # the last of them is whole: the run goes on
    with pytest.raises(RunFailed, match="no window"):
        step_ms(windows[:1])


def test_windows_of_few_steps_are_joined_so_that_no_least_is_a_miscount() -> None:
    """One of these windows of two stages on an H100 has four steps of 64 ms each. The one before it has two of 126."""
    seen = [
        (2, 3, 0.2587),
        (5, 3, 0.2558),
        (8, 3, 0.268),
        (11, 3, 0.2659),
        (14, 3, 0.2789),
        (17, 2, 0.2514),
        (19, 4, 0.2562),
    ]
    windows = [window(*each) for each in [*seen, (23, 1, 2.2059)]]
    assert step_ms(windows) == [pytest.approx(87.7, abs=0.1), pytest.approx(87.4, abs=0.1)]
    assert step_ms(windows[:2]) == [pytest.approx(85.3, abs=0.1)]  # better than none


@given(st.floats(0.001, 2.0), st.lists(st.floats(0.25, 1.5), min_size=1, max_size=30), st.floats(0, 1))
def test_a_sample_is_wrong_by_a_step_in_eight_at_most(step_s: float, walls: list[float], begun: float) -> None:
    """Each window ends somewhere in a step, which counts in the next one. No sample has few steps if there are enough."""
    ends = list(itertools.accumulate(walls, initial=begun * step_s))
    counted = [int(end / step_s) - int(before / step_s) for before, end in itertools.pairwise(ends)]
    found = runs.joined([*zip(walls, counted, strict=True)])
    assert sum(steps for _, steps in found) == sum(counted)
    assert bool(found) is (sum(counted) > 0)
    if found:
        assert math.fsum(seconds for seconds, _ in found) == pytest.approx(math.fsum(walls))
    if sum(counted) >= 8:
        for seconds, steps in found:
            assert steps >= 8
            assert (steps - 1) * step_s * (1 - 1e-9) <= seconds <= (steps + 1) * step_s * (1 + 1e-9)


def test_what_steps_wait_for_a_checkpoint_leaves_out_the_last_one() -> None:
    windows = [
        window(0, 10, 1.0, checkpoint=0.02),
        window(10, 10, 1.0, checkpoint=0.04),
        window(20, 4, 5.0, checkpoint=4.0),
    ]
    journal = [{"event": "checkpoint_saved", "step": step} for step in (6, 12, 18, 24)] + [{"event": "run_ended"}]
    assert checkpoint_ms(windows, journal) == [pytest.approx(20.0)]
    with pytest.raises(RunFailed, match="no checkpoint"):
        checkpoint_ms(windows[:1], journal)


def test_the_bytes_of_a_parameter_are_those_that_workers_count() -> None:
    journal = [{"event": "memory", "worker": 0, "per_parameter": 28.034}, {"event": "memory", "worker": 1}]
    assert runs.bytes_per_parameter([*journal, {"event": "run_ended"}]) == [28.034]


def test_what_is_slower_on_a_card_is_told_once() -> None:
    told = [{"event": "device", "why": why} for why in ("no graphs", "no kernels", "no graphs")]
    assert runs.slower_ways([{"event": "run_started"}, *told]) == ["no graphs", "no kernels"]


def test_what_plain_loops_have_printed_is_heard_up_to_where_they_were_cut_off() -> None:
    lines = [
        "a warning",
        '{"key": "a", "kind": "eager", "samples": [1.0]}',
        '{"key": "a", "kind": "compiled", "error": "no gcc"}',
    ]
    assert heard("\n".join([*lines, "3", '{"key": "b", "ki'])) == (
        {"a": {"eager": [1.0]}},
        ["plain PyTorch, a, compiled: no gcc"],
    )


# --- The table --------------------------------------------------------------------------------------------------------------


def test_the_table_has_ratios_to_the_first_peer_and_what_is_wanted() -> None:
    found = {"s": [84.0, 80.0], "s: eager": [250.0], "s: deterministic": [200.0, 220.0], "c": [80.0], "k": [0.12]}
    assert table(found, [STEP, COMPILED, SOON]).splitlines()[2:] == [
        "| a step | 80.0 / 82.0 ms | deterministic 210, eager 250 | 0.390 | at most 90 ms, 0.41 times | met |",
        "| compiled | 80.0 / 80.0 ms | deterministic 210, eager 250 | 0.381 | at most 70 ms, 0.32 times | **not met** |",
        "| a loss | 0.120 / 0.120 s |  |  | at most 0.15 s | met |",
    ]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [row.met({}) for row in ROWS] == [None] * len(ROWS)
    assert STEP.met({"s": [1.0], "s: eager": [2.0]}) is None  # a ratio is wanted of another peer
    assert "| a step | not measured |" in table({}, [STEP])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1750.4, "1,750"), (221.0, "221"), (84.25, "84.2"), (4.567, "4.57"), (0.0616, "0.062"), (99.99, "100.0")],
)
def test_numbers_have_no_exponent(value: float, shown: str) -> None:
    assert number(value) == shown


def test_the_page_is_replaced_by_what_one_run_found(tmp_path: Path) -> None:
    place = tmp_path / "gpu.md"
    place.write_text((REPOSITORY / "docs" / "benchmarks" / "gpu.md").read_text())
    pages.replace(place, "gpu", page("today, a card", ["sums: 3 of 3"], {"digits": [3.0]}, ["kill: nobody was killed"]))
    text = place.read_text()
    assert "not run on a card yet" not in text
    shown = text.partition("<!-- gpu:")[2].partition("<!-- end of gpu")[0]
    assert "\ntoday, a card\n\n- sums: 3 of 3\n\n| |" in shown
    assert "| digits, 8 shards | 3.00 / 3.00 ms |  |  | at most 4 ms | met |" in shown
    assert shown.endswith("Not measured:\n\n- kill: nobody was killed\n")


def test_the_page_of_the_checks_has_no_table(tmp_path: Path) -> None:
    place = tmp_path / "gpu.md"
    before = (REPOSITORY / "docs" / "benchmarks" / "gpu.md").read_text()
    place.write_text(before)
    pages.replace(place, "gpu-checks", page("today, a card", ["sums: 3 of 3"], None, ["hosts: no root (skipped)"]))
    text = place.read_text()
    shown = text.partition("<!-- gpu-checks:")[2].partition("<!-- end of gpu-checks")[0]
    assert shown.endswith("\ntoday, a card\n\n- sums: 3 of 3\n\nNot checked:\n\n- hosts: no root (skipped)\n")
    assert text.partition("<!-- gpu: ")[2] == before.partition("<!-- gpu: ")[2]


# --- The command ------------------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == NO_GPU == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("no GPU is here to be measured: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "kernels,speed"], "no part speed; there are cards, kernels,"),
        (["--only", "digits", "--page", "docs/benchmarks/gpu.md"], "needs all parts of a half"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    arguments: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert why in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "total_s", "longer"),
    [
        ([], gpu.TIMES_S, 1.0),
        (["--seconds", "920"], 920.0, 920 / gpu.TIMES_S),
        (["--seconds", "100"], 100.0, 1.0),
        (["--only", "llama"], gpu.TIMES_S, 1.0),
        (["--only", "llama,fast", "--seconds", "580"], 580.0, 580 / (gpu.LOOK_S + 440 + 50)),
    ],
)
def test_the_time_that_is_given_is_for_the_parts_that_are_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: Sequence[str], total_s: float, longer: float
) -> None:
    """One part that is chosen alone would stop at its share otherwise, with minutes left."""
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(
        gpu, "perform", lambda _bench, _parts, total_s, longer, _planned_s: told.append((total_s, longer))
    )
    monkeypatch.setattr(machine, "look", lambda *_: ("a card", ""))
    assert main([*arguments, "--keep", str(tmp_path)], TOY) == 0
    ((given_s, times),) = told
    assert given_s == total_s
    assert times == pytest.approx(longer)


def all_settings() -> Iterator[dict[str, Any]]:
    """The settings of the runs that are checked, and of those whose step is measured."""
    for case in CASES:
        for layout in case.layouts:
            yield parts.settings(CARD, case.model, steps=9, precision=case.precision, **case.more, **layout.changes)
    yield parts.llama_settings(CARD, 60.0)
    of_parts = (part.work.args if isinstance(part.work, partial) else [part.work] for part in PARTS)
    for step in itertools.chain.from_iterable(of_parts):
        if isinstance(step, Step):
            yield step.asked(CARD)


@pytest.mark.slow
def test_the_settings_of_all_runs_are_right(tmp_path: Path) -> None:
    seen = 0
    for settings in all_settings():
        (tmp_path / "run.yaml").write_text(json.dumps(settings))
        assert resolve(load([str(tmp_path / "run.yaml")], [])).run.compute.device == "cuda"
        seen += 1
    assert seen > 3 * len(CASES)


def test_plain_loops_do_what_runs_do() -> None:
    made = {loop.key: loop for loop in parts.loops(CARD, ("eager",))}
    for step in (part.work for part in PARTS if isinstance(part.work, Step)):
        if beside := made.get(step.key):
            updates = step.shards if step.single else 1
            assert (beside.model, beside.precision, beside.shards) == (
                step.model,
                step.precision,
                step.shards // updates,
            )
            assert beside.rows == parts.rows_of(CARD, step.model) // updates
            assert beside.clip == step.more.get("gradient", {}).get("clip")
    assert {row.key for row in ROWS if {"deterministic", "eager"} <= {*row.peers} and row.of is None} == set(made)


# --- Its parts on processors ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sums_are_compared_on_layouts_of_all_kinds() -> None:
    assert bits.rounds(Operations(), "cpu", 20, math.inf) == (20, [])
    assert bits.rounds(Operations(), "cpu", 20, 0.0) == (1, [])


class OffByOne(Operations):
    """The last bit of an exact total is another one."""

    def adder(self, layout: Layout, total: torch.Tensor) -> Adder:
        if total.dtype != self.dtype:
            return super().adder(layout, total)
        return Spoiling(super().adder(layout, total), total.view(torch.int64)[: layout.slots[0].elements])


@dataclass
class Spoiling:
    adder: Adder
    first: torch.Tensor  # the total of the first tensor, as integers

    def __call__(
        self,
        tensors: Sequence[torch.Tensor | None],
        weight: float | torch.Tensor,
        anchors: torch.Tensor,
        largest: torch.Tensor,
        *,
        fresh: bool,
    ) -> None:
        self.adder(tensors, weight, anchors, largest, fresh=fresh)
        self.first ^= 1

    def recording(self, shards: int) -> AbstractContextManager[object]:
        return self.adder.recording(shards)


def test_a_bit_that_differs_is_found() -> None:
    count, differed = bits.rounds(OffByOne(), "cpu", 5, math.inf)
    assert len(differed) == count
    assert differed[0].startswith("layout 0: total of tensor ")
    assert "1 of 120 differ, the first at 21: " in differed[0]


class Fails(OffByOne):
    """As that, and updates raise."""

    def absorb(self, *_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")


def test_what_one_kernel_does_wrong_hides_nothing_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    _, differed = bits.rounds(Fails(), "cpu", 1, math.inf)
    assert [line.split(":")[1].strip().split()[0] for line in differed] == ["total", "updates"]
    assert differed[1] == "layout 0: updates: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert "in absorb" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", thinned(["deterministic", "eager", "torch.save", "memory", "empty"], 5))
def test_every_plain_loop_runs(kind: str) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        for model, args in (("Gpt", TOY.gpt), ("Digits", {})):
            samples = plain.measured(Loop("some", kind, model, "float32", 2, 4, 4, args, clip=1.0), "cpu")
            assert all(sample > 0 for sample in samples)
            assert samples
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.slow
def test_readers_outlive_the_owner_of_what_they_share() -> None:
    assert "2 readers read right" in sharing.outlives_its_owner(TOY.shared, runs.environment(), 200)


@pytest.mark.slow
@pytest.mark.long
def test_an_owner_that_cannot_share_is_told_with_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="NoSuch"):
        sharing.outlives_its_owner(
            dataclasses.replace(TOY.shared, driver="tests.projects:NoSuch"), runs.environment(), 200
        )


@pytest.mark.slow
@pytest.mark.long
def test_an_owner_that_ends_first_is_told_with_what_it_said() -> None:
    """Its readers end because of that, and are heard first."""
    with pytest.raises(RuntimeError, match="is needed on the GPU"):
        sharing.outlives_its_owner(dataclasses.replace(TOY.shared, elements=1 << 50), runs.environment(), 200)


@pytest.mark.slow
def test_memory_is_watched_from_beside() -> None:
    with memory.watching("cpu") as watch:
        assert watch.most() > 0


@pytest.mark.slow
@pytest.mark.long
def test_plain_loops_are_measured_in_a_process_of_their_own(tmp_path: Path) -> None:
    bench = Bench(TOY, kept=Kept(tmp_path))
    given = [Loop("a", "eager", "Gpt", "float32", 2, 4, 4, TOY.gpt), Loop("b", "eager", "NoSuch", "float32", 2, 4, 4)]
    parts.plainly(bench, 200, given)
    assert set(bench.found) == {"a: eager"}
    assert bench.failed
    assert ["NoSuch" in line for line in bench.missing] == [True]


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended() -> None:
    code, output, _ = runs.executed(
        ["-c", "print('began', flush=True); import signal; signal.pause()"], REPOSITORY, 2.0
    )
    assert (code, output) == (None, "began\n")


@pytest.mark.long
@pytest.mark.parametrize("name", [part.name for part in PARTS if part.needs is None])
def test_every_part_can_be_done_on_processors(monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path) -> None:
    """But those that compile, which takes minutes there. Only one that hangs meets the limit of time."""
    bench = Bench(TOY, kept=Kept(tmp_path))
    monkeypatch.setattr(parts, "CASES", [case for case in CASES if case.needs is None])
    perform(bench, [dataclasses.replace(part, share_s=3000) for part in PARTS if part.name == name], 3500)
    lacks = ["Ray Train's start: it needs tensorboardX, which is not there (skipped)"]
    if os.geteuid():
        lacks.append("two hosts: network namespaces need root: run this as root (skipped)")
    assert set(bench.missing) <= set(lacks)
    assert not bench.failed
    assert bench.found or bench.checks or bench.missing
