"""The run card says what ran, on what, how it ended and how to have it again, whatever is missing."""

from __future__ import annotations

import dataclasses

from orchestrator.driver.report.card import CardContents, card

NODE = {
    "bits": {
        "python": "3.11.7 (main)",
        "cpu": "A CPU",
        "capability": "AVX512",
        "packages_sha256": "ab12",
        "system": "Linux",
        "libc": "glibc 2.36",
        "variables": {"MKL_CBWR": "AUTO"},
        "gpu": {"models": ["X 100, compute capability 9.0"], "driver": "570.86", "cuda": "12.8", "cudnn": 91002},
    },
    "host": {"os": "Debian", "kernel": "6.1", "cores": 2},
    "packages": {"torch": "2.13.0", "plus": "1"},
}
INPUT = {"path": "data/a|b", "md5": "d41d", "files": 1, "size": 5, "stage": None, "outs": [{}], "as_recorded": True}
FACTS = CardContents(
    run_id="0123abcd",
    name="digits",
    status="finished",
    started="2026-11-20 13:00:00 UTC",
    command="python -m orchestrator conf=digits",
    outcome={"steps": 20, "loss": 0.5, "digest": "4a4d", "error": None},
    code={"tree": "895a", "origin": "c0ffee", "project": "", "changed": [f"{i}.py" for i in range(22)]},
    data={"inputs": [INPUT]},
    nodes={"here": NODE},
    identity={"identity": "1d"},
    settings={"run.seed": 1, "run.epochs": None},
    execution={"run.name": "a `b`\nc"},
    said=["the same digest as an earlier run"],
    obstacles=[],
)


def test_a_whole_card() -> None:
    text = card(FACTS)
    for line in (
        "# digits: finished",
        "- command: `python -m orchestrator conf=digits`",
        "- loss: `0.5`",
        "- the same digest as an earlier run",
        "- commit: `c0ffee`",
        "| data/a\\|b | d41d | 1 | 5 | yes |",
        "| `run.epochs` | `null` |",
        "- packages: `torch 2.13.0`",
        "- all packages: `2, SHA-256 ab12`",
        "- GPU: `X 100, compute capability 9.0; driver 570.86, cuda 12.8, cudnn 91002`",
        "| `run.name` | `a 'b' c` |",
        "    python -m orchestrator rerun=0123abcd",
    ):
        assert line in text.splitlines(), line
    assert "21.py" not in text
    assert "19.py and 2 more" in text
    assert "error" not in text


def test_obstacles_stand_before_the_command_that_repeats() -> None:
    text = card(dataclasses.replace(FACTS, obstacles=["data/a is not under DVC; dvc add data/a"]))
    before, _, after = text.partition("- data/a is not under DVC; dvc add data/a")
    assert "may be that it cannot" in before
    assert "rerun=0123abcd" in after


def test_a_run_that_came_to_nothing_has_a_card() -> None:
    text = card(
        dataclasses.replace(FACTS, status="failed", code={}, data={}, nodes={}, outcome={"error": "no\nsuch column"})
    )
    assert text.startswith("# digits: failed\n")
    assert "- error: `no such column`" in text
    assert "It is not recorded." in text
    assert "`data.inputs` names none." in text
    assert "## Environment" not in text
