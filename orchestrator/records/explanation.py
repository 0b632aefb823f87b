"""Whether the step at which a rerun left its original comes out the same when it is run once more, on the same machine.

A result that differs between two repetitions a minute apart shows chance within the step. A result that is the same twice,
and yet not as it was then, shows a change between then and now. Both repetitions have digests of every tensor after each
step. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import few
from orchestrator.records.trace import Line
from orchestrator.records.verdict import NAMED, Divergence, differing, first_divergence, tensors_of, value_of


@dataclass(frozen=True)
class Explanation:
    """Why a rerun left its original: always, or by chance. step: the first in which the repetitions differ, else the one in
    which both left the original; differs: in what, as in Divergence.what, empty when in nothing; as_original: the second
    repetition came out as the original there."""

    step: int
    differs: tuple[str, ...]
    as_original: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"step": self.step, "differs": list(self.differs), "as_original": self.as_original}

    @property
    def text(self) -> str:
        """A sentence for a person."""
        if not self.differs:
            return (
                f"step {self.step} came out the same twice here: not chance within the step, but something between then and "
                "now that is not recorded (the machine, a library, a file, a service)"
            )
        tensors = tensors_of(self.differs)
        parts = [what for what in self.differs if what in ("loss", "gradient")]
        parts += [f"the tensors {few(tensors, NAMED)}"] if tensors else []
        how = "as in the original" if self.as_original else "in yet another way"
        return (
            f"run once more, step {self.step} came out {how}: chance within the step (a clock, os.urandom, an operation that "
            f"is not deterministic); between the two repetitions differ: {', '.join(parts or self.differs)}"
        )


def explain(parted: Divergence, original: Iterable[Line], first: Iterable[Line], second: Iterable[Line]) -> Explanation:
    """Judge a difference by a second repetition. parted: where the first repetition left the original; then the three
    traces, each in order of its steps."""
    last = parted["step"]
    then, once, again = (
        {line["step"]: line for line in trace if line["step"] <= last} for trace in (original, first, second)
    )
    found = first_divergence(once.values(), again.values())
    step = last if found is None else found["step"]
    differs = tuple(differing(once.get(step), again.get(step)))
    back = differs and step == last and value_of(again.get(last), parted["what"]) == parted["expected"]
    return Explanation(step, differs, bool(back) and not differing(then.get(last), again.get(last)))
