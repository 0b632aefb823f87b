"""The table of `benchmarks.gpu`: what was measured, beside what, and what is wanted of it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gpu.runs import number, spread

Found = dict[str, list[float]]  # what was measured -> samples, of which less is better
PLAIN: Final = ("deterministic", "eager", "compiled")


@dataclass(frozen=True)
class Row:
    """key: of its samples. peers: names of what stands beside it, each with samples under "KEY: NAME"; the first that was
    measured is what a ratio is of. of: the key whose peers these are, where it is another one. wanted: at most so much on an
    H100; ratio: at most so many times the first peer. If both are given the ratio decides, since it holds on any card."""

    key: str
    name: str
    unit: str
    peers: Sequence[str] = ()
    of: str | None = None
    wanted: float | None = None
    ratio: float | None = None

    def beside(self, found: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
        keyed = {name: found.get(f"{self.of or self.key}: {name}") for name in self.peers}
        return {name: samples for name, samples in keyed.items() if samples}

    def measured_ratio(self, found: Mapping[str, Sequence[float]]) -> float | None:
        beside = self.beside(found)
        first = beside.get(self.peers[0]) if self.peers else None
        if not found.get(self.key) or first is None:
            return None
        return statistics.median(found[self.key]) / statistics.median(first)

    def met(self, found: Mapping[str, Sequence[float]]) -> bool | None:
        """None where nothing is wanted, or not enough was measured."""
        if not found.get(self.key):
            return None
        if self.ratio is not None:
            measured = self.measured_ratio(found)
            return None if measured is None else measured <= self.ratio
        return None if self.wanted is None else statistics.median(found[self.key]) <= self.wanted


GPT: Final = "GPT of 136 million"
MEDIUM: Final = "GPT of 27 million, bfloat16, 8 shards"
WITHOUT: Final = ("without it",)
ROWS: Final = (
    Row("bfloat16, 8", f"{GPT}, bfloat16, 8 shards", "ms", PLAIN, None, 90, 0.41),
    Row("bfloat16, 8, compile", f"{GPT}, bfloat16, 8 shards, `run.compile`", "ms", PLAIN, "bfloat16, 8", 70, 0.32),
    Row("bfloat16, 8, no graphs", f"{GPT}, bfloat16, 8 shards, `run.graphs=false`", "ms", PLAIN, "bfloat16, 8"),
    Row("bfloat16, 1", f"{GPT}, bfloat16, 1 shard", "ms", PLAIN, None, 56, 1.02),
    Row("bfloat16, 1, compile", f"{GPT}, bfloat16, 1 shard, `run.compile`", "ms", PLAIN, "bfloat16, 1", 50, 0.91),
    Row("float32, 8", f"{GPT}, float32, 8 shards", "ms", PLAIN, None, 330, 1.0),
    Row("bfloat16, 8, 4 workers", f"{GPT}, bfloat16, 8 shards, 4 workers", "ms", ("1 worker",), None, None, 1.05),
    Row(
        "bfloat16, 8, 2 stages",
        f"{GPT}, bfloat16, 8 shards, 2 stages on one card",
        "ms",
        ("1 worker",),
        None,
        None,
        1.15,
    ),
    Row(
        "asynchronous",
        f"{GPT}, bfloat16, `sync=asp`, 4 workers of one shard: an update",
        "ms",
        ("eager", "deterministic"),
        None,
        None,
        1.11,
    ),
    Row("compression", f"{MEDIUM}, `compression=powersgd`", "ms", WITHOUT),
    Row("privacy", f"{MEDIUM}, `privacy` with noise", "ms", WITHOUT),
    Row("fast", f"{MEDIUM}, `reduction=fast`", "ms", WITHOUT),
    Row("local", f"{MEDIUM}, `local.steps=2`: a round", "ms", WITHOUT),
    Row("checked", f"{MEDIUM}, 2 workers, `check.every=1`", "ms", WITHOUT),
    Row("llama", "Llama of 1.3 billion, bfloat16, 8 shards, 4 stages on one card", "ms"),
    Row("llama, memory", "tensors and sums of a stage of it, at most at once", "GB", (), None, 20),
    Row("digits", "digits, 8 shards", "ms", PLAIN, None, 4),
    Row("characters", "characters, 8 shards", "ms", PLAIN, None, 5),
    Row("memory", "device memory per parameter, beside activations", "bytes", (), None, 28),
    Row("memory, card", "device memory per parameter, all processes of the card", "bytes", ("plain",), None, 28),
    Row("kill", "SIGKILL of a worker to the next step", "s", (), None, 0.15),
    Row("start", "command to first step, small models", "s", ("Ray Train on processors",), None, 10),
    Row("checkpoint", f"what steps wait for a checkpoint, {GPT}", "ms", ("torch.save",), None, 50),
)


def table(found: Mapping[str, Sequence[float]], rows: Sequence[Row] = ROWS) -> str:
    """In Markdown: medians; of what is measured here, the least before it."""
    lines = ["| | here, least / median | beside it | here / the first of it | wanted, on an H100 | |"]
    lines.append("|---|---:|---|---:|---|---|")
    for row in rows:
        ours = found.get(row.key)
        shown = f"{spread(ours)} {row.unit}" if ours else "not measured"
        ratio = row.measured_ratio(found)
        met = {True: "met", False: "**not met**", None: ""}[row.met(found)]
        cells = (shown, _beside(row, found), "" if ratio is None else number(ratio), _wanted(row), met)
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(row: Row, found: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {number(statistics.median(each))}" for name, each in row.beside(found).items())


def _wanted(row: Row) -> str:
    parts = [] if row.wanted is None else [f"{row.wanted:g} {row.unit}"]
    parts += [] if row.ratio is None else [f"{row.ratio:g} times"]
    return f"at most {', '.join(parts)}" if parts else ""


def page(where: str, checks: Sequence[str], found: Mapping[str, Sequence[float]] | None, missing: Sequence[str]) -> str:
    """The text between two marks of docs/benchmarks/gpu.md. where: card, machine and date; found: None where nothing was to be
    measured; missing: what failed or was skipped, with reasons."""
    return "\n\n".join(_paragraphs(where, checks, found, missing))


def _paragraphs(
    where: str, checks: Sequence[str], found: Mapping[str, Sequence[float]] | None, missing: Sequence[str]
) -> Iterator[str]:
    yield where
    if checks:
        yield "\n".join(f"- {line}" for line in checks)
    if found is not None:
        yield table(found)
    if missing:
        yield "Not checked:" if found is None else "Not measured:"
        yield "\n".join(f"- {line}" for line in missing)
