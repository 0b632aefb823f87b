"""Two runs compared: every difference once, in order of consequence, in words and as plain data."""

from __future__ import annotations

import copy
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.records.comparison import Comparison, FileChange, Run, compare
from orchestrator.records.decimals import digits
from orchestrator.records.trace import line

NODE: dict[str, Any] = {
    "bits": {"python": "3.11", "cpu": "EPYC", "packages_sha256": "1", "variables": {"MKL_CBWR": "AUTO"}},
    "packages": {"numpy": "2.0", "torch": "2.13", "mine": "1"},
    "builds": {"numpy": {"sha256": "ab" * 32}, "torch": {}, "mine": {"editable": True, "location": "/x"}},
    "host": {"name": "h", "cores": 2, "variables": {"TZ": "UTC"}},
}
RUN: Run = {
    "settings": {"run.seed": 1, "optimizer.lr": 0.001, "cluster.workers": 2},
    "determining": ["run.seed", "optimizer.lr"],
    "inputs": [{"path": "data/a", "md5": "4e" * 16 + ".dir", "size": 10, "files": 2}],
    "profiles": {"train": {"length": 100, "classes": {"0": 50}}},
    "environments": [NODE],
    "code_tree": "c0" * 20,
    "modules": {"lib": {"kind": "repository", "sha256": "aa" * 32}, "own": {"kind": "snapshot", "sha256": "cc" * 32}},
    "initial_parameters": "1f" * 32,
    "digest": "d1" * 32,
    "metrics": {"validation/accuracy": 0.75},
    "trace": [line(step, 1.0, step) for step in range(4)],
}


def changed(change: Callable[[Any], object]) -> Run:
    run = copy.deepcopy(RUN)
    change(run)
    return run


def put(*path: Any) -> Callable[[Any], None]:
    """A change of what lies at that path to the last value given."""

    def change(run: Any) -> None:
        *way, key, value = path
        for part in way:
            run = run[part]
        run[key] = value

    return change


CASES: list[tuple[Callable[[Any], None], tuple[str, str, str, str]]] = [
    (put("code_tree", "c1" * 20), ("result", "code", "tree", "c0c0c0c0c0c0 -> c1c1c1c1c1c1")),
    (put("modules", "lib", "sha256", "bb" * 32), ("result", "code", "module lib", "aaaaaaaaaaaa -> bbbbbbbbbbbb")),
    (
        put("modules", "own", {"kind": "shadowing", "sha256": "dd" * 32}),
        ("result", "code", "module own", "cccccccccccc -> dddddddddddd"),
    ),
    (
        put("inputs", 0, "md5", "5f" * 16 + ".dir"),
        ("result", "data", "data/a", "4e4e4e4e4e4e (2 files, 10 bytes) -> 5f5f5f5f5f5f (2 files, 10 bytes)"),
    ),
    (put("inputs", []), ("result", "data", "data/a", "4e4e4e4e4e4e (2 files, 10 bytes) -> none")),
    (put("settings", "optimizer.lr", 0.002), ("result", "setting", "optimizer.lr", "0.001 -> 0.002 (+0.001)")),
    (
        put("environments", 0, "packages", "numpy", "2.1"),
        ("result", "package", "numpy", "2.0 (abababababab) -> 2.1 (abababababab)"),
    ),
    (
        put("environments", 0, "builds", "numpy", "sha256", "cd" * 32),
        ("result", "package", "numpy", "2.0 (abababababab) -> 2.0 (cdcdcdcdcdcd)"),
    ),
    (put("environments", 0, "packages", "new", "1"), ("result", "package", "new", "none -> 1")),
    (
        put("environments", 0, "bits", "variables", "MKL_CBWR", "AVX2"),
        ("result", "environment", "variables.MKL_CBWR", "AUTO -> AVX2"),
    ),
    (put("environments", 0, "bits", "cpu", "Xeon"), ("result", "hardware", "cpu", "EPYC -> Xeon")),
    (put("profiles", "train", "classes", "0", 40), ("outcome", "data", "train.classes.0", "50 -> 40")),
    (put("initial_parameters", "2f" * 32), ("outcome", "trace", "initial parameters", "1f1f1f1f1f1f -> 2f2f2f2f2f2f")),
    (put("digest", None), ("outcome", "trace", "final parameters", "d1d1d1d1d1d1 -> none")),
    (put("trace", 2, "loss", (0.5).hex()), ("outcome", "trace", "step 2", "loss was 1.0, is 0.5")),
    (put("metrics", "validation/accuracy", 0.5), ("outcome", "metric", "validation/accuracy", "0.75 -> 0.5 (-0.25)")),
    (put("settings", "cluster.workers", 4), ("execution", "setting", "cluster.workers", "2 -> 4")),
    (put("environments", 0, "host", "cores", 8), ("execution", "hardware", "cores", "2 -> 8")),
    (
        put("environments", 0, "host", "variables", {"TZ": "CET"}),
        ("execution", "environment", "variables.TZ", "UTC -> CET"),
    ),
]


