"""Evaluation on the validation set, spread over the workers, with a result free of their number (rule A6).

Validation batch j belongs to shard j modulo the number of shards and so to that shard's host. Each batch fills its own row of
slots; the rows are combined by maximum and reduced with `math.fsum`. Two walks: the first tells how many metrics there are,
whether all have the same names and whether a batch failed; the second carries the rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from orchestrator.engine.ballots import EMPTY, from_slots, to_slots
from orchestrator.engine.exchange import EVALUATION, EVALUATION_VOTE, Exchange
from orchestrator.engine.lockstep import Withdrawn
from orchestrator.engine.replica import Replica
from orchestrator.engine.work import Work
from orchestrator.errors import OrchestratorError, PipelineRaised

Beat = Callable[[], None]

_LOSS = "validation/loss"
_FIXED = 3  # loss, its weight, rows; the metrics follow


class Results:
    """What one member computed: the names of the metrics, a row of values per batch, or the fault that stopped it."""

    def __init__(self) -> None:
        self.names: list[str] | None = None
        self.rows: dict[int, list[float]] = {}
        self.fault: tuple[int, OrchestratorError] | None = None

    def add(self, batch: int, names: list[str], values: list[float]) -> None:
        if self.names is not None and names != self.names:
            raise PipelineRaised(
                f"metrics() returned {names} for validation batch {batch} and {self.names} before",
                "return the same names for every batch",
            )
        self.names = names
        self.rows[batch] = values


def compute(work: Work, replica: Replica, shards: Sequence[int], total_shards: int, step: int, beat: Beat) -> Results:
    """Evaluate the batches that these shards own, each from the same buffers; modes and buffers are left as they were, also
    when `beat`, which is called before each batch, raises."""
    results = Results()
    own = [batch for batch in range(len(work.evaluation_batches)) if batch % total_shards in shards]
    with _in_eval_mode(work.model), _restoring(replica):
        for batch in own:
            beat()
            replica.begin_shard()
            try:
                results.add(batch, *work.evaluate(step, batch))
                replica.check_unchanged()
            except OrchestratorError as error:
                results.fault = (batch, error)
                break
    return results


@contextmanager
def _restoring(replica: Replica) -> Iterator[None]:
    try:
        yield
    finally:
        replica.begin_shard()


@contextmanager
def _in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode it was in: a pipeline may keep some of them frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train()
        for module, training in modes:
            module.training = training


def combine(
    exchange: Exchange, step: int, batches: int, results: Results, watched: Sequence[str] = ()
) -> dict[str, float]:
    """The metrics over the whole validation set, the same at every member. One without results of its own, such as a server,
    learns no names but those `watched` for, which decisions depend on.

    Raises PipelineRaised (also where there is no metric of a watched name), Withdrawn, and what the transport raises.
    """
    metrics, columns = _agree(exchange, step, batches, results, watched)
    width = _FIXED + metrics
    filled = {batch * width + i: value for batch, row in results.rows.items() for i, value in enumerate(row)}
    slots = exchange.maximum(step, 0, EVALUATION, to_slots(batches * width, filled))
    values = from_slots(slots)
    rows = [[values[batch * width + i] for i in range(width)] for batch in range(batches)]
    means = {_LOSS: _mean([(row[0], row[1]) for row in rows])}
    for name, i in {**columns, **_columns(results)}.items():
        means[name] = _mean([(row[_FIXED + i], row[2]) for row in rows])
    return means


def _columns(results: Results) -> dict[str, int]:
    """The full name of each metric, and its place in a row behind the fixed ones."""
    return {f"validation/{name}": i for i, name in enumerate(results.names or [])}


def _agree(
    exchange: Exchange, step: int, batches: int, results: Results, watched: Sequence[str]
) -> tuple[int, dict[str, int]]:
    """The number of metrics, and the places of the watched ones. All members have to give the metrics the same names, and none
    may have failed."""
    sought = [name for name in watched if name != _LOSS]
    vote = [EMPTY] * (4 + len(sought))
    if results.names is not None:
        names, columns = _hash(results.names), _columns(results)
        vote = [EMPTY, len(results.names), names, -names, *(columns.get(name, EMPTY) for name in sought)]
    if results.fault is not None:
        vote[0] = batches - results.fault[0]
    agreed = exchange.maximum(step, 0, EVALUATION_VOTE, torch.tensor(vote, dtype=torch.int64))
    failing, count, high, low, *places = agreed.tolist()
    if failing != EMPTY:
        batch = batches - failing
        own = results.fault is not None and results.fault[0] == batch
        raise results.fault[1] if own and results.fault else Withdrawn(f"validation batch {batch} failed")
    if high != -low:
        own = f" ({results.names} here)" if results.names else ""
        raise PipelineRaised(
            f"metrics() returned different names for different validation batches{own}",
            "return the same names for every batch",
        )
    for name, place in zip(sought, places, strict=True):
        if place == EMPTY:
            own = f"; there are {', '.join([_LOSS, *_columns(results)])}" if results.names is not None else ""
            raise PipelineRaised(
                f"there is no metric {name!r} to watch{own}", "see early_stopping.metric, schedule.metric"
            )
    return int(count), dict(zip(sought, places, strict=True))


def _hash(names: list[str]) -> int:
    """63 bits."""
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), "little") >> 1


def _mean(values: list[tuple[float, float]]) -> float:
    """The weighted mean; not a number where the model's values are not, which evaluation reports and does not judge."""
    values = [(value, weight) for value, weight in values if weight > 0]
    total = math.fsum(weight for _, weight in values)
    if not all(math.isfinite(value) for value, _ in values):
        return math.nan
    return math.fsum(value * weight for value, weight in values) / total if total else math.nan
