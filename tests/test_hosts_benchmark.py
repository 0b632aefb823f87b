"""What benchmarks/hosts.py makes of options and marks; the rest of it needs root and minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import namespaces
from benchmarks.hosts import DDP, Case, Course, course_of, draw, main, parsed, table
from orchestrator.comm.topologies import TOPOLOGIES

CASE = Case(2, 1, "mlp", "even")


def test_what_is_there_is_measured_unless_something_is_chosen() -> None:
    chosen = parsed([])
    assert (chosen.hosts, chosen.rate, chosen.models) == ([2, 4], [1, 10], ["mlp", "characters"])
    assert set(chosen.topologies) <= set(TOPOLOGIES)
    assert {"ring", "peer_to_peer"} <= set(chosen.topologies)
    assert parsed(["--rate", "10", "--conditions", "slow"]).conditions == ["slow"]


def test_what_is_not_there_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--models", "mlp,vgg"])
    assert "no vgg; there are mlp, characters" in capsys.readouterr().err.splitlines()[-1]


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="needs root"):
        main([])


def test_a_course_is_that_of_the_first_process_at_each_step(tmp_path: Path) -> None:
    """Steps of the warm-up do not count; the busiest wire and direction does."""
    for name, late in (("0-11", 0.0), ("0-12", 0.4), ("1-13", 0.1)):
        host = int(name[0])
        marks = [f"{2.0 * step + late} {step} {100 * step * (1 + host)} {70 * step}" for step in range(7)]
        (tmp_path / name).write_text("\n".join(["99.0 0 0 0", *marks]))
    (tmp_path / "run.yaml").write_text("{}")
    assert course_of(tmp_path) == Course(2.0, 200.0)


def test_the_table_compares_with_ddp() -> None:
    found = {(CASE, "peer_to_peer"): [Course(2.0, 150e6), Course(4.0, 150e6)], (CASE, DDP): [Course(6.0, 100e6)]}
    assert table(found).splitlines()[2:] == [
        "| 2 | 1 | mlp | even | peer to peer | 0.33 | 2.00 | 150.00 | 1.50 |",
        "| 2 | 1 | mlp | even | DDP over gloo | 0.17 | 1.00 | 100.00 | 1.00 |",
    ]


def test_the_picture_has_a_panel_for_each_condition(tmp_path: Path) -> None:
    conditions = (CASE, CASE._replace(condition="slow"))
    found = {(case, way): [Course(2.0, 1.0)] for case in conditions for way in ("ring", DDP)}
    draw(found, tmp_path / "hosts.svg")
    text = (tmp_path / "hosts.svg").read_text()
    assert all(f"<!-- {title} -->" in text for title in ("mlp, even", "mlp, slow", "ring"))


def test_outside_of_all_hosts_no_wire_is_counted() -> None:
    assert (namespaces.here(), namespaces.traffic()) == (0, (0, 0))
