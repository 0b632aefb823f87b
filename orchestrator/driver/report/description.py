"""The description of a run in MLflow: a few lines of Markdown on the page of the run, above its metrics.

It is a short card: what it came to, the command that repeats it, of what, on what, and whether it was reproduced. MLflow hides
all but three lines behind "Show more", so the command stands near the top. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.driver.report.card import CardContents
from orchestrator.provenance.tracking import as_argument

TAG = "mlflow.note.content"
_REPRODUCED = "**Reproduced:** "
_REST = "All of it: `run/card.html` under Artifacts."
_RESULTS = ("loss", "epsilon", "validation/")


@dataclass(frozen=True)
class Layout:
    """The layout of a run, in words. words: such as "4 workers, topology ring"; recoveries: how often it went on after a
    loss."""

    words: str
    recoveries: int = 0


def description(contents: CardContents, layout: Layout) -> str:
    outcome = contents.outcome
    note = outcome.get("note")
    parts = [
        "" if note is None else str(note),
        _result(contents.status, outcome),
        _again(contents),
        "" if outcome.get("error") is None else f"**Error:** {outcome['error']}",
        f"**Trained:** {', '.join(_trained(contents))}",
        f"**Layout:** {'; '.join(_layout(layout, outcome.get('time')))}",
        f"**Digest:** `{outcome['digest']}`" if outcome.get("digest") else "",
        "".join(f"{_REPRODUCED}{sentence}\n" for sentence in contents.said).rstrip(),
        _REST,
    ]
    return "\n\n".join(part for part in parts if part)


def reproduced(before: str, sentence: str) -> str:
    """The description with what a rerun has shown, in place of what another one had."""
    parts = [part for part in before.split("\n\n") if part and not part.startswith(f"{_REPRODUCED}rerun")]
    place = parts.index(_REST) if _REST in parts else len(parts)
    return "\n\n".join([*parts[:place], f"{_REPRODUCED}rerun {sentence}", *parts[place:]])


def _result(status: str, outcome: Mapping[str, Any]) -> str:
    results = [f"{key} {value:.4g}" for key, value in outcome.items() if _is_result(key, value)]
    steps = f"{outcome.get('steps') or 0} steps"
    return f"**Result:** {status}, {', '.join([steps, *results])}"


def _is_result(key: str, value: Any) -> bool:
    return isinstance(value, int | float) and key.startswith(_RESULTS)


def _trained(contents: CardContents) -> Iterable[str]:
    trained, settings = contents.trained, contents.settings
    if trained is not None:
        yield f"`{trained.target}`"
        if trained.parameters is not None:
            yield f"{trained.parameters:,} parameters"
        if trained.initial is not None:
            yield f"from {trained.initial}"
    if "run.seed" in settings:
        yield f"seed {settings['run.seed']}"
    inputs: Sequence[Mapping[str, Any]] = contents.data.get("inputs", [])
    if inputs:
        yield f"on {', '.join(item['path'] for item in inputs)}"


def _layout(layout: Layout, time: str | None) -> Iterable[str]:
    yield layout.words
    if layout.recoveries:
        yield f"went on after {layout.recoveries} loss{'es' * (layout.recoveries > 1)}"
    if time:
        yield time


def _again(contents: CardContents) -> str:
    where = as_argument(contents.uri)
    verbs = ("rerun",) if contents.status == "finished" else ("resume", "rerun")
    commands = (f"`python -m orchestrator {verb}={contents.run_id}{where}`" for verb in verbs)
    return f"**Again:** {' or '.join(commands)}"
