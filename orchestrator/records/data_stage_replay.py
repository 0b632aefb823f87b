"""The outcome of the repeated preparation of data: the stages in their order, and the first one that made other data.
Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.errors import few
from orchestrator.records.verdict import Word

_SHOWN = 12  # digits of a hash
_NAMED = 5


@dataclass(frozen=True)
class Made:
    """An output of a stage. expected: its recorded hash, None where none was; got: None where it was not made; files: those of
    a folder that differ, as far as that is known."""

    path: str
    expected: str | None
    got: str | None
    files: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        return self.got is not None and self.expected in (None, self.got)

    @property
    def text(self) -> str:
        if self.got is None:
            return f"{self.path} was not made"
        inside = f" ({few(self.files, _NAMED)})" if self.files else ""
        return f"{self.path} was {str(self.expected)[:_SHOWN]}, is {self.got[:_SHOWN]}{inside}"


@dataclass(frozen=True)
class Repeated:
    """A stage that was executed again. changed: what it has other than when DVC recorded its outputs, as phrases."""

    stage: str
    outputs: tuple[Made, ...]
    changed: tuple[str, ...] = ()

    @property
    def parted(self) -> tuple[Made, ...]:
        return tuple(made for made in self.outputs if not made.is_same)


@dataclass(frozen=True)
class Preparation:
    """The outcome of repeated stages of DVC. stages: those that were executed, none after the first that differs;
    surroundings: how the environment differs from that of the run, as phrases, told where a stage differs."""

    stages: tuple[Repeated, ...]
    surroundings: tuple[str, ...] = ()

    @property
    def parted(self) -> Repeated | None:
        """The first stage that made something else."""
        return next((stage for stage in self.stages if stage.parted), None)

    @property
    def word(self) -> Word:
        found = self.parted
        if found is None:
            return "exact"
        return "inputs-differ" if self.surroundings or found.changed else "diverged"

    @property
    def text(self) -> str:
        """In a sentence or two; what is exact is told as the beginning of the verdict over the run."""
        found = self.parted
        if found is None:
            outputs = [made.path for stage in self.stages for made in stage.outputs]
            return f"from the raw data on: {self._count} made {few(outputs, _NAMED)} again, byte for byte"
        parting = f"stage {found.stage}: {'; '.join(made.text for made in found.parted)}"
        before = len(self.stages) - 1
        if before:
            parting += f"; the {before} stage{'s' * (before > 1)} before {'agree' if before > 1 else 'agrees'}"
        inputs = "; ".join([*self.surroundings, *(f"stage {found.stage}: {each}" for each in found.changed)])
        return f"{self.word}: {inputs}. {parting}" if inputs else f"{self.word}: {parting}"

    @property
    def _count(self) -> str:
        names = [stage.stage for stage in self.stages]
        return f"stage{'s' * (len(names) > 1)} {few(names, _NAMED)}"

    def as_list(self) -> list[dict[str, Any]]:
        return [{**asdict(stage), "same": not stage.parted} for stage in self.stages]
