"""`doctor`: what this processor computes otherwise than those on which the page of operators was made (docs/portable.md).

The whole page is computed in this process, which therefore must not have loaded torch before. `cards.py` adds GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from orchestrator.cli import cards
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.cards import CardReport
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.numerics import determinism
from orchestrator.numerics.portable import checking
from orchestrator.optim import optimizers

DIFFERS = 3  # the exit code


@dataclass(frozen=True)
class Findings:
    """The findings."""

    hashes: dict[str, str]  # what came out, by case
    differing: list[str]  # names of cases
    unportable: list[str]  # likewise
    gpus: CardReport = field(default_factory=lambda: CardReport([]))  # what each is, and what was tried on it

    @property
    def exit_code(self) -> int:
        return DIFFERS if self.differing else 0

    def as_dict(self) -> dict[str, Any]:
        known = checking.known()
        return {
            "processor": determinism.cpu_model(),
            "torch": torch.__version__,
            "known_torch": checking.known_torch(),
            "operators": len(self.hashes),
            "differing": [
                {
                    "operator": name,
                    "uses": sorted(known[name].operators),
                    "expected": known[name].hash,
                    "got": self.hashes[name],
                }
                for name in self.differing
            ],
            "unportable": self.unportable,
            "gpus": self.gpus.as_dict(),
        }

    def as_text(self) -> str:
        lines = [f"{determinism.cpu_model()}, torch {torch.__version__}: {len(self.hashes)} operators"]
        if torch.__version__ != checking.known_torch():
            lines.append(
                f"note: what is known is of torch {checking.known_torch()}, and another one may compute otherwise"
            )
        if self.unportable:
            lines.append(
                f"  {len(self.unportable)} have other bits on other processors, and are refused under portable"
            )
        if not self.differing:
            lines.append("  nothing differs: run.arithmetic=portable gives the bits here that it gives elsewhere")
        for name in self.differing:
            lines.append(f"  {name} differs ({', '.join(sorted(checking.known()[name].operators))})")
        return "\n".join([*lines, *self.gpus.as_text()])


def run(arguments: Arguments) -> CommandResult:
    found = doctor()
    return reported(found, arguments, found.exit_code)


def doctor() -> Findings:
    """Raises ConfigurationError where this process cannot compute portably."""
    determinism.prepare_thread(1, arithmetic="portable")
    optimizers.prepare()
    with determinism.filled():
        found = checking.check(checking.known())
    return Findings(found.hashes, found.differing, checking.unportable(), cards.report())