def test_this_package_is_compared_by_its_source() -> None:
    """Not by how it was installed; where a node tells no hash of its source, by its version."""
    editable, wheel = copy.deepcopy(RUN), copy.deepcopy(RUN)
    for run, version in ((editable, "1"), (wheel, "2")):
        run["environments"][0]["packages"]["orchestrator"] = version  # type: ignore[index]
    assert rows(compare(editable, wheel)) == [("result", "package", "orchestrator", "1 -> 2")]
    for run, sha256 in ((editable, "ab" * 32), (wheel, "ab" * 32)):
        run["environments"][0]["bits"]["orchestrator"] = sha256  # type: ignore[index]
    assert rows(compare(editable, wheel)) == []
    wheel["environments"][0]["bits"]["orchestrator"] = "cd" * 32  # type: ignore[index]
    assert [row[1:3] for row in rows(compare(editable, wheel))] == [("environment", "orchestrator")]


def rows(found: Comparison) -> list[tuple[str, str, str, str]]:
    return [(one.share, one.kind, one.name, one.text) for one in found.differences]


@pytest.mark.parametrize(("change", "row"), CASES, ids=[f"{row[1]} {row[2]}" for _, row in CASES])
def test_one_change_is_one_difference(change: Callable[[Any], None], row: tuple[str, str, str, str]) -> None:
    found = compare(RUN, changed(change))
    assert rows(found) == [row]
    assert (found.first_divergence is not None) == (row[2] == "step 2")
    phrases = [f"{row[1]} {row[2]}: {row[3]}"] if row[0] == "result" else []
    is_machine = row[1] == "hardware"
    assert found.inputs(check_environment=True) == ([] if is_machine else phrases)
    assert found.machines(check_environment=True) == (phrases if is_machine else [])
    assert found.machines(check_environment=False) == []
    surroundings = row[1] in ("environment", "package", "hardware")
    assert bool(found.inputs(check_environment=False)) == (row[0] == "result" and not surroundings)
    back = compare(changed(change), RUN)
    assert [(one.kind, one.name, one.a, one.b) for one in back.differences] == [
        (one.kind, one.name, one.b, one.a) for one in found.differences
    ]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(range(len(CASES))), unique=True))
def test_the_most_consequential_come_first(chosen: list[int]) -> None:
    """Result before outcome before execution, code before data before settings, however many differ at once."""

    def change(run: Any) -> None:
        for index in sorted(chosen, reverse=True):  # so that what removes comes after what changes inside
            if CASES[index][1][2] != "data/a":
                CASES[index][0](run)

    found = compare(RUN, changed(change))
    shares = [one.share for one in found.differences]
    assert shares == sorted(shares, key=["result", "outcome", "execution"].index)
    names = {CASES[index][1][2] for index in chosen} - {"data/a"}
    assert {one.name for one in found.differences} == names
    assert json.loads(json.dumps(found.as_dict()))["first_divergence"] == found.first_divergence
    assert all(one.name in found.as_text() and one.text in found.as_text() for one in found.differences)


def test_a_run_is_no_different_from_itself() -> None:
    found = compare(RUN, copy.deepcopy(RUN))
    assert found == Comparison((), None)
    assert found.as_text() == "no differences"
    assert compare({}, {}) == found


def test_modules_that_are_files_of_the_trees_or_of_one_run_alone_are_no_differences() -> None:
    for change in (put("modules", "own", "sha256", "dd" * 32), put("modules", {}), lambda run: run.pop("modules")):
        assert rows(compare(RUN, changed(change))) == []


def test_less_is_known_of_older_runs() -> None:
    """No environment on a side says nothing about packages; no trace is not a divergence."""
    found = compare({"settings": {"a": 1}}, RUN)
    assert found.first_divergence is None
    assert not {"package", "environment", "hardware"} & {one.kind for one in found.differences}


def test_nodes_are_taken_together() -> None:
    other = copy.deepcopy(NODE)
    other["bits"]["cpu"] = "Xeon"
    one, two = copy.deepcopy(RUN), changed(put("environments", [NODE, other, NODE]))
    assert rows(compare(one, changed(put("environments", [NODE, NODE])))) == []
    assert rows(compare(one, two)) == [("result", "hardware", "cpu", 'EPYC -> ["EPYC","Xeon"]')]
    assert rows(compare(two, changed(put("environments", [other, NODE])))) == []


CARD: dict[str, Any] = {
    "models": ["NVIDIA H100 80GB HBM3, compute capability 9.0"],
    "multiprocessors": [132],
    "mig": False,
    "driver": "570.86",
    "cuda": "13.0",
    "cublas": "13.1.0",
    "cudnn": 91300,
}


