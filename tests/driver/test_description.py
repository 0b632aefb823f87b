"""The description on MLflow's page of a run: what it came to, of what, on what, whether it was reproduced, how to repeat it."""

from __future__ import annotations

import dataclasses

from orchestrator.driver.report.description import Layout, description, reproduced
from tests.driver.test_card import FACTS, TRAINED

OUTCOME = {"steps": 20, "loss": 0.5, "validation/loss": 0.25, "digest": "4a4d", "time": "computing 60%", "error": None}
WHOLE = dataclasses.replace(FACTS, outcome=OUTCOME, trained=TRAINED)


def test_a_whole_description() -> None:
    text = description(WHOLE, Layout("4 workers, topology ring", 1))
    assert text.split("\n\n") == [
        "**Result:** finished, 20 steps, loss 0.5, validation/loss 0.25",
        "**Again:** `python -m orchestrator rerun=0123abcd`",
        "**Trained:** `a:B`, 9 parameters, seed 1, on data/a|b",
        "**Layout:** 4 workers, topology ring; went on after 1 loss; computing 60%",
        "**Digest:** `4a4d`",
        "**Reproduced:** the same digest as an earlier run",
        "All of it: `run/card.html` under Artifacts.",
    ]


def test_a_failed_run_at_a_server_says_why_and_how_to_go_on() -> None:
    contents = dataclasses.replace(
        WHOLE, status="failed", uri="http://host", said=[], outcome={"steps": 0, "error": "it is full"}
    )
    text = description(contents, Layout("1 worker, topology ring"))
    result, again, error, *_ = text.split("\n\n")
    assert result == "**Result:** failed, 0 steps"
    commands = [f"`python -m orchestrator {verb}=0123abcd tracking.uri=http://host`" for verb in ("resume", "rerun")]
    assert again == f"**Again:** {' or '.join(commands)}"
    assert error == "**Error:** it is full"
    assert "Reproduced" not in text
    assert "Digest" not in text
    elsewhere = dataclasses.replace(contents, uri="postgresql://a/b?c=1&d=2")
    assert "tracking.uri='postgresql://a/b?c=1&d=2'`" in description(elsewhere, Layout("1 worker"))


def test_the_last_rerun_stands_where_the_one_before_stood() -> None:
    once = reproduced(description(WHOLE, Layout("1 worker")), "`b`: exact")
    twice = reproduced(once, "`c`: diverged")
    assert twice.index("earlier run") < twice.index("**Reproduced:** rerun `c`: diverged") < twice.index("All of it")
    assert "`b`" not in twice
    assert reproduced(twice, "`b`: exact") == once
    assert reproduced("", "`b`: exact") == "**Reproduced:** rerun `b`: exact"
