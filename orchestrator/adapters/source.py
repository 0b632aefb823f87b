"""The pipeline of a run as the settings name it. It needs neither torch nor the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Source:
    """The source of the user's pipeline, and the arguments to build it with. `table.find` makes a class of it."""

    target: str  # the class, as "package.module:Class": a Pipeline, or one that an adapter takes
    args: Mapping[str, Any]  # of its constructor
    data: str | None = None  # what gives an adapter its data, in the same form; None where the target does
    data_args: Mapping[str, Any] = field(default_factory=dict)  # of the constructor of `data`

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for another process or a file. Without `data` there are only the keys that there always were."""
        found = asdict(self)
        return found if self.data is not None else {"target": self.target, "args": found["args"]}

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Source:
        """The source that `as_dict` describes; other keys of the mapping are left alone."""
        return cls(
            description["target"],
            description["args"],
            description.get("data"),
            description.get("data_args", {}),
        )
