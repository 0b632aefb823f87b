"""The consequence of a GPU's failure under a worker: that worker is lost, its work goes on elsewhere, or the run ends.

The pipeline is at fault where kernels fail with the same micro-batch at two workers, or while two prepare, which compute the
same. A launch on a processor would have ended with its error. A card that fails twice is left out, by its UUID, for the rest
of the run. The first generation does without the worker that was to compute there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from orchestrator.common import card_faults
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import CardFailed
from orchestrator.controller.rendezvous.scaling import start_failed
from orchestrator.controller.state import ControllerState, LostMember, living
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
    found = []
    for member in list(state.members.values()):
        if member.id == event.member:
            why = why_lost(event, new)
        elif member.card in out:
            why = f"computes on GPU {member.card}, which has failed twice"
        else:
            continue
        decision.kill(member, why)
        found.append((LostMember(member=member, how="card"), why))
    return found


def why_lost(event: CardFailed, new: Collection[str] = ()) -> str:
    """The reason, with the card, and where it showed. new: the cards that are left out because of this failure."""
    card = f"GPU {event.card}" if event.card else "GPU"
    prepared = " as it prepared" if event.prepares else ""
    said = event.error.message.splitlines()[0]
    at = "" if event.step is None else f"step {event.step}"
    at += "" if event.shard is None else f", shard {event.shard}"
    where = f" (in {at})" if at and at not in said else ""
    out = f"; {card} is left out from now on: it failed twice" if event.card in new else ""
    return f"failed on its {card}{prepared} ({event.code}): {said}{where}{out}"


def stood_still(decision: Decision, found: Sequence[tuple[LostMember, str]]) -> list[tuple[LostMember, str]]:
    """Returns who else is lost, and why, because a card on which one of these stood still has failed twice now. One counts for
    each step, since several that stand still in one step are the pipeline's; and none does where nobody has another card."""
    state = decision.state
    failures = state.card_failures
    code = card_faults.STANDS_STILL.code
    for lost_member, why in found:
        member, at = lost_member.member, lost_member.member.heartbeat
        step = None if at is None else at.step
        again = any((each.code, each.step) == (code, step) for each in failures)
        elsewhere = any(each.card not in ("", member.card) for each in living(state, "worker"))
        if member.card and elsewhere and not again:
            error = card_faults.STANDS_STILL.told(f"{member.name} {why}")
            shard = None if at is None else at.shard
            failures = (*failures, CardFailed(member.id, error, code, member.card, step, shard))
    new = left_out(failures) - left_out(state.card_failures)
    decision.set(card_failures=failures)
    sharing = [member for member in state.members.values() if member.card in new]
    why = "computes on a GPU that has failed twice"
    for member in sharing:
        decision.kill(member, why)
    return [(LostMember(member=member, how="card"), why) for member in sharing]


def standing_at_start(state: ControllerState, now: float) -> list[CardFailed]:
    """The failures of those that answer, and have computed their first micro-batch on a card for longer than a start may stand
    still."""
    limit, fault = state.requirements.timeouts.start_s, card_faults.STANDS_STILL
    remedy = f"{fault.remedy}; where a micro-batch takes so long, raise cluster.start_timeout_s"
    found = []
    for member in state.members.values():
        still, beat = now - member.moved, member.heartbeat
        computes = member.ready is None and beat is not None and beat.activity == "admission"
        if computes and member.card and still > limit >= now - member.heard:
            why = f"{fault.sentence}: the first micro-batch of {member.name} has taken {still:.1f} s, the limit is {limit:g} s"
            error = RunFailed(why, remedy, code=fault.code)
            found.append(CardFailed(member.id, error, fault.code, member.card, None, None, prepares=True))
    return found


def refused(decision: Decision, member: int, why: str) -> None:
    """A worker that was to take the place of another one has come to a GPU that is left out, and is gone. The run ends if it
    has no other worker, nor any on the way."""
    if not ends_without_cards(decision):
        start_failed(decision, member, why)


def ends_without_cards(decision: Decision) -> bool:
    """Whether the run ends now, as it has no worker any more, nor any on the way, and there is room on GPUs only that are left
    out."""
    failures = decision.state.card_failures
    if not left_out(failures) or decision.state.members.count("worker"):
        return False
    decision.end(none_left(failures), "no card is left")
    return True


def none_left(failures: Sequence[CardFailed]) -> RunFailed:
    """The error of a run whose cards are left out, one at least. failures: of its cards."""
    out = left_out(failures)
    last = next(each for each in reversed(failures) if each.card in out)
    return RunFailed(
        f"GPU {last.card} failed twice, and no worker has another one: {last.error.message}",
        f"{card_faults.BY_CODE[last.code].remedy}; to go on without this GPU, leave it out of CUDA_VISIBLE_DEVICES and resume",
        last.error.details,
        code="gpu.none-left",
    )


def is_of_code(failures: Sequence[CardFailed]) -> bool:
    """Whether the last of these failures is what the pipeline computes: the same micro-batch failed at another worker, too
    many workers failed in this step, or another one failed as it prepared, as this one did."""
    *earlier, last = failures
    if not card_faults.BY_CODE[last.code].by_code or (last.step is None and not last.prepares):
        return False
    alike = [
        each
        for each in earlier
        if (each.prepares, each.step) == (last.prepares, last.step)
        and each.member != last.member
        and card_faults.BY_CODE[each.code].by_code
    ]
    if last.prepares:
        return bool(alike)
    same = last.shard is not None and any(each.shard == last.shard for each in alike)
    return same or len(alike) + 1 >= IN_A_STEP


def left_out(failures: Sequence[CardFailed]) -> frozenset[str]:
    """The cards that failed twice, of such failures as may be theirs."""
    counted = Counter(each.card for each in failures if each.card and card_faults.BY_CODE[each.code].card_suspected)
    return frozenset(card for card, count in counted.items() if count >= FAILURES)


def may_do_without(state: ControllerState) -> bool:
    """Whether the first generation may begin with a worker less."""
    members = state.requirements.members
    enough = max(members.least, members.stages)
    return not state.requirements.whole and members.start - state.without_card > enough
