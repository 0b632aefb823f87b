"""The request to the process that combines members, and its answer: two files of JSON.

A process of its own, because it computes as the members' processes did (`run.arithmetic` is chosen before torch is loaded), and
because data sets are made there, not in the driver.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from orchestrator.errors import OrchestratorError, RunFailed, from_dict
from orchestrator.worker.ensemble.saved import Blueprint


@dataclass(frozen=True)
class Computing:
    """How a member's process computes."""

    seed: int  # of the ensemble, also of `datasets()`
    rows: int  # of a batch
    steps: int  # how many updates a member has had
    threads: int  # of torch
    precision: Any  # of products
    arithmetic: Any  # of `run.arithmetic`


@dataclass(frozen=True)
class Request:
    """The request to combine members. weights: the file of each member's trained model; digests: what each has to have; to:
    the folder that the whole is saved in."""

    blueprint: Blueprint
    computing: Computing
    weights: Sequence[str]
    digests: Sequence[str]
    to: str

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Self:
        fields = json.loads(file.read_text(encoding="utf-8"))
        return cls(Blueprint(**fields.pop("blueprint")), Computing(**fields.pop("computing")), **fields)


Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Combined:
    """The result of combining members."""

    digest: str  # of the whole ensemble
    weights: Sequence[float]  # of the members, in order
    samples: int  # of the validation set, on which all these metrics are taken
    chosen_on: int  # further samples on which the weights were chosen; 0 where they were not
    metrics: Numbers  # of the whole, by name
    mean_of_members: Numbers  # by name, the mean of the members' metrics
    of_members: Sequence[Numbers]  # each member's metrics, by name
    # of the members, a mean over the samples; None where the model's output has no row for each
    disagreement: float | None
    agreed: Numbers  # metrics of the whole on the half of the samples on which members disagree least
    disagreed: Numbers  # metrics of the whole on the other half, on which they disagree most

    def as_dict(self) -> dict[str, Any]:
        """The fields, with None for each number that is not finite: JSON has no such numbers."""
        fields: dict[str, Any] = _finite(asdict(self))
        return fields


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer(file: Path, combined: Combined | OrchestratorError) -> None:
    fields = (
        {"failed": combined.as_dict()} if isinstance(combined, OrchestratorError) else {"combined": combined.as_dict()}
    )
    file.write_text(json.dumps(fields), encoding="utf-8")


def answered(file: Path) -> Combined:
    """Raises the error that was answered, RunFailed where there is no answer."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise RunFailed(
            "the process that combines the members ended without an answer",
            "its output stands above; look for the kernel's out-of-memory killer (dmesg), and go on with resume=",
            code="ensemble.no-answer",
        ) from None
    if "failed" in fields:
        raise from_dict(fields["failed"])
    return Combined(**fields["combined"])
