"""Evaluation on the validation set, divided among the workers, with a result that does not depend on their number (rule
A6).

Validation batch j belongs to shard j modulo the number of shards and so to that shard's host. Each batch fills its own
row of slots; the rows are combined by maximum and reduced with `math.fsum`. There are two exchanges: the first agrees
on how many metrics there are, whether all have the same names and whether a batch failed; the second carries the rows,
and the names for members without a batch. A third one tells servers a watched metric that is made
of what was put together, since they have no pipeline to make it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction

import torch

from orchestrator.comm.collectives import EVALUATION, EVALUATION_VOTE, Exchange
from orchestrator.errors import OrchestratorError, PipelineRaised
from orchestrator.pipeline import REDUCED, naming
from orchestrator.worker.member.generation import Withdrawn
from orchestrator.worker.model.layer_modes import Modes, modes_of, put_back
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.step_report import EMPTY, from_slots, from_words, to_slots, to_words

Beat = Callable[[], None]
Evaluate = Callable[[int, int], tuple[list[str], list[float]]]  # of (step, batch): as `PipelineAdapter.evaluate`

_LOSS = "validation/loss"
_FIXED = 3  # loss, its weight, rows; the metrics follow


class Results:
    """The results of one member: the names of the metrics, a row of values per batch, or the error that stopped it.
    summarized: makes the metrics of what was put together over all batches; those of a server stay as they are."""

    def __init__(self, summarized: Callable[[dict[str, float]], dict[str, float]] = lambda means: means) -> None:
        self.summarized = summarized
        self.names: list[str] | None = None
        self.rows: dict[int, list[float]] = {}
        self.fault: tuple[int, OrchestratorError] | None = None

    def add(self, batch: int, names: list[str], values: list[float]) -> None:
        if self.names is not None and names != self.names:
            raise PipelineRaised(
                f"metrics() returned {names} for validation batch {batch} and {self.names} before",
                "return the same names for every batch",
                code="pipeline.metrics-names",
            )
        self.names = names
        self.rows[batch] = values


def compute(
    workload: PipelineAdapter, replica: Replica, batches: Iterable[int], evaluate: Evaluate, step: int, beat: Beat
) -> Results:
    """Evaluate these batches, each from the same modes, buffers and frozen parameters, which are left as they were, also when
    `beat`, which is called before each batch, raises."""
    results = Results(workload.summarized)
    with in_eval_mode(workload.model) as begin_batch, restoring(replica):
        for batch in batches:
            beat()
            begin_batch()
            replica.begin_shard()
            try:
                results.add(batch, *evaluate(step, batch))
                replica.check_shard()
                replica.check_step()
            except OrchestratorError as error:
                results.fault = (batch, error)
                break
    return results


@contextmanager
def restoring(replica: Replica) -> Iterator[None]:
    try:
        yield
    finally:
        replica.give_up_shard()


@contextmanager
def in_eval_mode(model: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Within the block the model is in evaluation mode; afterwards every module is in the mode it was in, since a
    pipeline may keep some of them frozen, and the same parameters are trained. Gives what begins a batch in that mode, also
    where the user's code has left another one for a batch before, as for Monte Carlo dropout: which batches a worker has had
    may not matter."""
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with naming("eval() of the model"):
        modes = modes_of(model)
        model.eval()
    evaluating = [(module, module.training) for module, _ in modes]
    try:
        yield lambda: _set(evaluating, trained)
    finally:
        with naming("train() of the model"):
            model.train()
        _set(modes, trained)


def _set(modes: Modes, trained: Iterable[tuple[torch.Tensor, bool]]) -> None:
    put_back(modes)
    for parameter, is_trained in trained:
        if parameter.requires_grad is not is_trained:
            parameter.requires_grad = is_trained


