"""`replay=` takes the rests of an asynchronous run with as many shards, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.config.plan import Plan
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.driver.launch.repeated import _barriers_of
from tests.records.test_barriers import RESTS
from tests.refusals import refused


def plan(sync: str, shards: int = 2) -> Plan:
    return resolve(
        load([{"run": {"steps": 5}, "pipeline": {"target": "a:B"}, "sync": sync}], [f"data.shards={shards}"])
    )


def test_the_rests_of_a_run_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "rests.jsonl"
    file.write_text("".join(json.dumps(rest) + "\n" for rest in RESTS) + '{"torn')
    assert list(_barriers_of(file, plan("bap"))) == RESTS
    with refused("replay.rests"):
        _barriers_of(file, plan("bap", 4))
    with refused("replay.no-rests"):
        _barriers_of(file, plan("bsp"))


@pytest.mark.parametrize(
    ("text", "code"), [(None, "replay.rests-unreadable"), ("", "replay.empty"), ("{\n", "replay.rests")]
)
def test_other_files_are_refused(tmp_path: Path, text: str | None, code: str) -> None:
    file = tmp_path / "rests.jsonl"
    if text is not None:
        file.write_text(text)
    with refused(code):
        _barriers_of(file, plan("ssp"))
