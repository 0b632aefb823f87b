"""The numbers that a module gives to `self.log`: of a validation batch, so that they can be put together over all batches.

A mean is weighted by the rows of its batch. A metric of torchmetrics is put together from its states, each by its own reduction
(sum, max, min), and computed once; so its value is that of one pass over all samples, in whatever order.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from orchestrator.errors import PipelineRaised
from orchestrator.pipeline import REDUCED

# As Lightning names them, and functions of torch and Python, and as they are put together.
REDUCTIONS = {
    **{name: name for name in ("mean", "sum", "min", "max")},
    **{f"a{name}": name for name in ("min", "max")},
}
_OF_STATES = {"dim_zero_sum": "sum", "dim_zero_max": "max", "dim_zero_min": "min", "sum": "sum"}
_COMPOSED = "CompositionalMetric"  # of torchmetrics, made by arithmetic on metrics
_MOST_ELEMENTS = 4096  # of a metric's states, each of which is a number of its own until they are put together
_STATE, _WEIGHT = ":state", ":weight"
_PER_BATCH = "log what can be put together over batches, such as the functional form of one batch"


class Numbers:
    """The numbers that one validation batch has logged, by name."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self.metrics: dict[str, Any] = {}  # of torchmetrics, that were logged themselves
        self._problems: list[PipelineRaised] = []

    def add(self, name: str, value: Any, how: Any, batch_size: int | None) -> None:
        """Take a number that the module has logged. how: reduce_fx. Problems are kept until `check`, so that all are told
        at once."""
        try:
            self._add(name, value, how, batch_size)
        except PipelineRaised as problem:
            self._problems.append(problem)

    def check(self) -> None:
        """Raises PipelineRaised with everything that could not be taken."""
        if self._problems:
            first, *others = self._problems
            said = "; ".join(each.message for each in self._problems)
            raise PipelineRaised(said, first.remedy if not others else _PER_BATCH, code=first.code)

    def _add(self, name: str, value: Any, how: Any, batch_size: int | None) -> None:
        if is_metric(value):
            self.found.update(states_of(name, value))
            self.metrics[name] = value
            return
        reduction = REDUCTIONS.get(how if isinstance(how, str) else getattr(how, "__name__", ""))
        if reduction is None:
            raise PipelineRaised(
                f"self.log of {name!r} has reduce_fx={how!r}",
                f"there are {', '.join(sorted(set(REDUCTIONS.values())))}",
                code="lightning.reduction-logged",
            )
        number = float(value.detach() if isinstance(value, torch.Tensor) else value)
        if reduction != "mean":
            self._take(name, f"{name}{REDUCED}{reduction}", number)
        elif batch_size is None:
            self._take(name, name, number)
        else:
            self._take(name, f"{name}{_WEIGHT}/0{REDUCED}sum", number * batch_size)
            self._take(name, f"{name}{_WEIGHT}/1{REDUCED}sum", float(batch_size))

    def _take(self, name: str, key: str, number: float) -> None:
        """Raises PipelineRaised where the batch has another number there: a Trainer takes both, and counts the batch twice."""
        before = self.found.setdefault(key, number)
        if before != number and not (math.isnan(before) and math.isnan(number)):
            raise PipelineRaised(
                f"self.log of {name!r} is called twice for one batch, with other numbers",
                "give each number a name of its own, or log what they make together once",
                code="lightning.logged-twice",
            )


class NumbersAtTheEnd(Numbers):
    """The numbers that on_validation_epoch_end has logged, once: nothing is put together, whatever reduce_fx and batch_size."""

    def _add(self, name: str, value: Any, how: Any, batch_size: int | None) -> None:  # noqa: ARG002
        if is_metric(value):
            raise PipelineRaised(
                f"on_validation_epoch_end logs {name!r} as a {type(value).__name__}, which has seen no batch here",
                "log the metric in validation_step, and its value over all batches is recorded",
                code="lightning.metric-logged-at-the-end",
            )
        super()._add(name, value, "mean", None)


