"""Options and marks as benchmarks/hosts.py reads them; the rest of it needs root and minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import namespaces
from benchmarks.hosts import Case, Course, course_of, main, parsed
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


def test_outside_of_all_hosts_no_wire_is_counted() -> None:
    assert (namespaces.here(), namespaces.traffic()) == (0, (0, 0))
