"""The bytes per step and the result of each method of learning with fewer bytes, beside dense: one table, from real runs.

    python -m benchmarks.methods [--seeds 1] [--only characters] [--method int8] [--results FILE]
        [--page docs/benchmarks/communication.md]

Three kinds of runs: the demo on digits and the one on characters, 400 steps each (a local step counts as one), and three steps
of a matrix of 25 million parameters, for the bytes. The bytes are those that the run itself measures: what a worker of a ring
of four sends in a step, or in one tenth of a round of ten local steps. Characters take 16 rows of 4 shards; with
--only characters-64 the 64 rows of 8 shards of their configuration.

--results: each run is written there, and not run again by a later call. --page: the table replaces the one that stands there.
It measures no time. On one machine compression costs time (`benchmarks/network.py` measures a slow link).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import launch, pages

REPOSITORY = Path(__file__).resolve().parent.parent
STEPS, INNER = 400, 10
RUNS: dict[str, tuple[str, ...]] = {
    "digits": ("conf=digits", "topology=ring", "cluster.workers=4", "data.batch_size=64"),
    "characters": ("conf=characters", "topology=ring", "cluster.workers=4", "data.shards=4", "data.batch_size=16"),
    "characters-64": ("conf=characters", "topology=ring", "cluster.workers=4"),
    "matrix": (
        "conf=MATRIX",
        "run.seed=1",
        "pipeline.target=benchmarks.matrix:Matrix",
        "data.shards=4",
        "data.batch_size=4",
        "cluster.workers=4",
        "topology=ring",
        "optimizer={name: sgd, lr: 0.01}",
        "checkpoint.every=null",
    ),
}
LOCAL = {
    "digits": ("local={steps: 10, optimizer: {name: adamw, lr: 0.002}}", "optimizer={name: sgd, lr: 1.0}"),
    "characters": (
        "local={steps: 10, clip: 1.0, optimizer: {name: adamw, lr: 0.001}}",
        "optimizer={name: sgd, lr: 0.7, momentum: 0.9, nesterov: true}",  # as DiLoCo's
        "gradient.clip=null",
    ),
    "matrix": ("local={steps: 10, optimizer: {name: sgd, lr: 0.01}}",),
}
LOCAL["characters-64"] = LOCAL["characters"]
IN_TABLE = ("digits", "characters", "matrix")


@dataclass(frozen=True)
class Method:
    """compression: its settings; inner: local steps of a round, 1 without rounds; only: pipelines, where not all; reset: one
    in so many steps is exact, but not the one whose bytes a run tells."""

    compression: tuple[str, ...] = ()
    inner: int = 1
    only: tuple[str, ...] = tuple(RUNS)
    reset: int | None = None


METHODS: dict[str, Method] = {
    "dense": Method(),
    "int8": Method(("compression=quantize",)),
    "PowerSGD, rank 2": Method(("compression={name: powersgd, rank: 2}",)),
    "PowerSGD, rank 4": Method(("compression={name: powersgd, rank: 4}",)),
    "PowerSGD, rank 4, warm-up, saving": Method(  # exact: a tenth of the steps, and the embeddings
        ("compression={name: powersgd, rank: 4, warmup: 40, saving: 15}",), only=("characters", "characters-64")
    ),
    "PowerSGD, rank 4, warm-up, saving, reset": Method(
        ("compression={name: powersgd, rank: 4, warmup: 40, saving: 15, reset: 4}",),
        only=("characters", "characters-64"),
        reset=4,
    ),
    "top-k, 1 %": Method(("compression={name: topk, ratio: 0.01}",)),
    "10 local steps": Method(inner=INNER),
    "10 local steps, int8": Method(("compression=quantize",), INNER),
}


@dataclass(frozen=True)
class Found:
    """The outcome of a run. bytes_per_step: of a local step, where there are such; loss, accuracy: on the validation set."""

    bytes_per_step: float
    loss: float | None
    accuracy: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", choices=list(RUNS))
    parser.add_argument("--method", choices=list(METHODS), action="append")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--page", type=pages.with_marks("methods"))
    chosen = parser.parse_args(arguments)
    found = {} if chosen.results is None else _known(chosen.results)
    for seed in range(1, chosen.seeds + 1):
        for pipeline in [chosen.only] if chosen.only else IN_TABLE:
            for method in chosen.method or METHODS:
                key = f"{pipeline}/{method}/{seed}"
                if key in found or pipeline not in METHODS[method].only or (pipeline == "matrix" and seed > 1):
                    continue
                found[key] = run(pipeline, METHODS[method], seed)
                print(f"{key}: {found[key]}", file=sys.stderr, flush=True)
                if chosen.results is not None:
                    with chosen.results.open("a") as file:
                        file.write(json.dumps({"key": key, **vars(found[key])}) + "\n")
    text = table(found, chosen.only if chosen.only == "characters-64" else "characters")
    print(text)
    if chosen.page is not None:
        pages.replace(chosen.page, "methods", text)
    return 0


def _known(path: Path) -> dict[str, Found]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {line.pop("key"): Found(**line) for line in lines}


def run(pipeline: str, method: Method, seed: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="mtd-", dir="/tmp") as name:  # short, because Ray puts Unix sockets into it
        empty = Path(name) / "matrix.yaml"
        empty.write_text("run: {name: methods}\n")
        steps = STEPS // method.inner if pipeline != "matrix" else 3
        given = [each.replace("MATRIX", str(empty)) for each in RUNS[pipeline]]
        given += [f"run.steps={steps}", f"run.seed={seed}", *method.compression]
        given += LOCAL[pipeline] if method.inner > 1 else ()
        given += ["evaluation.every=null"] if pipeline != "matrix" else []
        outcome = launch.outcome(REPOSITORY, *given)
    metrics = outcome["metrics"]
    sent = outcome["bytes_per_step"] / method.inner
    return Found(sent, metrics.get("validation/loss"), metrics.get("validation/accuracy"))


def table(found: Mapping[str, Found], characters: str = "characters") -> str:
    """In Markdown; means over the seeds. characters: which of their two pipelines is shown."""
    lines = [
        "| method | bytes, 25 M | | bytes, digits | accuracy, digits | bytes, characters | loss, characters | above dense |",
        "|---|---|---|---|---|---|---|---|",
    ]
    dense_bytes = _bytes(found, "matrix", "dense")
    dense_loss = _mean(found, characters, "dense", "loss")
    for method in METHODS:
        large = _bytes(found, "matrix", method)
        small, middle = (_bytes(found, each, method) for each in ("digits", characters))
        accuracy, loss = _mean(found, "digits", method, "accuracy"), _mean(found, characters, method, "loss")
        ratio = f"1/{dense_bytes / large:.1f}" if dense_bytes and large else ""
        above = f"{loss - dense_loss:+.3f}" if loss is not None and dense_loss is not None else ""
        cells = [
            *(_in_bytes(large), ratio if method != "dense" else ""),
            *(_in_bytes(small), "" if accuracy is None else f"{100 * accuracy:.2f}"),
            *(_in_bytes(middle), "" if loss is None else f"{loss:.3f}", above if method != "dense" else ""),
        ]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _bytes(found: Mapping[str, Found], pipeline: str, method: str) -> float | None:
    """The bytes of a step, in the mean of those after a warm-up."""
    sent, reset = _mean(found, pipeline, method, "bytes_per_step"), METHODS[method].reset
    if sent is None or reset is None:
        return sent
    exact = _mean(found, pipeline, "dense", "bytes_per_step")
    return None if exact is None else sent + (exact - sent) / reset


def _mean(found: Mapping[str, Found], pipeline: str, method: str, what: str) -> float | None:
    values = [getattr(each, what) for key, each in found.items() if key.startswith(f"{pipeline}/{method}/")]
    return statistics.fmean(values) if values and None not in values else None


def _in_bytes(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"


if __name__ == "__main__":
    sys.exit(main())