def is_metric(value: Any) -> bool:
    return any(
        kind.__name__ == "Metric" and kind.__module__.partition(".")[0] == "torchmetrics"
        for kind in type(value).__mro__
    )


def states_of(name: str, metric: Any) -> Iterator[tuple[str, float]]:
    """The states of a metric that has seen one batch, each element by a name with its shape and reduction: it may
    begin as one number, and grow with the first batch. Raises PipelineRaised."""
    elements = 0
    for state, holder, reduction in sorted(_states(metric, name), key=lambda each: each[0]):
        value = getattr(holder, state.rpartition(".")[2])
        how = _OF_STATES.get(getattr(reduction, "__name__", ""))
        elements += value.numel() if isinstance(value, torch.Tensor) else 0
        if not isinstance(value, torch.Tensor) or how is None or elements > _MOST_ELEMENTS:
            raise PipelineRaised(
                f"the metric {type(metric).__name__} that is logged as {name!r} keeps {state!r} over batches, which is no sum, "
                f"maximum or minimum of up to {_MOST_ELEMENTS} numbers",
                "give it thresholds, where it takes them, or log the functional form of one batch",
                code="lightning.metric-state",
            )
        shape = "x".join(map(str, value.shape))
        for index, number in enumerate(value.flatten().tolist()):
            yield f"{name}{_STATE}/{state}/{shape}/{index}{REDUCED}{how}", float(number)


def _states(metric: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Each state by its name, the metric that keeps it, and its reduction. `accuracy * 100` keeps none itself. Raises
    PipelineRaised."""
    if not any(is_metric(each) for each in metric.modules() if each is not metric):
        yield from ((state, metric, how) for state, how in _reductions(metric, name).items())
    elif type(metric).__name__ == _COMPOSED:
        for place, part in metric.named_children():
            if is_metric(part):
                yield from ((f"{place}.{state}", holder, how) for state, holder, how in _states(part, name))
    else:
        raise PipelineRaised(
            f"the metric {type(metric).__name__} that is logged as {name!r} keeps its states in other metrics",
            "log the metric within it, or the functional form of one batch",
            code="lightning.metric-wrapper",
        )


def _reductions(metric: Any, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = getattr(metric, "_reductions", None)
    if found is None:
        raise PipelineRaised(
            f"the metric {type(metric).__name__} that is logged as {name!r} does not say how its states are put together",
            "install the tested version of torchmetrics, or log the functional form of one batch",
            code="lightning.metric-form",
        )
    return found


def together(metrics: Mapping[str, float], templates: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The metrics by their names, of what was put together over all batches. templates: a metric of torchmetrics for each name
    that was logged as one; prefix: of every name."""
    found: dict[str, float] = {}
    parts: dict[tuple[str, str], dict[str, float]] = {}
    for name, value in metrics.items():
        mark = next((mark for mark in (_STATE, _WEIGHT) if mark in name), None)
        if mark is None:
            found[name] = value
        else:
            plain, _, part = name.partition(mark)
            parts.setdefault((plain, mark), {})[part.removeprefix("/")] = value
    for (name, kind), values in parts.items():
        if kind == _WEIGHT:
            found[name] = values["0"] / values["1"] if values["1"] else float("nan")
        else:
            found[name] = _computed(templates[name.removeprefix(prefix)], values)
    return dict(sorted(found.items()))


def _computed(template: Any, values: Mapping[str, float]) -> float:
    metric = copy.deepcopy(template).cpu()
    metric.reset()
    shapes = dict(key.split("/")[:2] for key in values)
    for state, holder, _ in _states(metric, type(metric).__name__):
        if state not in shapes:  # it has no element
            continue
        attribute, shape = state.rpartition(".")[2], [int(each) for each in shapes[state].split("x") if each]
        numbers = [values[f"{state}/{shapes[state]}/{index}"] for index in range(math.prod(shape))]
        kind = getattr(holder, attribute).dtype
        setattr(holder, attribute, torch.tensor(numbers, dtype=torch.float64).to(kind).reshape(shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has seen no batch itself
        return float(metric.compute())