def of_two_cards(**other: Any) -> tuple[Run, Run]:
    one = changed(put("environments", 0, "bits", "gpu", CARD))
    one["environments"][0]["host"]["gpu_uuids"] = ["GPU-1a"]  # type: ignore[index]
    two = copy.deepcopy(one)
    two["environments"][0]["bits"]["gpu"] = {**CARD, **other}  # type: ignore[index]
    two["environments"][0]["host"]["gpu_uuids"] = ["GPU-2b"]  # type: ignore[index]
    return one, two


def test_another_card_is_another_machine_and_no_input() -> None:
    found = compare(*of_two_cards(models=["NVIDIA H200, compute capability 9.0"], driver="575.1"))
    assert found.inputs(check_environment=True) == []
    card, driver = found.machines(check_environment=True)
    assert card.startswith("hardware gpu.models: ")
    assert card.endswith('["NVIDIA H200, compute capability 9.0"]')
    assert driver == "hardware gpu.driver: 570.86 -> 575.1"
    same_model = compare(*of_two_cards())
    assert rows(same_model) == [("execution", "hardware", "gpu_uuids", '["GPU-1a"] -> ["GPU-2b"]')]
    assert same_model.machines(check_environment=True) == []


def test_libraries_of_a_card_are_inputs() -> None:
    found = compare(*of_two_cards(cudnn=91400))
    assert found.inputs(check_environment=True) == ["environment gpu.cudnn: 91300 -> 91400"]
    assert found.machines(check_environment=True) == []


def test_files_of_the_code() -> None:
    files: dict[str, FileChange] = {"b.py": "removed", "a.py": "added", "c": "changed"}
    found = compare(RUN, changed(put("code_tree", "e" * 40)), files)
    assert [(one.name, one.a, one.b, one.text) for one in found.differences] == [
        ("a.py", None, "added", "is new"),
        ("b.py", "removed", None, "is gone"),
        ("c", "changed", "changed", "differs"),
    ]


def test_long_values_and_columns() -> None:
    def change(run: Any) -> None:
        run["settings"]["run.seed"] = "x" * 200
        run["settings"]["cluster.workers"] = 3

    assert compare(RUN, changed(change)).as_text() == (
        "determines the result:\n"
        f"  setting  run.seed         1 -> {'x' * 57}...\n"
        "only the execution:\n"
        "  setting  cluster.workers  2 -> 3"
    )


def test_a_setting_that_determines_on_one_side_only() -> None:
    """Under `reduction: fast` the layout determines."""
    fast = changed(put("determining", ["run.seed", "optimizer.lr", "cluster.workers"]))
    fast["settings"] = {**fast["settings"], "cluster.workers": 3}
    assert rows(compare(RUN, fast)) == [("result", "setting", "cluster.workers", "2 -> 3")]


def test_profiles_that_cannot_be_compared_are_no_difference() -> None:
    """A run that did not finish has no profile; an older one looked at as many items as there was time for."""
    here = {"length": 100, "sampled": 64, "counted": 100, "classes": {"0": 50}, "fields": {"0": {"mean": 0.5}}}
    there = {**here, "sampled": 7, "fields": {"0": {"mean": 0.25}}}
    one = changed(put("profiles", "train", here))
    assert rows(compare(one, changed(put("profiles", {})))) == []
    assert rows(compare(one, changed(put("profiles", "train", there)))) == []
    other = changed(put("profiles", "train", {**there, "length": 90}))
    assert ("outcome", "data", "train.length", "100 -> 90") in rows(compare(one, other))
    other = changed(put("profiles", "train", {**there, "sampled": 64}))
    assert rows(compare(one, other)) == [("outcome", "data", "train.fields.0.mean", "0.5 -> 0.25 (-0.25)")]


def test_metrics_are_shown_by_the_digits_that_float32_has() -> None:
    """And by all where those are the same."""

    def shown(a: float, b: float) -> str:
        return compare({"metrics": {"m": a}}, {"metrics": {"m": b}}).differences[0].text

    assert shown(0.9800000190734863, 0.30000001192092896) == "0.98 -> 0.3 (-0.68)"
    assert shown(0.9800000190734863, 0.9799999594688416) == "0.98 -> 0.97999996 (-5.96e-08)"
    assert shown(0.1 + 0.2, 0.5) == "0.30000000000000004 -> 0.5 (+0.2)"
    assert shown(0.30000001192092896, 0.3) == "0.30000001192092896 -> 0.3 (-1.19e-08)"


@given(st.floats(width=32))
def test_digits_of_float32_give_it_back_and_are_no_more_than_nine(value: float) -> None:
    shown = digits(value)
    if math.isfinite(value):
        assert struct.unpack("f", struct.pack("f", float(shown)))[0] == value
        assert any(float(shown) == float(f"{value:.{count}g}") for count in range(1, 10))


@given(st.floats())
def test_digits_of_other_numbers_are_all_they_have(value: float) -> None:
    if abs(value) < 1e38:
        is_float32 = struct.unpack("f", struct.pack("f", value))[0] == value
        assert is_float32 or float(digits(value)) == value
