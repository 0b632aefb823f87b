"""Rules between the values of several keys as data: which keys, what breaks the rule, and the sentence that says so.

Rule("batch.rows", ("data.batch_size", "data.shards"), lambda size, shards: size.least < shards, "data.batch_size: {0} ...")

STAGES = Case(("cluster.stages",), lambda stages: stages > 1)
STAGES.requires("stages.fast", "reduction", "exact", "reduction: with cluster.stages {0} is not on offer; ...")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import coded

SPANS = ("schedule.every", "schedule.end", "evaluation.every", "checkpoint.every")  # the keys that may be in epochs

Sentence = str | Callable[..., str]  # filled in with the values, "{0}" being the first; or what makes one of them


@dataclass(frozen=True)
class Rule:
    """A rule between the values of several keys. keys: whose values the others get, in this order; the first one that was
    given is the one to blame."""

    code: str
    keys: tuple[str, ...]
    broken: Callable[..., Any]
    sentence: Sentence

    def problem(self, *values: Any) -> str | None:
        if not self.broken(*values):
            return None
        sentence = self.sentence.format(*values) if isinstance(self.sentence, str) else self.sentence(*values)
        return coded(self.code, sentence)


@dataclass(frozen=True)
class Case:
    """When some rules count. holds: of the values of these keys. Sentences get the value of the other key first."""

    keys: tuple[str, ...]
    holds: Callable[..., Any]

    def requires(self, code: str, key: str, fit: Any, sentence: Sentence) -> Rule:
        """In this case `key` has to be fit: this value, or one of which this function is true."""

        def broken(value: Any, *case: Any) -> bool:
            return bool(self.holds(*case)) and not (fit(value) if callable(fit) else value == fit)

        return Rule(code, (key, *self.keys), broken, sentence)

    def is_required_by(self, code: str, key: str, off: Any, sentence: Sentence) -> Rule:
        """Outside of this case `key` has nothing to do, and has to be off: this value."""
        return Rule(code, (key, *self.keys), lambda value, *case: value != off and not self.holds(*case), sentence)


@dataclass(frozen=True)
class Idle(Rule):
    """A setting that others leave without effect. It harms no run. It is looked for in settings that somebody has written,
    and not in a record, which is repeated as it is, or in a rung of a sweep, which is shorter than its runs.
    switches: the keys that a later source may give and so leave the others behind, such as a command line that shortens
    the run of a file."""

    switches: tuple[str, ...] = ()


def two_lengths(section: str | None) -> str:
    return coded(f"{section}.two-lengths", f"{section}.steps and {section}.epochs: only one can be set")
