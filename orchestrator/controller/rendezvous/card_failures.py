"""The consequence of a GPU's failure under a worker: that worker is lost, its work goes on elsewhere, or the run ends.

The pipeline is at fault where kernels fail with the same micro-batch at two workers. A launch on a processor would have ended
with its error. A card that fails twice is left out, by its UUID, for the rest of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.common import card_faults
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import CardFailed
from orchestrator.controller.membership import LostMember, living
from orchestrator.errors import RunFailed

FAILURES = 2  # of a card, after which it is left out
IN_A_STEP = 3  # of workers, none of which names the micro-batch of another: a card tells late


def lost(decision: Decision, event: CardFailed) -> list[tuple[LostMember, str]]:
    """The members lost by this failure, each with the reason; none if the run ends over it."""
    state = decision.state
    failures = (*state.card_failures, event)
    decision.set(card_failures=failures)
    if is_of_code(failures):
        decision.end(event.error, f"step {event.step} fails on GPUs wherever it is computed")
        return []
    out = left_out(failures)
    new = out - left_out(state.card_failures)
    ready = [each for each in living(state, "worker") if each.ready is not None and each.id != event.member]
    staying = [each for each in ready if each.card not in out]
    if new and not staying:
        error = RunFailed(
            f"GPU {event.card} failed twice, and no worker has another one: {event.error.message}",
            card_faults.BY_CODE[event.code].remedy,
            event.error.details,
            code="gpu.none-left",
        )
        decision.end(error, "no card is left")
        return []
    found = []
    for member in list(state.members.values()):
        if member.id == event.member:
            why = f"failed on its GPU ({event.code}): {event.error.message.splitlines()[0]}"
        elif member.card in out:
            why = f"computes on GPU {member.card}, which has failed twice"
        else:
            continue
        decision.kill(member, why)
        found.append((LostMember(member=member, how="card"), why))
    if new:
        decision.say(f"GPU {', '.join(sorted(new))} is left out from now on: it failed twice")
    return found


def is_of_code(failures: Sequence[CardFailed]) -> bool:
    """Whether the last of these failures is what the pipeline computes: the same micro-batch failed at another worker, or too
    many workers failed in this step."""
    *earlier, last = failures
    if last.step is None or not card_faults.BY_CODE[last.code].by_code:
        return False
    alike = [
        each
        for each in earlier
        if each.step == last.step and each.member != last.member and card_faults.BY_CODE[each.code].by_code
    ]
    same = last.shard is not None and any(each.shard == last.shard for each in alike)
    return same or len(alike) + 1 >= IN_A_STEP


def left_out(failures: Sequence[CardFailed]) -> frozenset[str]:
    """The cards that failed twice, of such failures as may be theirs."""
    counted = Counter(each.card for each in failures if each.card and card_faults.BY_CODE[each.code].card_suspected)
    return frozenset(card for card, count in counted.items() if count >= FAILURES)
