"""The consequence of a check: who is put out of the run, or why it ends. The step is repeated by those who are left."""

from __future__ import annotations

from orchestrator.controller.checking import Verdict
from orchestrator.controller.decision import Decision
from orchestrator.controller.events import Distrust
from orchestrator.controller.state import LostMember, Member, living
from orchestrator.errors import Inconsistent

_UNKNOWN = (
    "three workers or more on different machines tell which one is wrong (cluster.workers); where it is not a machine, the "
    "pipeline keeps state between batches, or draws randomness from elsewhere than torch, numpy or random"
)


def distrusted(decision: Decision, verdict: Verdict) -> list[tuple[LostMember, str]]:
    """The members lost by this verdict, each with the reason; the run ends if a wrong answer is nobody's for certain."""
    state, members = decision.state, decision.generation().begin.members
    wrong, between = (tuple(members[rank] for rank in ranks) for ranks in (verdict.wrong, verdict.between))
    if verdict.copied:
        return _damaging(decision, verdict, between)
    machines = {state.members[id_].node for id_ in wrong if id_ in state.members}
    elsewhere = any(worker.node not in machines and worker.ready is not None for worker in living(state, "worker"))
    out = [member for member in state.members.values() if _goes(member, wrong, machines if elsewhere else set())]
    decision.do(Distrust(verdict, wrong, between, machines=bool(machines) and elsewhere))
    names = " and ".join(state.name(id_) for id_ in between)
    if verdict.shard is None:
        decision.say(f"step {verdict.step}: a check found that memory of {names} changed while the sum was under way")
    elif not wrong:
        what = "came out differently" + (f" at {names}" if len(between) > 1 else f" twice at {names}")
        cannot = f"step {verdict.step}, shard {verdict.shard} {what}, and it cannot be told who is wrong"
        decision.end(Inconsistent(cannot, _UNKNOWN, code="check.nobody-named"), "a check found two answers")
        return []
    if elsewhere:
        decision.set(distrusted=state.distrusted | machines)
    found = []
    for member in out:
        why = (
            f"computed wrongly in step {verdict.step}"
            if member.id in wrong
            else "shares its machine with one that computed wrongly"
        )
        decision.kill(member, why)
        found.append((LostMember(member=member, how="wrong"), why))
    return found


def _damaging(decision: Decision, verdict: Verdict, between: tuple[int, ...]) -> list[tuple[LostMember, str]]:
    """Messages of one have arrived otherwise at the other. Which of the two has done that is not known: at the second time the
    younger worker of them goes."""
    state, pair = decision.state, frozenset(between)
    what = f"what {state.name(between[0])} sent to {state.name(between[1])} arrived otherwise"
    decision.do(Distrust(verdict, (), between, machines=False))
    decision.say(f"step {verdict.step}: {what}")
    decision.set(damaging=state.damaging | {pair})
    workers = [member for id_ in sorted(pair) if (member := state.members.get(id_)) and member.role == "worker"]
    if pair not in state.damaging or not workers:
        return []
    decision.kill(workers[-1], why := f"{what} for the second time")
    return [(LostMember(member=workers[-1], how="wrong"), why)]


def _goes(member: Member, wrong: tuple[int, ...], machines: set[int]) -> bool:
    return member.id in wrong or (member.ready is not None and member.node in machines)