def combine(
    exchange: Exchange, step: int, batches: int, results: Results, monitored: Sequence[str] = ()
) -> dict[str, float]:
    """The metrics over the whole validation set, the same at every member, whether it has results of its own or not.
    monitored: the metrics that decisions depend on.

    Raises PipelineRaised (also if a monitored metric does not exist), Withdrawn, and what the transport raises.
    """
    words = to_words(b"" if results.names is None else json.dumps(results.names).encode())
    metrics, length = _agree(exchange, step, batches, results, len(words))
    width = _FIXED + metrics
    filled = {batch * width + i: value for batch, row in results.rows.items() for i, value in enumerate(row)}
    vector = torch.tensor([*to_slots(batches * width, filled), *(words or [EMPTY] * length)], dtype=torch.int64)
    agreed = exchange.maximum(step, 0, EVALUATION, vector).tolist()
    values = from_slots(agreed[: batches * width])
    rows = [[values[batch * width + i] for i in range(width)] for batch in range(batches)]
    parts = means_of(json.loads(from_words(agreed[batches * width :]).rstrip(b"\0")), rows)
    means = results.summarized(parts)
    if any(name not in parts for name in monitored):  # all have the same parts, so all of them ask
        means |= _agreed_metrics(exchange, step, means, monitored)
    for name in monitored:
        if name not in means:
            raise PipelineRaised(
                f"there is no metric {name!r} to watch; there are {', '.join(means)}",
                "see early_stopping.metric, schedule.metric, checkpoint.best.metric",
                code="pipeline.no-such-metric",
            )
    return means


def _agreed_metrics(
    exchange: Exchange, step: int, means: Mapping[str, float], monitored: Sequence[str]
) -> dict[str, float]:
    """The watched metrics as the members have them that can make them."""
    own = {place: means[name] for place, name in enumerate(monitored) if name in means}
    vector = torch.tensor(to_slots(len(monitored), own), dtype=torch.int64)
    agreed = from_slots(exchange.maximum(step, 1, EVALUATION, vector).tolist())
    return {monitored[place]: value for place, value in agreed.items()}


def means_of(names: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """The means over all batches, or what else a name says; NaN if no batch has weight. rows: of each batch what
    `PipelineAdapter.evaluate` gives with these names."""
    means = {_LOSS: _mean([(row[0], row[1]) for row in rows])}
    for i, name in enumerate(names):
        plain, _, how = name.partition(REDUCED)
        means[f"validation/{plain}"] = _REDUCTIONS[how]([(row[_FIXED + i], row[2]) for row in rows])
    return means


def _agree(exchange: Exchange, step: int, batches: int, results: Results, length: int) -> tuple[int, int]:
    """The number of metrics, and of the words of their names. All members have to give the metrics the same names, and none may
    have failed."""
    vote = [EMPTY] * 5
    if results.names is not None:
        names = _hash(results.names)
        vote = [EMPTY, len(results.names), length, names, -names]
    if results.fault is not None:
        vote[0] = batches - results.fault[0]
    agreed = exchange.maximum(step, 0, EVALUATION_VOTE, torch.tensor(vote, dtype=torch.int64))
    failing, count, words, high, low = agreed.tolist()
    if failing != EMPTY:
        batch = batches - failing
        own = results.fault is not None and results.fault[0] == batch
        raise results.fault[1] if own and results.fault else Withdrawn(f"validation batch {batch} failed")
    if high != -low:
        said = f" ({results.names} here)" if results.names else ""
        raise PipelineRaised(
            f"metrics() returned different names for different validation batches{said}",
            "return the same names for every batch",
            code="pipeline.metrics-differ",
        )
    return int(count), int(words)


def _hash(names: list[str]) -> int:
    """A hash of the names, 63 bits."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), "little") >> 1


def _mean(values: list[tuple[float, float]]) -> float:
    """The weighted mean, infinite where values are; evaluation reports that and does not judge it."""
    values = [(value, weight) for value, weight in values if weight > 0]
    total = math.fsum(weight for _, weight in values)
    if not all(math.isfinite(value) for value, _ in values):
        return sum(value for value, _ in values if not math.isfinite(value))  # of both signs, or with NaN: NaN
    if not total:
        return math.nan
    weighted = [value * weight for value, weight in values]
    with suppress(OverflowError):
        if all(map(math.isfinite, weighted)):
            return math.fsum(weighted) / total
    whole = sum(Fraction(value) * Fraction(weight) for value, weight in values)  # which is no float64
    return float(whole / Fraction(total))


def _sum(values: list[tuple[float, float]]) -> float:
    if not all(math.isfinite(value) for value, _ in values):
        return sum(value for value, _ in values)
    with suppress(OverflowError):
        return math.fsum(value for value, _ in values)
    whole = sum((Fraction(value) for value, _ in values), Fraction(0))
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


_REDUCTIONS: Mapping[str, Callable[[list[tuple[float, float]]], float]] = {
    "": _mean,
    "sum": _sum,
    "min": lambda values: min((value for value, _ in values), default=math.nan),
    "max": lambda values: max((value for value, _ in values), default=math.nan),
}
