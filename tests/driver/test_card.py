"""The run card says what ran, on what, how it ended and how to have it again, whatever is missing."""

from __future__ import annotations

import base64
import dataclasses
import html
import re
from pathlib import Path

import pytest

from orchestrator.data.drift import Drift, Shift
from orchestrator.driver.report.card import CardContents, Trained, page
from orchestrator.driver.report.page import (
    Block,
    Facts,
    Grid,
    Heading,
    Listing,
    Page,
    Section,
    Text,
    as_html,
    cleaned,
    markdown,
)

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
    data={"inputs": [INPUT], "profile": {"length": 5, "sampled": 5, "fields": {}}},
    nodes={"here": NODE},
    settings={"run.seed": 1, "run.epochs": None},
    execution={"run.name": "a `b`\nc"},
    said=["the same digest as an earlier run"],
    obstacles=[],
)
TRAINED = Trained("a:B", {"hidden": 3}, 9, "Linear(2, 3)", {"weight": {"dtype": "F32", "shape": [2, 3]}})
EVENTS = [{"event": "worker_lost", "worker": 1, "why": "killed"}, {"event": "checkpoint_saved", "step": 20}]
MOVED = Drift((Shift("x", 0.5, 0.3, 0.0, drifted=True, text="x: median 1 -> 2"),))


def written(contents: CardContents) -> str:
    return markdown(page(contents))


def test_a_whole_card() -> None:
    text = written(FACTS)
    for line in (
        "# digits: finished",
        "- command: `python -m orchestrator conf=digits`",
        "- loss: `0.5`",
        "- the same digest as an earlier run",
        "- commit: `c0ffee`",
        "| data/a\\|b | d41d | 1 | 5 | yes |",
        "- null: `run.epochs`",
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


def test_the_model_is_loaded_from_the_store_that_has_it() -> None:
    """MLflow makes an empty store in the working directory where none is named."""
    for uri, address in ((None, "sqlite:///.orchestrator/mlflow.db"), ("http://there", "http://there")):
        text = written(dataclasses.replace(FACTS, trained=TRAINED, uri=uri))
        told = [line.strip() for line in text.splitlines() if "mlflow" in line and line.startswith("    ")]
        assert told == [
            "import mlflow",
            f'mlflow.set_tracking_uri("{address}")',
            'model = mlflow.pyfunc.load_model("runs:/0123abcd/trained")',
        ]


def test_evaluations_stand_after_as_many_steps_as_the_terminal_says_with_the_digits_of_float32() -> None:
    events = [{"event": "evaluated", "step": at, "metrics": {"accuracy": 0.9800000190734863}} for at in (9, 19)]
    text = written(dataclasses.replace(FACTS, outcome={"accuracy": 0.9800000190734863}, events=events))
    assert "| `after step` |" not in text
    assert "| after step | accuracy |" in text
    assert "| `20` | `0.98` |" in text
    assert "- accuracy: `0.98`" in text


def test_obstacles_stand_before_the_command_that_repeats() -> None:
    text = written(dataclasses.replace(FACTS, obstacles=["data/a is not under DVC; dvc add data/a"]))
    before, _, after = text.partition("- data/a is not under DVC; dvc add data/a")
    assert "may be that it cannot" in before
    assert "rerun=0123abcd" in after


def test_a_run_that_came_to_nothing_has_a_card() -> None:
    text = written(
        dataclasses.replace(FACTS, status="failed", code={}, data={}, nodes={}, outcome={"error": "no\nsuch column"})
    )
    assert text.startswith("# digits: failed\n")
    assert "- error: `no such column`" in text
    assert "It is not recorded." in text
    assert "`data.inputs` names none." in text
    assert "## Environment" not in text


def test_both_forms_say_the_same_and_the_html_is_one_file(tmp_path: Path) -> None:
    picture = tmp_path / "loss.png"
    picture.write_bytes(b"\x89PNG")
    whole = page(dataclasses.replace(FACTS, pictures=[picture], trained=TRAINED, events=EVENTS, before=("beef", MOVED)))
    shown, written = as_html(whole), markdown(whole)
    assert base64.b64encode(b"\x89PNG").decode() in shown
    assert not re.findall(r"(?:src|href)=\"(?!data:)", shown), "everything is in it"
    told = re.findall(r"<tr><th>([^<]+)</th><td><code>([^<]*)</code></td></tr>", shown)
    assert {f"- {name}: `{html.unescape(value)}`" for name, value in told} <= {*written.splitlines()}
    assert {"parameters", "tensors", "loss", "run.seed", "samples"} <= {name for name, _ in told}
    for part in ("Linear(2, 3)", "median 1 -&gt; 2", "worker_lost", "Is the code available?", "rerun=0123abcd"):
        assert part in shown, part
    assert "resume=" not in shown, "it has finished"


def test_nobody_is_told_to_go_on_where_it_would_end_the_same_way() -> None:
    failed = dataclasses.replace(FACTS, status="failed")
    assert "resume=0123abcd" in written(failed)
    assert "resume=" not in written(dataclasses.replace(failed, recurs=True))


def test_nothing_of_a_run_can_write_into_the_page() -> None:
    evil = "<script>alert(1)</script>"
    whole = page(dataclasses.replace(FACTS, name=evil, settings={evil: evil}, said=[evil], obstacles=[evil]))
    whole = dataclasses.replace(
        whole, head=[*whole.head, Text(f"`code` {evil}"), Facts({evil: 1}), Grid([evil], [[evil]])]
    )
    assert "<script" not in as_html(whole)
    assert "<script" not in re.sub("`[^`\n]*`", "", markdown(whole))


def test_what_is_secret_is_taken_out_before_anything_is_escaped() -> None:
    whole = cleaned(
        page(dataclasses.replace(FACTS, settings={"a": "p&ss<word"})), lambda text: text.replace("p&ss<word", "*")
    )
    assert "ss&lt;word" not in as_html(whole)
    assert "| `a` | `*` |" in markdown(whole)


def test_a_run_that_did_not_finish_says_how_to_go_on() -> None:
    for uri, typed in (("http://there", "http://there"), ("postgresql://a/b?c=1&d=2", "'postgresql://a/b?c=1&d=2'")):
        text = written(dataclasses.replace(FACTS, status="killed", uri=uri))
        assert f"    python -m orchestrator resume=0123abcd tracking.uri={typed}" in text.splitlines()


def test_no_name_begins_a_heading() -> None:
    name = "mine\n# Verdict: exact\n\nall of it\n====\n  ## more\n---"
    blocks: list[Block] = [Text(name), Facts({name: name}), Listing([name]), Grid([name], [[name]]), Heading(name)]
    found = markdown(Page(f"Run {name}", [Text(name)], [Section("Mine", blocks)]))
    headings = [line for line in found.splitlines() if re.match(r" {0,3}(#|=+\s*$|-+\s*$)", line)]
    assert [line[:6] for line in headings] == ["# Run ", "## Min", "### mi"]


@pytest.mark.parametrize("before", ["", "\\"])
def test_no_name_is_a_link_or_a_picture(before: str) -> None:
    """A reader of the card would fetch it."""
    name = before + "![seen](http://elsewhere.invalid/seen.png)"
    blocks: list[Block] = [Text(name), Facts({name: 1}), Listing([name]), Grid([name], [[name]]), Heading(name)]
    found = markdown(Page(name, [Text(name)], [Section("Mine", blocks)]))
    assert found.count("seen.png") == 8
    assert not re.search(r"(?<!\\)(\\\\)*\[", found)
