"""The driver's loop: passes reports of members to the controller and the event sink, and carries out the controller's
commands.

All decisions are made by `controller.controller.decide`, and all numbers come from the members.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.cluster.actors import card_failure
from orchestrator.cluster.actors.members import MemberMessage
from orchestrator.cluster.actors.post_mortem import PostMortem
from orchestrator.cluster.sessions.diagnosis import Diagnosis
from orchestrator.common import injection
from orchestrator.common.control_groups import killer_in_words
from orchestrator.controller import controller, events, fault_attribution
from orchestrator.controller.rendezvous import card_failures
from orchestrator.controller.state import waiting
from orchestrator.driver.preflight.crowded_cards import CardMemory
from orchestrator.driver.run import trained_weights
from orchestrator.driver.run.checkpointing import Saving
from orchestrator.driver.run.event_sink import EventSink
from orchestrator.driver.run.fault_injection import FaultInjection
from orchestrator.driver.run.member_directory import MemberDirectory
from orchestrator.driver.run.parameter_inspection import ParameterInspection
from orchestrator.driver.run.stall_location import location
from orchestrator.driver.run.startup import Startup
from orchestrator.driver.run.unrecorded import unrecorded
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import (
    CheckpointDamaged,
    ClusterUnavailable,
    ConfigurationError,
    Inconsistent,
    NotRerunnable,
    OrchestratorError,
    Stalled,
    from_dict,
)
from orchestrator.optim.privacy.keys import Keys
from orchestrator.records.merging import Disagreement, History

_TICK_S = 0.25
_TELL_S = 5.0  # after a signal: most runs have ended by then
_OF_SAMPLES = ("reference", "partition")
_WITHOUT_RAY_S = 20.0  # Ray ends a process that misses its head for a minute
_TWO_WAYS = (
    "if the step was computed again, after a resume or a restart, something in the pipeline is left to chance (a clock, "
    "os.urandom, an operation that is not deterministic), or the checkpoints of a run with live Streams were removed, and with "
    "them the samples that these gave; an optimizer that adds up over list(set(...)) does so in another order in each process: "
    "give it model.parameters(), or a list made of that; on several GPUs a copy from one to another may have arrived "
    "otherwise, and check.every=1 names the two; otherwise this is a fault of orchestrator"
)
_OF_A_PROCESS = ("data.loader-other-code",)  # errors that another worker in its place does not have
_LAST_S = 10.0  # for what members were asked about themselves, and have not answered when the run ends


class Session:
    """One run in the driver, from its first members to the end of the last step."""

    def __init__(
        self,
        startup: Startup,  # the first members, started already
        member_directory: MemberDirectory,  # where members find each other
        saving: Saving,  # of checkpoints
        event_sink: EventSink,  # hears of all that happens
        # of others at the running model, which are passed on; None where nobody looks
        inspection: ParameterInspection | None = None,
        # of a private run, by its run manifest; None elsewhere
        keys: Callable[[Mapping[str, Any]], Keys] | None = None,
        fault_injection: FaultInjection | None = None,  # what is done to workers on purpose; None for nothing
    ) -> None:
        self._fault_injection = fault_injection
        run_start = startup.run_start
        self._members = startup.members
        self._node_check = startup.node_check
        self._actor_slots = startup.actor_slots
        self._niceness = startup.niceness
        self._traits = startup.traits
        self._member_directory = member_directory
        self._saving = saving
        self._event_sink = event_sink
        self._inspection = inspection
        self._first = run_start.first
        self._servers: list[int] = []  # of the present generation
        self._nodes: dict[int, str] = {}  # of every member that was ever ready
        self._cards: dict[int, CardMemory] = {}  # of those that are ready and compute on one
        self._keys = keys
        # Steps that are done again come out otherwise if state that nobody kept is replaced, or a site sits out.
        supersedes = run_start.requirements.supersedes
        self._history = History(run_start.written, run_start.barriers, supersedes=supersedes, ranges=run_start.ranges)
        self._history.expect(run_start.cut)
        self._roles = dict(startup.roles)
        self._ready: dict[int, dict[str, Any]] = {}  # where each member's process is
        self._generation = -1
        self._clocks: tuple[int, ...] = ()  # of the last sync barrier
        self._running = False  # whether the present generation has completed a step
        self._looked_for_dead = False  # since members were heard last
        self._over: set[int] = set()  # dead, or killed here
        self._stands: dict[int, str] = {}  # of members that are about to be killed, where they stand
        self._draining: Mapping[str, float | None] = {}  # nodes that go away
        self._posted: str | None = None  # the last signal
        self._tells_of_stop: float | None = None  # when to say for whom it waits; None where that is said, or none came
        self._stood_at: str | None = None  # of the last stuck member of which it is known
        self._asked: dict[int, str] = {}  # member that was asked what its process is made of -> its node
        self._described: set[str] = set()  # nodes
        self._ray_gone: float | None = None  # since when, in monotonic seconds
        self._diagnosis: Callable[[], Diagnosis] = Diagnosis
        self._state = startup.state
        goes_on = run_start.written, run_start.loss, run_start.metrics, self._state.checkpoint, run_start.first
        event_sink.goes_on(*goes_on)
        event_sink.catches_up(run_start.untold)
        if run_start.taken_over is not None:
            event_sink.takes_over(run_start.taken_over, run_start.redone)

    def run(
        self,
        pending_signal: PendingSignal,
        trouble: Callable[[], str | None] = lambda: None,
        draining: Callable[[], Mapping[str, float | None]] = dict,
        diagnosis: Callable[[], Diagnosis] = Diagnosis,
    ) -> None:
        """Run until the controller ends the run. Never raises for what a member or the user did: see the outcome's
        error.

        trouble: what is wrong with the Ray that the members run on, if anything is; draining: which of its nodes go away, and
        when; diagnosis: what is known of its end, and of that of members.
        """
        self._diagnosis = diagnosis
        injection.at("drive")
        while self._state.phase != "ended":
            try:
                self._turn(pending_signal, trouble, draining)
                removed = self._event_sink.removed()
            except OSError as error:
                removed = unrecorded(error)
            if removed is not None:
                self._end(removed)
                self._decide(events.Failed(None, removed))
        deadline = time.monotonic() + _LAST_S
        while self._asked and time.monotonic() < deadline:
            for heard in self._members.hear(_TICK_S):
                self._hear(heard)
        left = [member for member in self._roles if member not in self._over and not self._members.is_gone(member)]
        for member, entries in self._members.drain(left).items():
            self._entries(member, entries)

    def _turn(
        self,
        pending_signal: PendingSignal,
        trouble: Callable[[], str | None],
        draining: Callable[[], Mapping[str, float | None]],
    ) -> None:
        """Raises OSError, such as for want of descriptors."""
        if pending_signal.signal is not None and pending_signal.signal != self._posted:
            self._posted = pending_signal.signal
            self._event_sink.event("signal", name=self._posted)
            self._decide(events.Interrupt(self._posted))
            self._tells_of_stop = time.monotonic() + _TELL_S
        if self._tells_of_stop is not None and time.monotonic() > self._tells_of_stop:
            self._tells_of_stop = None
            what = fault_attribution.holds_up_stop(self._state, time.monotonic())
            self._event_sink.event("stop_waits", signal=self._posted, what=what)
        self._looked_for_dead = False
        for heard in self._members.hear(_TICK_S):
            self._hear(heard)
        wrong = trouble()
        if wrong is not None:
            self._save_without_ray(wrong)
        self._drain(draining())
        self._decide(events.Tick())
        self._inject_fault()
        self._event_sink.tick()
        if self._inspection is not None:
            self._inspection.tick(self._servers)

    def _save_without_ray(self, wrong: str) -> None:
        """The Ray is gone, and with it the run ends. Members may live for a while, and talk to each other and to this process
        without it: they save what they hold, as after a signal. A run that was being stopped ends as stopped."""
        if self._ray_gone is None:
            self._ray_gone = time.monotonic()
            known = self._diagnosis()
            self._event_sink.event("ray_gone", why=wrong, details=known.details, stopping=self._posted)
            if self._posted is None:
                self._end(ClusterUnavailable(wrong, known.remedy, known.details, code="ray.gone"))
                self._decide(events.Interrupt(wrong))
        self._look_for_dead()  # Ray tells of nobody's death any more
        if time.monotonic() - self._ray_gone > _WITHOUT_RAY_S:
            self._decide(events.Interrupt(self._posted or wrong, urgent=True))

    def _drain(self, draining: Mapping[str, float | None]) -> None:
        """Have the members leave the nodes that go away."""
        for node in draining.keys() - self._draining.keys():
            at = draining[node]
            seconds = None if at is None else max(0.0, at - time.time())
            members = [member for member in self._ready if self._nodes[member] == node]
            names = [f"{self._roles[member]} {member}" for member in members]
            name, is_ours = self._traits(node).name, node == self._member_directory.here
            self._event_sink.event("node_drained", node=name, members=names, seconds=seconds, is_ours=is_ours)
            self._actor_slots.avoid({node})
            if members:
                self._decide(events.Drained(tuple(members), seconds))
        self._draining = draining

    def _inject_fault(self) -> None:
        due = None if self._fault_injection is None else self._fault_injection.due(self._state, time.monotonic())
        if due is not None:
            wanted, member = due
            where, pause_s = self._node_name(member.id), wanted.pause_s if wanted.kind == "pause" else None
            self._event_sink.event(
                "disturbed",
                number=wanted.number,
                kind=wanted.kind,
                worker=member.id,
                where=where,
                seconds=pause_s,
            )
            self._members.inject(member.id, wanted)

    def save_weights(self, path: str) -> int:
        """Bring the trained weights into a file here, once the run has finished. Returns a worker that gave some. Raises what
        `trained_weights.save` raises."""
        holders: dict[int, list[int]] = {}  # by stage
        for member in self._state.members.values():
            if member.role == "worker" and member.has_finished:
                holders.setdefault(member.stage or 0, []).append(member.id)
        return trained_weights.save(self._members, [holders[stage] for stage in sorted(holders)], Path(path))

    def _hear(self, heard: MemberMessage) -> None:
        member, answer = heard.member, heard.answer
        if heard.kind == "died":
            self._died(member, heard.why)
        elif heard.kind == "entries":
            self._entries(member, heard.entries)
            self._decide(events.Heartbeat(member, **heard.heartbeat))
        elif heard.kind == "described":
            self._hear_description(member, answer)
        elif heard.kind == "looked":
            if self._inspection is not None:
                self._inspection.hear(member, answer)
        elif heard.kind == "prepared":
            if member not in self._over:
                self._prepared(member, answer)
        elif "failed" in answer:
            self._failed(member, answer)
        else:
            ended = answer["ended"]
            self._event_sink.finished(ended.digest)
            self._decide(events.Reported(member, answer["generation"], ended))
            if ended.kind == "peer" and not self._looked_for_dead:  # once for all who tell it together
                self._looked_for_dead = True
                self._look_for_dead()

    def _failed(self, member: int, answer: dict[str, Any]) -> None:
        error = from_dict(answer["failed"])
        if of_card := _of_card(member, answer):
            self._decide(of_card)
        elif error.code in _OF_A_PROCESS:
            self._kill(member, error.message)
            self._decide(events.Died(member, error.message))
        else:
            self._decide(events.Failed(member, error))

    def _prepared(self, member: int, answer: dict[str, Any]) -> None:
        if "failed" in answer:
            error = from_dict(answer["failed"])
            if of_card := _of_card(member, answer):
                self._decide(of_card)
            elif self._state.generation is None:
                self._decide(events.Failed(member, error))
            else:  # it would keep its place, and may be unable to end
                self._refuse(member, self._unfit(member, None) or error.message)
            return
        unfit = self._unfit(member, answer["node"])
        if unfit is not None:
            self._refuse(member, unfit)
            return
        if self._was_read(answer.get("reads", {})):
            return
        self._member_directory.add(member, answer["addresses"], answer["node"])
        card = answer.get("card", "")
        self._ready[member] = {"pid": answer["pid"], "node": answer["node"], **({"card": card} if card else {})}
        if (memory := answer.get("card_memory")) is not None:
            self._cards[member] = CardMemory(card, **memory)
        self._nodes[member] = answer["node"]
        name = f"{self._roles[member]} {member}"
        self._event_sink.began([{**line, "member": name} for line in answer.get("phases", ())])
        if self._niceness is not None and answer["niceness"] > self._niceness:
            self._event_sink.gives_way(answer["node"], answer["niceness"], self._niceness)
            self._niceness = None  # one note is enough
        if self._state.generation is not None:
            self._member_started(member, None, [])
        is_worker = self._roles[member] == "worker"
        can_restore = is_worker and self._member_directory.reaches_checkpoints(member)
        alone = self._state.requirements.members.stages > 1 or (is_worker and answer["run_manifest"]["shard_state"])
        if is_worker and not can_restore and alone:
            self._refuse_out_of_reach(member, answer["node"])
            return
        node, speed = self._member_directory.node(member), self._traits(answer["node"]).speed
        sites = tuple(answer.get("sites", ()))
        self._decide(events.Ready(member, answer["run_manifest"], can_restore, node, speed, sites, card))
        if self._state.phase == "preparing":
            members = self._state.requirements.members
            self._event_sink.ready(self._state.members.count("worker", ready=True), members.start)
        if answer["node"] in self._draining:
            self._decide(events.Drained((member,), 0.0))

    def _unfit(self, member: int, node: str | None) -> str | None:
        return self._node_check(node, self._actor_slots.has_copy(member))

    def _node_name(self, member: int) -> str:
        """The name of the member's node, also of a member that is gone: its last words may come later."""
        node: str = self._traits(self._nodes[member]).name
        return node

    def _was_read(self, input_audit: Mapping[str, Any]) -> bool:
        """Record what the user's code has read in a worker or its loaders. Returns whether the run ends over it."""
        error = self._event_sink.was_read(input_audit)
        if error is not None:
            self._decide(events.Failed(None, error))
        return error is not None

    def _refuse_out_of_reach(self, member: int, node: str) -> None:
        """Refuse a worker that does not reach the checkpoints. Only the worker that hosts them can write and restore what its
        shards keep, and the parameters of its stage."""
        what = "its stage has learned" if self._state.requirements.members.stages > 1 else "its shards keep"
        problem = f"worker {member} on node {node} does not reach the checkpoints, and alone has what {what}"
        error = ConfigurationError(
            [problem], "set checkpoint.uri to a place that all nodes reach", code="ray.checkpoints-unreachable"
        )
        if self._state.generation is None:
            self._decide(events.Failed(member, error))
            return
        self._kill(member, problem)
        self._decide(events.StartFailed(member, f"{error.message}; {error.remedy}"))

    def _refuse(self, member: int, why: str) -> None:
        self._kill(member, why)
        self._decide(events.StartFailed(member, why))

    def _ask_for_descriptions(self, members: Sequence[int]) -> None:
        """Ask one worker on each node what its process is made of. It answers beside its work."""
        for member in members:
            node = self._ready[member]["node"]
            if self._roles[member] == "worker" and node not in {*self._described, *self._asked.values()}:
                self._asked[member] = node
                self._members.describe(member, self._event_sink.origin)

    def _hear_description(self, member: int, answer: dict[str, Any]) -> None:
        node = self._asked.pop(member, None)
        if node is not None and "failed" not in answer:
            self._described.add(node)
            self._event_sink.described(node, answer["environment"], answer["modules"])

    def _member_started(self, member: int, rank: int | None, shards: Sequence[int]) -> None:
        """rank: None for one that waits to join."""
        role = self._roles[member]
        hosted = {"shards": list(shards)} if role == "worker" else {}
        self._event_sink.event(f"{role}_started", **{role: member}, rank=rank, **self._ready[member], **hosted)

    def _look_for_dead(self) -> None:
        """Find out at once who of the generation has died, without waiting for Ray. Called after a report of a lost peer."""
        for member in [each.id for each in waiting(self._state)]:
            if self._members.is_gone(member):
                self._died(member, "")

    def _died(self, member: int, details: str) -> None:
        """Handle a death once: each pending call to a dead member ends with the same report."""
        if member in self._over:
            return
        pid = self._members.pid(member)
        found = self._members.post_mortem(member)
        of_card = self._failed_of_card(member, found)
        if of_card is not None:
            self._decide(of_card)
            return
        last = None if found.activity is None else events.Heartbeat(member, **found.activity)
        why = f"its process (pid {pid}) ended" if pid is not None else "its process ended"
        why += "" if last is None else f" {fault_attribution.where(last)}"
        why = found.not_set_up or why
        self._forget(member)
        self._event_sink.lost(self._roles[member], member, why, self._where(member))
        self._decide(events.Died(member, why, details, last, self._diagnosis().oom_kills))

    def _failed_of_card(self, member: int, found: PostMortem) -> events.CardFailed | None:
        """The failure of a GPU that has ended its process, as far as its last words tell; None where it is no loss of more than
        a process, since the member had nothing to do."""
        known = self._state.members.get(member)
        if known is None or (known.ready is not None and known.rank is None):
            return None
        card, prepares = known.card or found.card, known.ready is None
        answer = card_failure.of_death(found.standard_error, found.activity, card, prepares=prepares)
        return None if answer is None else _of_card(member, answer)

    def _decide(self, event: events.Event) -> None:
        before, failures = self._state.phase, self._state.card_failures
        if isinstance(event, events.CardFailed | events.Heartbeat | events.Ready) and event.card:
            self._actor_slots.computes_on(event.member, event.card)
        self._state, commands, reason = controller.decide(self._state, event, time.monotonic())
        if self._state.card_failures is not failures:
            self._actor_slots.avoid_cards(card_failures.left_out(self._state.card_failures))
        if reason:
            self._event_sink.event("decided", **{"from": before, "to": self._state.phase, "reason": reason})
        self._carry_out(commands)

    def _carry_out(self, commands: Sequence[events.Command]) -> None:
        without_room = []
        for command in commands:
            match command:
                case events.Start(member, role):
                    place = self._actor_slots.take(member, role)
                    if place is None:
                        without_room.append(member)
                    else:
                        self._roles[member] = role
                        self._members.start(member, role, place)
                case events.Begin():
                    self._begin(command)
                case events.BecomeSpare(member):
                    self._members.become_spare(member)
                case events.CallOff(generation, members):
                    for member in members:
                        self._members.call_off(member, generation)
                case events.Ask(member, what):
                    self._members.ask(member, what, self._generation)
                case events.Inspect(members, stuck):
                    self._inspect(members, stuck)
                case events.Kill(member, why):
                    self._kill(member, why)
                case events.Retire(member):
                    self._members.kill(member)
                    self._forget(member)
                    self._event_sink.event(f"{self._roles[member]}_left", **{self._roles[member]: member})
                case events.Distrust():
                    self._distrust(command)
                case events.Recovered():
                    self._event_sink.recovered(command)
                case events.Rebalance():
                    self._event_sink.event("shards_redealt", **vars(command))
                case events.Slow(member):
                    self._event_sink.event("worker_slow", worker=member, where=self._node_name(member), **vars(command))
                case events.End(error):
                    self._end(error)
        for member in without_room:
            taken = self._actor_slots.others_have_cards()
            why = "all that is free is on GPUs that have failed twice" + ", and others have taken the rest" * taken
            self._decide(events.NoRoom(member, why, taken))

    def _begin(self, begin: events.Begin) -> None:
        self._saving.generation_ended()
        self._generation, self._running = begin.generation, False
        self._servers = list(begin.members[begin.workers :])
        if begin.restore is not None:
            self._saving.goes_back(begin.generation)
        try:
            checkpoint = None if begin.restore is None else self._newest()
            if self._first and begin.restore is not None and checkpoint is None:
                raise CheckpointDamaged(
                    "the state with which the run began is gone from its checkpoints",
                    "resume the run, which brings it again",
                    code="begin.state-gone",
                )
        except CheckpointDamaged as error:
            self._decide(events.Failed(None, error))
            return
        try:
            keys = None if self._keys is None else self._keys(begin.run_manifest)
        except NotRerunnable as error:
            self._decide(events.Failed(None, error))
            return
        generation = self._member_directory.generation(begin, checkpoint)
        if self._event_sink.outcome.generations == 0:
            refused = self._event_sink.refusal(begin.run_manifest)
            if (refusal := refused or self._event_sink.crowded(generation, self._all_cards())) is not None:
                self._decide(events.Failed(None, refusal))
                return
        ranks: dict[int, int | None] = {member: rank for rank, member in enumerate(begin.members)}
        for member in self._ready if self._event_sink.outcome.generations == 0 else ():
            rank = ranks.get(member)
            shards = begin.shards[rank] if rank is not None and rank < begin.workers else ()
            self._member_started(member, rank, shards)
        sites = self._state.requirements.sites
        away = sorted(site for site, shards in sites.items() if shards and set(begin.absent).issuperset(shards))
        self._event_sink.begins(generation, away)
        for_workers, for_servers = replace(generation, keys=keys), replace(generation, begin=_for_servers(begin))
        for rank, member in enumerate(begin.members):
            peers = self._member_directory.peers(generation, rank)
            self._members.run(member, for_workers if rank < begin.workers else for_servers, rank, peers)
        self._event_sink.agreed(begin.run_manifest)
        if begin.run_manifest["shard_state"] and not self._state.requirements.falls_back:
            self._event_sink.unprotected(self._member_directory.far(begin.members[: begin.workers]))
        self._ask_for_descriptions(begin.members)
        if self._saving.given_up:
            self._saving.given_up = False
            self._members.ask(begin.members[0], "save", begin.generation)
        if begin.restore is not None:
            self._decide(events.CheckpointRestored(checkpoint))

    def _all_cards(self) -> dict[int, CardMemory]:
        """Also of workers that still prepare, on cards of which others have told the memory: they take theirs soon."""
        told = {card.uuid: card for card in self._cards.values() if card.uuid}
        preparing = {
            member.id: told[member.card]
            for member in self._state.members.values()
            if member.role == "worker" and member.ready is None and member.card in told
        }
        return preparing | self._cards

    def _inspect(self, members: Sequence[int], stuck: Sequence[int]) -> None:
        """The journal has the stacks of all of a step that stalls before anybody is killed."""
        seen = self._members.stacks(members)
        for member in members:
            found = location(seen.get(member), self._members.home(member))
            is_stuck = member in stuck
            # The sentence on a member that is stuck is said with its loss.
            self._event_sink.event("stacks", **{self._roles[member]: member}, stuck=is_stuck, stand=found)
            if is_stuck:
                self._stands[member] = found.sentence
                self._stood_at = found.at or self._stood_at

    def _distrust(self, command: events.Distrust) -> None:
        """Members of the present generation, which are not forgotten yet."""
        wrong, between = (
            [f"{self._roles[member]} {member} on {self._node_name(member)}" for member in members]
            for members in (command.wrong, command.between)
        )
        self._event_sink.event(
            "answers_differ",
            verdict=command.verdict,
            workers=command.wrong,
            wrong=wrong,
            between=between,
            machines=command.machines,
        )
        if command.machines:
            self._actor_slots.avoid({self._nodes[member] for member in command.wrong})

    def _newest(self) -> int | None:
        """The checkpoint to go on from. A damaged one is passed over, with an entry in the journal. Raises CheckpointDamaged
        when the checkpoints cannot be listed."""
        step, reasons = self._saving.newest()
        for reason in reasons:
            self._event_sink.event("checkpoint_passed_over", why=reason)
        return step

    def _kill(self, member: int, why: str) -> None:
        where = self._stands.pop(member, None)
        why += f"; {where}" if where is not None else ""
        self._members.kill(member)
        self._forget(member)
        self._event_sink.lost(self._roles[member], member, why, self._where(member))

    def _where(self, member: int) -> str | None:
        """Its machine, as far as it has said."""
        return self._node_name(member) if member in self._nodes else None

    def _forget(self, member: int) -> None:
        """It is dead, or killed here. Only its role and its node are kept, since its last words may come later."""
        self._over.add(member)
        self._asked.pop(member, None)
        self._ready.pop(member, None)
        self._cards.pop(member, None)
        if self._inspection is not None:
            self._inspection.gone(member)
        self._actor_slots.leave(member)
        self._member_directory.remove(member)
        self._members.forget(member)

    def _end(self, error: OrchestratorError | None) -> None:
        """End the run. The first error is the one that is reported."""
        if isinstance(error, Stalled) and self._stood_at is not None:
            error = Stalled(
                f"{error.message}; the last one at {self._stood_at}", error.remedy, error.details, code=error.code
            )
        kills = self._diagnosis().oom_kills
        if isinstance(error, ClusterUnavailable) and error.code == "worker.no-progress" and kills:
            # Those that have not started are known to Ray alone, which waits for them.
            error = ClusterUnavailable(
                error.message, f"{killer_in_words(kills)}; {error.remedy}", error.details, code=error.code
            )
        self._event_sink.failed(error)

    def _entries(self, member: int, entries: list[dict[str, Any]]) -> None:
        self._running = self._running or any(self._is_running(entry) for entry in entries)
        self._record_history(entries)
        for entry in entries:
            if "printed" in entry:
                self._event_sink.printed(f"{self._roles[member]} {member}", entry["printed"])
                continue
            match entry.get("event"):
                case None:  # a line of the trace or of the sync barriers
                    pass
                case "generation_running":
                    if self._is_running(entry):
                        self._decide(events.Stepped(entry["step"]))
                case "part_written" | "part_failed":
                    self._part(entry)
                case "times":
                    self._event_sink.times(self._roles[member], member, entry)
                    if "micro_batch_s" in entry:
                        self._decide(events.Timed(member, entry["micro_batch_s"]))
                case "slots_out_of_reach":
                    self._event_sink.unprotected([member], entry["why"])
                case "evaluated" if self._history.is_void(entry):
                    pass
                case _:
                    self._event_sink.heard(member, self._where(member), entry)

    def _is_running(self, entry: Mapping[str, Any]) -> bool:
        """Whether it says that the present generation has completed a step."""
        return entry.get("event") == "generation_running" and entry["generation"] == self._generation

    def _record_history(self, entries: list[dict[str, Any]]) -> None:
        try:
            lines, barriers = self._history.add(entries)
        except Disagreement as error:
            fault = Inconsistent(str(error), _TWO_WAYS, code="record.two-ways")
            self._end(fault)  # here, because last words may come after the end, when nothing is decided any more
            self._decide(events.Failed(None, fault))
            return
        self._event_sink.lines(lines)
        self._event_sink.barriers(barriers)
        if barriers.new:
            self._clocks = tuple(barriers.new[-1]["clocks"])
        if lines.new:
            # Lines of the generation before may come late; what was lost with it is no step of the present one.
            last, generation = lines.new[-1]["step"], self._state.generation
            if self._running or (generation is not None and last < generation.steps):
                self._decide(events.Stepped(last, self._clocks))

    def _part(self, entry: dict[str, Any]) -> None:
        try:
            self._event_sink.sync()
        except OSError as error:
            entry = {
                **entry,
                "event": "part_failed",
                "why": f"the record is not on the disk: {error.strerror}",
            }
        saved = self._saving.heard(entry)
        if saved is not None:
            self._event_sink.saved(saved)
            self._decide(events.CheckpointSaved(saved.step))
        if self._saving.trouble is not None:
            self._event_sink.event("checkpoint_failed", step=entry["step"], why=self._saving.trouble)
            self._saving.trouble = None


def _for_servers(begin: events.Begin) -> events.Begin:
    """Without what was computed from samples: a server only adds."""
    known = {key: value for key, value in begin.run_manifest.items() if key not in _OF_SAMPLES}
    return replace(begin, run_manifest=known)


def _of_card(member: int, answer: Mapping[str, Any]) -> events.CardFailed | None:
    """The event in the answer of a member whose GPU failed; None for another error."""
    card = answer.get("card")
    return None if card is None else events.CardFailed(member, from_dict(answer["failed"]), **card)
