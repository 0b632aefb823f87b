"""Which micro-batches are computed once more by another worker, and who has computed wrongly where two disagree. Pure.

In a step that is due every worker computes one micro-batch that another one computes too, of another node where there is one.
So whoever computes wrongly all the time is found by the first check, whatever was drawn: it takes part as the one who checks.
The steps that are due are `every` apart, hence no stretch of so many is without one.

If two answers differ, all workers compute that micro-batch once more. An answer is a digest; the same computation gives the
same one on every worker (rule B4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """The finding of a check in a step; nothing of that step is applied."""

    step: int  # of the run, which was checked
    shard: int | None  # the micro-batch whose answers differ; None: memory changed while the sum was under way
    since: int  # what was computed wrongly may be in the parameters from this step on
    wrong: tuple[int, ...]  # the ranks of those who computed wrongly, none where it cannot be told
    between: tuple[int, ...]  # the ranks whose answers differed
    copied: bool = False  # what the first of these sent has arrived otherwise at the second


def chosen(
    draw: int, rank: int, assigned: Sequence[Sequence[int]], nodes: Sequence[int], computed: Collection[int]
) -> list[int]:
    """The shards of which the worker of this rank computes the first one that is not empty, beside its own, which are
    `computed`; of its own where it is alone; none where nobody else computes any. assigned, nodes: of each worker; draw: a
    number at random."""
    if len(assigned) == 1:
        others = sorted(computed)
    else:
        far = [shard for other, shards in enumerate(assigned) if nodes[other] != nodes[rank] for shard in shards]
        beside = [shard for other, shards in enumerate(assigned) if other != rank for shard in shards]
        others = sorted({*(far or beside)} - {*computed})
    first = draw % max(1, len(others))
    return others[first:] + others[:first]


def judge(first: Mapping[int, int], again: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks that computed wrongly, none where it cannot be told. first: the answers that differ, by rank; again: those of
    all workers, when they computed the same once more.

    Among three or more workers the majority is right, so fewer than half can be wrong. Among two, one is wrong if it
    contradicts itself while the other does not.
    """
    if len(again) == 2 and len({*again.values()}) == 2:
        wrong = {rank for rank, answer in again.items() if first.get(rank, answer) != answer}
    else:
        right, count = Counter(again.values()).most_common(1)[0]
        if 2 * count <= len(again):
            return ()
        wrong = {rank for answers in (first, again) for rank, answer in answers.items() if answer != right}
    return tuple(sorted(wrong)) if len(wrong) <= max(1, (len(again) - 1) // 2) < len(again) else ()
