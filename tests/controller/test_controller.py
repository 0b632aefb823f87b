"""The controller, scripted: one history per rule, each in milliseconds; the clock is a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.controller import controller, fault_attribution
from orchestrator.controller.events import (
    Ask,
    Begin,
    CallOff,
    CheckpointRestored,
    CheckpointSaved,
    Command,
    Died,
    End,
    Event,
    Failed,
    Heartbeat,
    Inspect,
    Interrupt,
    Kill,
    NoRoom,
    Ready,
    Recovered,
    Reported,
    Start,
    StartFailed,
    Stepped,
    Tick,
)
from orchestrator.controller.rendezvous import formation, watching
from orchestrator.controller.rendezvous.scaling import FAILURES, SELDOM_S
from orchestrator.controller.state import ControllerState, Requirements
from orchestrator.errors import (
    ClusterUnavailable,
    Inconsistent,
    Interrupted,
    NonFinite,
    RunFailed,
    Stalled,
    WorkerLost,
)
from orchestrator.records.progress import Progress
from tests.controller.asked import required
from tests.controller.reports import finishes, leaves

FACTS = {"steps": 9, "shard_state": False}
OTHER_FACTS = {**FACTS, "steps": 4}
KEEPING = {**FACTS, "shard_state": True}
Some = TypeVar("Some", bound=Command)


def requirements(**changes: Any) -> Requirements:
    """Two workers of four shards, a step time-out of 30 s."""
    usual = {"shards": 4, "start": 2, "least": 1, "most": 2, "start_s": 60.0, "step_s": 30.0}
    return required(**{**usual, **changes})


class Play:
    """A controller that is told events by hand; what it ordered and said is kept."""

    def __init__(self, asked: Requirements) -> None:
        self.now = 0.0
        self.commands: list[Command] = []
        self.reasons: list[str] = []
        self.state, first = controller.initial(asked, self.now)
        self.commands += first

    def __call__(self, *events: Event) -> list[Command]:
        """The commands that these events lead to."""
        done: list[Command] = []
        for event in events:
            self.state, commands, reason = controller.decide(self.state, event, self.now)
            done += commands
            self.reasons += [reason] if reason else []
        self.commands += done
        return done

    def wait(self, seconds: float, *pulses: Heartbeat) -> list[Command]:
        """Time passes; who has a heartbeat here is heard all the while."""
        done, until = [], self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            done += self(*pulses, Tick())
        return done

    def begin(self) -> Begin:
        """The last generation that began."""
        return self.of(Begin)[-1]

    def of(self, kind: type[Some]) -> list[Some]:
        return [command for command in self.commands if isinstance(command, kind)]

    def error(self) -> Any:
        (end,) = self.of(End)
        assert self.state.phase == "ended"
        return end.error


def begun(asked: Requirements, facts: Mapping[str, Any] = FACTS) -> Play:
    """A run whose first members are all ready."""
    play = Play(asked)
    for start in play.of(Start):
        play(Ready(start.member, facts if start.role == "worker" else {}, can_restore=True))
    play(*[Stepped(0)] if asked.checkpoint is None else [])
    assert play.of(Begin)
    return play


def left(member: int, step: int, why: Any = "called off", generation: int = 0, accuses: int | None = None) -> Reported:
    return leaves(member, generation, why, Progress(step), accuses)


def compute(member: int, step: int, shard: int, beats: int = 1) -> Heartbeat:
    return Heartbeat(member, "compute", step, shard, beats)


def prepare(member: int, beats: int) -> Heartbeat:
    return Heartbeat(member, "prepare", None, None, beats)


# ---- preparing


def test_a_run_begins_when_all_are_ready_and_ends_when_all_are_finished() -> None:
    play = Play(requirements(servers=1))
    assert play.commands == [Start(0, "worker"), Start(1, "worker"), Start(2, "server")]
    assert play(Ready(1, FACTS), Ready(2, {})) == []
    assert play(Ready(0, FACTS)) == [
        Begin(
            generation=0,
            members=(0, 1, 2),
            shards=((0, 1), (2, 3)),
            run_manifest=FACTS,
            nodes=(0, 0, 0),
        )
    ]
    assert play(finishes(0, 0, Progress(9), "d"), finishes(2, 0, Progress(9), None)) == []
    assert play(finishes(1, 0, Progress(9), "d")) == [End(None)]


def test_workers_that_prepared_different_runs_do_not_begin() -> None:
    play = Play(requirements())
    play(Ready(0, FACTS), Ready(1, OTHER_FACTS))
    assert isinstance(play.error(), Inconsistent)
    assert "worker 0 and worker 1 prepared different runs: steps differ" in str(play.error())
    assert not play.of(Begin)


def test_code_that_changed_meanwhile_is_refused_with_the_modules_that_both_have_imported() -> None:
    here = {**FACTS, "code": {"pipeline": "a", "nets": "c", "served": "x"}}
    there = {**FACTS, "code": {"pipeline": "b", "nets": "c", "written": "y"}}
    play = Play(requirements())
    play(Ready(0, here), Ready(1, there))
    assert play.error().code == "replica.other-code"
    assert "worker 0 and worker 1 have other code: pipeline changed meanwhile" in str(play.error())
    joined = begun(requirements(most=3), facts=here)
    assert isinstance(joined(Ready(2, {**there, "code": {"nets": "c", "written": "y"}}))[0], Ask)
    refused = begun(requirements(most=3), facts=here)(Ready(2, there))[0]
    assert isinstance(refused, Kill)
    assert "put files and packages back" in refused.why


def test_a_worker_that_computes_other_bits_is_refused_by_proof() -> None:
    here = {**FACTS, "reference": "a", "machine": {"CPU": "old", "torch": "2"}}
    there = {**FACTS, "reference": "b", "machine": {"CPU": "new", "torch": "2"}}
    play = Play(requirements())
    play(Ready(0, here), Ready(1, there))
    assert "compute different bits from the same micro-batch (CPU old and new)" in str(play.error())
    alike = Play(requirements())
    alike(Ready(0, here), Ready(1, {**here, "reference": "b"}))
    assert "from the same micro-batch (on like machines)" in str(alike.error())
    assert "put back what the pipeline reads beside data.inputs" in str(alike.error())
    play = Play(requirements())
    play(Ready(0, here), Ready(1, {**there, "reference": "a"}))
    assert play.begin().run_manifest == here


@pytest.mark.parametrize("reference", ["a", "b"])
def test_machines_that_draw_other_parameters_are_named_before_the_pipeline(reference: str) -> None:
    """torch's vectors of another instruction set give other normal numbers. On like machines it is the pipeline."""
    here = {**FACTS, "reference": "a", "initial_parameters": "c", "machine": {"instruction set": "AVX2"}}
    there = {**here, "reference": reference, "initial_parameters": "d"}
    play = Play(requirements())
    play(Ready(0, here), Ready(1, {**there, "machine": {"instruction set": "DEFAULT"}}))
    assert "begin with different parameters (instruction set AVX2 and DEFAULT)" in str(play.error())
    assert "ATEN_CPU_CAPABILITY" in str(play.error())
    alike = Play(requirements())
    alike(Ready(0, here), Ready(1, there))
    assert "prepared different runs: initial_parameters" in str(alike.error())


@pytest.mark.parametrize("differing", ["reference", "initial_parameters"])
@pytest.mark.parametrize(
    ("compute", "machine", "portable", "variables"),
    [
        ({}, {}, True, True),
        ({}, {"GPU: name": "A"}, False, True),  # on which no arithmetic is portable
        ({"portable": {}}, {}, False, False),  # it is, and sets the variables itself
    ],
)
def test_portable_arithmetic_is_the_remedy_where_it_may_be_set_and_is_not(
    differing: str, compute: dict[str, Any], machine: dict[str, str], portable: bool, variables: bool
) -> None:
    here = {
        **FACTS,
        "reference": "a",
        "initial_parameters": "c",
        "compute": compute,
        "machine": machine | {"CPU": "old"},
    }
    play = Play(requirements())
    play(Ready(0, here), Ready(1, {**here, differing: "other", "machine": machine | {"CPU": "new"}}))
    told = str(play.error())
    assert "run on machines of one kind" in told
    assert ("run.arithmetic=portable" in told) == portable
    assert ("ATEN_CPU_CAPABILITY" in told) == variables


def test_a_late_start_names_who_is_late() -> None:
    play = Play(requirements(servers=1))
    play(Ready(0, FACTS), prepare(2, beats=1))
    assert play.wait(60.0) == []
    play.wait(0.1)
    assert isinstance(play.error(), ClusterUnavailable)
    late = "worker 1 (its process has not started), server 2 (it is preparing) not ready"
    assert f"{late}, and nothing has progressed for 60 s" in str(play.error())
    assert "if the machine is busy" in play.error().remedy


def test_a_slow_start_goes_on_while_anybody_progresses() -> None:
    play = Play(requirements())
    for beats in range(10):
        assert play.wait(50.0, prepare(0, beats)) == []
    play(Ready(0, FACTS))
    assert play.wait(60.0) == []
    play.wait(1.0)
    assert isinstance(play.error(), ClusterUnavailable)


def test_a_process_that_only_answers_does_not_progress() -> None:
    play = Play(requirements())
    play.wait(62.0, prepare(0, beats=7), Heartbeat(1, "idle", None, None, 1))
    assert "nothing has progressed for 60 s" in str(play.error())


def test_two_deaths_before_the_first_step_are_made_good_and_a_third_is_not() -> None:
    play = Play(requirements())
    assert play(Died(0, "gone")) == [Start(2, "worker")]
    assert play(Died(2, "gone")) == [Start(3, "worker")]
    assert "loss 2 of 2" in play.reasons[-1]
    play(Died(1, "gone", "details"))
    assert isinstance(play.error(), WorkerLost)
    assert play.error().details == "details"


@pytest.mark.parametrize(
    ("kills", "said"),
    [(None, "unless somebody killed it"), (0, "has ended no process here"), (3, "has ended 3 processes")],
)
def test_the_out_of_memory_killer_is_accused_of_early_deaths_only_as_far_as_it_was_seen(
    kills: int | None, said: str
) -> None:
    play = Play(requirements())
    play(*(Died(member, "gone", oom_kills=kills) for member in (0, 2, 1)))
    assert said in play.error().remedy


def test_a_failure_while_preparing_ends_the_run() -> None:
    play = Play(requirements())
    play(Failed(1, NonFinite("the loss is nan")))
    assert isinstance(play.error(), NonFinite)


def test_a_resumed_run_restores_at_the_first_who_can_and_counts_on_from_there() -> None:
    play = Play(requirements(checkpoint=5, generation=3, member=10, servers=1))
    play(Ready(10, FACTS), Ready(12, {}), Ready(11, FACTS, can_restore=True))
    begin = play.begin()
    assert (begin.generation, begin.members, begin.restore) == (3, (10, 11, 12), 1)
    assert begin.state_transfers == ((1, 0), (1, 2))
    assert not play(Stepped(5))


def test_a_generation_tells_which_node_each_of_its_members_is_on() -> None:
    play = Play(requirements(servers=1))
    play(Ready(0, FACTS, node=2), Ready(2, {}, node=1), Ready(1, FACTS, node=2))
    assert play.begin().nodes == (2, 2, 1)


def test_a_resume_that_nobody_can_restore_says_so() -> None:
    play = Play(requirements(checkpoint=5))
    play(Ready(0, FACTS), Ready(1, FACTS))
    play.wait(61.0)
    assert "none of the 2 ready workers reaches the checkpoint of step 5" in str(play.error())


def test_after_the_loss_of_all_state_whoever_reaches_the_checkpoint_goes_before_an_older_spare_that_does_not() -> None:
    """Such as one on another host: the run waited for a worker, which had come, and ended."""
    play = Play(requirements(start=1, most=1, spares=1))
    play(Ready(0, FACTS, can_restore=True), Ready(1, FACTS), Stepped(0), CheckpointSaved(1), Died(0, "killed"))
    assert play.state.phase == "paused"
    (newcomer,) = [start.member for start in play.of(Start) if start.member > 1]
    play(Ready(newcomer, FACTS, can_restore=True))
    assert (play.begin().members, play.begin().restore) == ((newcomer,), 0)


def after_the_loss_of_the_writer(facts: dict[str, Any]) -> Play:
    """A run of two workers, none of which writes checkpoints. facts: of each."""
    play = Play(requirements(spares=1))
    play(Ready(0, facts, can_restore=True), Ready(1, facts), Ready(2, facts), Stepped(0))
    play(Died(0, "killed"), left(1, 1))
    assert play.begin().members == (1, 2)
    return play


def test_a_newcomer_that_writes_checkpoints_takes_the_place_of_one_that_does_not_where_nobody_does() -> None:
    """A spare on another host had the place of the only one that did, and no checkpoint was written any more."""
    play = after_the_loss_of_the_writer(FACTS)
    play(Ready(3, FACTS, can_restore=True))
    assert play.of(Ask) == [Ask(1, "regroup")]
    play(left(1, 2, "regroup", 1), left(2, 2, "regroup", 1))
    assert (play.begin().members, play.begin().state_transfers) == ((1, 3), ((0, 1),))
    play(Ready(4, FACTS, can_restore=True))
    assert len(play.of(Ask)) == 1, "one is enough"


def test_it_waits_where_the_others_keep_a_state_of_their_shards() -> None:
    """All went back to the last checkpoint, from long before, as the state of one that lost its place was gone."""
    play = after_the_loss_of_the_writer(KEEPING)
    play(Ready(3, KEEPING, can_restore=True))
    assert not play.of(Ask)


# ---- losing members


def test_a_loss_calls_the_others_off_and_they_go_on_with_all_shards() -> None:
    play = begun(requirements(start=3, most=3))
    play.now = 10.0
    assert play(Died(1, "killed")) == [CallOff(0, (0, 2)), Start(3, "worker")]
    assert play(left(0, 5)) == []
    play(left(2, 4))
    begin = play.begin()
    assert (begin.generation, begin.members, begin.shards) == (1, (0, 2), ((0, 1), (2, 3)))
    assert begin.state_transfers == ((0, 1),)
    play.now = 10.5
    assert play(Stepped(3)) == []
    assert play(Stepped(5)) == [Recovered("lost", 0.5, 0)]
    assert play(Stepped(6)) == []
    assert "generation 1 begins at step 5 with 2 workers and 0 servers, members [0, 2], 1 state transfers" in " ".join(
        play.reasons
    )


def test_a_spare_takes_the_place_and_another_one_is_started() -> None:
    play = begun(requirements(spares=1))
    assert play.begin().members == (0, 1)
    assert play(Died(0, "killed")) == [CallOff(0, (1,)), Start(3, "worker")]
    play(left(1, 5))
    assert play.begin().members == (1, 2)
    assert play.begin().state_transfers == ((0, 1),)
    assert play(Ready(3, FACTS)) == []
    assert "worker 3 is ready as a spare" in play.reasons


def test_a_worker_that_has_not_got_the_state_yet_stays_when_a_spare_gets_ready() -> None:
    play = Play(requirements(spares=1))
    play(Ready(0, FACTS), Ready(1, FACTS), Stepped(0), Died(1, "killed"), Ready(3, FACTS), left(0, 5))
    assert play.begin().members == (0, 3)
    play(Ready(2, FACTS), left(0, 5, generation=1), leaves(3, 1, "called off", None))
    assert play.begin().generation == 2
    assert play.begin().members == (0, 3)


def test_a_run_whose_layout_determines_its_result_waits_until_it_is_whole_again() -> None:
    """For a server too."""
    play = begun(requirements(start=2, least=2, servers=1, whole=True))
    play(Died(2, "killed"), left(0, 5), left(1, 5))
    assert play.state.phase == "paused"
    assert "paused: 0 servers are ready, 1 are needed" in " ".join(play.reasons)
    play(Ready(3, {}))
    assert play.begin().members == (0, 1, 3)
    assert play.begin().without_servers is False


@pytest.mark.parametrize("victim", [1, 2])
def test_an_interrupted_run_whose_layout_determines_its_result_takes_no_step_without_all(victim: int) -> None:
    play = begun(requirements(start=2, least=2, servers=1, whole=True))
    play(
        CheckpointSaved(3),
        Died(victim, "killed"),
        Interrupt("SIGTERM"),
        *(left(each, 5) for each in (0, 1, 2) if each != victim),
    )
    assert len(play.of(Begin)) == 1
    assert isinstance(play.error(), Interrupted)
    assert "the newest checkpoint holds 3 steps" in play.error().message


def test_laggards_fresh_ones_and_servers_take_the_state_from_the_top_in_turn() -> None:
    play = begun(requirements(shards=8, start=4, most=4, servers=1, spares=1))
    play(Died(0, "killed"))
    play(leaves(1, 0, "called off", Progress(5, evaluated=False)), left(2, 5), left(3, 5))
    play(left(5, 5))
    assert play.begin().members == (1, 2, 3, 4, 5)
    assert play.begin().state_transfers == ((1, 0), (2, 3), (1, 4))


def test_several_losses_are_one_recovery_and_a_loss_in_the_recovery_too() -> None:
    play = begun(requirements(start=3, most=3))
    play.now = 10.0
    play(Died(0, ""), Died(1, ""))
    play.now = 11.0
    play(left(2, 5), Died(2, ""))
    assert play.of(Begin)[-1].members == (2,)
    play.now = 12.0
    play(*(Ready(member, FACTS) for member in (3, 4, 5)), Stepped(0))
    assert play.of(Recovered) == [Recovered("restarted", 2.0, 1)]


def test_replicas_more_than_a_step_apart_end_the_run() -> None:
    play = begun(requirements(start=3, most=3))
    play(Died(0, ""), left(1, 5), left(2, 3))
    assert isinstance(play.error(), Inconsistent)
    assert "worker 1 at step 5, worker 2 at step 3" in str(play.error())


def test_a_joiner_that_has_not_taken_its_state_is_no_skew() -> None:
    play = begun(requirements(spares=1))
    play(Died(0, ""), left(1, 5))
    assert play.begin().members == (1, 2)
    play(leaves(1, 1, "peer", Progress(5), accuses=1), leaves(2, 1, "called off", None))
    assert play.begin().generation == 2
    assert play.begin().state_transfers == ((0, 1),)


def test_old_news_change_nothing() -> None:
    play = begun(requirements(start=3, most=3))
    play(Died(0, ""), left(1, 5), left(2, 5))
    state = play.state
    assert play(Died(0, ""), left(1, 5), left(2, 4, generation=0), finishes(1, 0, Progress(9), "x"), Ready(0, {})) == []
    assert play.state == state


def test_a_lost_server_is_replaced_and_none_at_all_is_told() -> None:
    play = begun(requirements(servers=1))
    assert play(Died(2, "killed")) == [CallOff(0, (0, 1)), Start(3, "server")]
    play(left(0, 5), left(1, 5))
    assert (play.begin().members, play.begin().servers, play.begin().without_servers) == ((0, 1), 0, True)
    assert play(Ready(3, {})) == [Ask(0, "regroup")]
    play(left(0, 6, "regroup", 1), left(1, 6, "regroup", 1))
    assert (play.begin().members, play.begin().without_servers) == ((0, 1, 3), False)
    assert play.begin().state_transfers == ((0, 2),)


# ---- all state lost


def test_all_state_lost_goes_on_from_the_checkpoint() -> None:
    play = begun(requirements(spares=1))
    play(*[Stepped(step) for step in range(1, 8)], CheckpointSaved(4))
    play.now = 20.0
    play(Died(0, ""), Died(1, ""))
    begin = play.begin()
    assert (begin.members, begin.restore, begin.state_transfers) == ((2,), 0, ())
    play.now = 21.0
    assert Recovered("restarted", 1.0, 4) in play(Stepped(4))


def test_all_state_lost_without_a_checkpoint_begins_anew_with_fresh_members() -> None:
    play = begun(requirements())
    play(*[Stepped(step) for step in range(1, 8)])
    play(Died(0, ""), Died(1, ""))
    assert play.state.phase == "paused"
    play(Ready(2, FACTS))
    assert (play.begin().members, play.begin().restore, play.begin().state_transfers) == ((2,), None, ())
    assert play(Stepped(0)) == [Recovered("restarted", 0.0, 8)]


def test_a_checkpoint_older_than_promised_is_gone_on_from() -> None:
    """The newest one was damaged; what was computed since then is not thrown away at the next loss."""
    play = begun(requirements(checkpoint=6, start=3, most=3))
    play(CheckpointRestored(3), Died(0, ""), left(1, 4), left(2, 4))
    assert play.begin().restore is None
    assert play.begin().state_transfers == ()


@pytest.mark.parametrize(("restored", "lost"), [(4, 4), (2, 6), (None, 8)])
def test_steps_between_a_damaged_checkpoint_and_the_one_before_it_are_counted_as_lost(
    restored: int | None, lost: int
) -> None:
    play = begun(requirements(spares=1))
    play(*[Stepped(step) for step in range(1, 8)], CheckpointSaved(4))
    play(Died(0, ""), Died(1, ""), CheckpointRestored(restored))
    assert Recovered("restarted", 0.0, lost) in play(Stepped(restored or 0))
    play(*[Ready(start.member, FACTS) for start in play.of(Start)[3:]], left(2, (restored or 0) + 1, "regroup", 1))
    assert play.begin().generation == 2
    assert not any("lost" in reason for reason in play.reasons[-1:])


def test_a_checkpoint_saved_since_the_restore_is_gone_on_from() -> None:
    """Also where all who got so far are lost, and one is left that has only what was restored."""
    play = begun(requirements(checkpoint=6, start=3, most=3))
    play(Stepped(6), CheckpointSaved(7), Died(0, ""), left(1, 6), left(2, 6))
    assert play.begin().restore is not None
    assert play.begin().state_transfers


def test_losing_all_state_again_and_again_ends_the_run() -> None:
    play = begun(requirements(start=1, most=1, shards=1))
    play(Stepped(1), CheckpointSaved(2))
    for _ in range(40):
        if play.state.phase == "ended":
            break
        newest = play.of(Start)[-1].member
        play(Ready(newest, FACTS, can_restore=True), Heartbeat(newest, "evaluate", 2, None, 1), Died(newest, ""))
    assert "all state was lost 11 times without getting further than step 2" in str(play.error())


# ---- contact


@pytest.mark.parametrize("apart", [False, True])
def test_two_living_that_lost_each_other_try_once_more_and_then_the_younger_goes(apart: bool) -> None:
    play = Play(requirements(start=3, most=3))
    play(*(Ready(member, FACTS, node=int(apart and member == 2)) for member in range(3)))
    assert play(left(0, 5, "peer", accuses=2)) == [CallOff(0, (1, 2))]
    play(left(1, 5), left(2, 5))
    assert play.begin().members == (0, 1, 2)
    assert not play.of(Kill)
    play(left(2, 5, "peer", 1, accuses=0), left(1, 5, generation=1), left(0, 5, generation=1))
    ((out, why),) = [(kill.member, kill.why) for kill in play.of(Kill)]
    assert out == 2
    assert why.startswith("it and worker 0 lost contact twice, though both live")
    assert ("firewall" in why) is apart
    assert play.begin().members == (0, 1)
    assert play(Died(2, "killed")) == []


@pytest.mark.parametrize(("pair", "out"), [((0, 1), 0), ((1, 2), 2), ((0, 2), 2)])
def test_of_two_that_lost_each_other_the_last_of_a_stage_stays(pair: tuple[int, int], out: int) -> None:
    """Worker 1 alone hosts the second stage."""
    play = begun(requirements(stages=2, start=3, most=3, least=2))
    assert play.begin().stages == (0, 1, 0)
    for generation in (0, 1):
        play(left(pair[0], 5, "peer", generation, accuses=pair[1]))
        play(*(left(member, 5, generation=generation) for member in range(3) if member != pair[0]))
    assert [kill.member for kill in play.of(Kill)] == [out]
    assert not play.begin().forgets


def test_one_that_lost_everybody_twice_goes_alone_though_it_is_the_oldest() -> None:
    play = begun(requirements(start=3, most=3))
    for generation in (0, 1):
        play(left(1, 5, "peer", generation, accuses=0), left(2, 5, "peer", generation, accuses=0))
        play(left(0, 5, generation=generation))
    assert [kill.member for kill in play.of(Kill)] == [0]


CAUSES: dict[str, Callable[[int], Event]] = {
    "a loss": lambda generation: Died(3 - generation, ""),
    "a vote": lambda generation: left(3, 8, "regroup", generation),
    "the last step": lambda generation: finishes(3, generation, Progress(9), "d"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_who_accuses_one_that_left_for_another_cause_has_missed_a_farewell(cause: str) -> None:
    play = begun(requirements(start=4, most=4))
    for generation in (0, 1):
        others = [left(member, 8, generation=generation) for member in (1, 2)]
        play(CAUSES[cause](generation), left(0, 8, "peer", generation, accuses=1), *others)
    assert play.begin().generation == 2
    assert play.state.link_failures == frozenset()
    assert not play.of(Kill)


@pytest.mark.parametrize("cause", CAUSES)
def test_two_that_accuse_each_other_have_lost_each_other_whatever_else_happens(cause: str) -> None:
    play = begun(requirements(start=4, most=4))
    for generation in (0, 1):
        link_failure = [left(0, 8, "peer", generation, accuses=1), left(1, 8, "peer", generation, accuses=0)]
        play(CAUSES[cause](generation), *link_failure, left(2, 8, generation=generation))
    assert [kill.member for kill in play.of(Kill)] == [1]


def test_one_that_leaves_after_a_neighbour_of_the_accuser_is_accused_rightly() -> None:
    """Its own report accuses nobody: it heard the farewell of one that had heard the accuser's."""
    play = begun(requirements(start=3, most=3))
    for generation in (0, 1):
        play(left(2, 5, "peer", generation), left(1, 5, "peer", generation))
        play(left(0, 5, "peer", generation, accuses=1))
    assert [kill.member for kill in play.of(Kill)] == [1]


@pytest.mark.parametrize("unreachable_s", [2, 5])
def test_how_long_an_accused_member_may_be_silent_can_be_set(unreachable_s: int) -> None:
    play = begun(requirements(unreachable_s=unreachable_s))
    play(left(0, 5, "peer", accuses=1))
    assert not [each for each in play.wait(unreachable_s) if isinstance(each, Kill)]
    assert [each.member for each in play.wait(1.0) if isinstance(each, Kill)] == [1]


def test_an_accused_member_that_is_not_heard_is_taken_for_dead() -> None:
    play = begun(requirements(start=3, most=3))
    play(left(0, 5, "peer", accuses=2), left(1, 5))
    assert play.wait(5.0) == []
    assert [type(command) for command in play.wait(1.0)] == [Kill, Begin, Start]
    assert play.begin().members == (0, 1)
    play = begun(requirements(start=3, most=3))
    play(left(0, 5, "peer", accuses=2), left(1, 5))
    assert play.wait(8.0, compute(2, 5, 1)) == []


def test_regrouping_without_a_step_ends_after_a_bound() -> None:
    play = begun(requirements())
    for generation in range(40):
        if play.state.phase != "ended":
            play(*(left(member, 1, "peer", generation) for member in (0, 1)))
    assert "11 generations in a row got no further than step 1; 0 of them lost a member" in str(play.error())


def test_regrouping_with_steps_in_between_goes_on() -> None:
    play = begun(requirements())
    for generation in range(40):
        play(*(left(member, generation, "peer", generation) for member in (0, 1)))
    assert play.begin().generation == 40


# ---- hangs and faulty micro-batches


def test_the_stuck_one_is_killed_and_not_those_that_wait() -> None:
    play = begun(requirements(start=3, most=3))
    waiting = [Heartbeat(0, "exchange", 1, None, 7), Heartbeat(2, "state_transfer", 1, None, 7)]
    assert play.wait(30.0, compute(1, 1, 2), *waiting) == []
    done = play.wait(2.0, compute(1, 1, 2), *waiting)
    assert done[0] == Inspect((0, 1, 2), stuck=(1,))  # while it still stands there
    assert [type(command) for command in done[1:]] == [Kill, CallOff, Start]
    assert "stood still for 31.0 s in the compute phase of step 1, shard 2, the limit is 30 s" in str(done[1])


def test_all_stuck_ones_are_killed_at_once_and_a_moving_one_is_not() -> None:
    play = begun(requirements(start=3, most=3))
    for beat in range(40):
        play.wait(1.0, compute(0, 1, 0), Heartbeat(1, "update", 1, None, 3), compute(2, 1, 3, beats=beat))
    assert sorted(kill.member for kill in play.of(Kill)) == [0, 1]
    assert play.of(CallOff) == [CallOff(0, (2,))]


def test_a_member_that_does_not_answer_is_killed_wherever_it_is() -> None:
    play = begun(requirements())
    for beat in range(40):
        play.wait(1.0, compute(0, 1, 0, beats=beat))
    assert [kill.member for kill in play.of(Kill)] == [1]


def test_a_pause_of_the_driver_is_nobodys_silence() -> None:
    play = begun(requirements())
    play.now += 1000.0
    assert play(Tick()) == []
    assert play.wait(27.0) == []
    assert [type(command) for command in play.wait(2.0)][:3] == [Inspect, Kill, Kill]


def test_a_called_off_member_that_does_not_leave_falls_under_the_same_rule() -> None:
    play = begun(requirements(start=3, most=3))
    play(Died(0, ""), left(1, 5))
    play.wait(32.0, compute(2, 5, 3))
    assert [kill.member for kill in play.of(Kill)] == [2]
    assert play.begin().members == (1,)


def lose(play: Play, heartbeat: Heartbeat | None, *, step: int, oom_kills: int | None = None) -> None:
    """The oldest worker dies after this heartbeat of its; the other one leaves at this step; a replacement joins."""
    begin = play.begin()
    victim, other = begin.members[0], begin.members[1]
    if heartbeat is not None:
        play(Heartbeat(victim, heartbeat.activity, heartbeat.step, heartbeat.shard, heartbeat.beats))
    play(Died(victim, "", oom_kills=oom_kills), leaves(other, begin.generation, "called off", Progress(step)))
    if play.state.phase != "ended":
        play(Ready(play.of(Start)[-1].member, FACTS))


def test_three_losses_that_were_seen_at_one_micro_batch_end_the_run_by_name() -> None:
    play = begun(requirements(spares=1))
    lose(play, compute(0, 5, 1), step=5)
    lose(play, compute(0, 5, 1), step=5)
    assert play.state.phase == "running"
    lose(play, compute(0, 5, 1), step=5)
    assert isinstance(play.error(), WorkerLost)
    assert "step 5, shard 1: 3 workers in a row were lost while they computed it" in str(play.error())
    assert "look at the samples of this micro-batch" in str(play.error())


def test_the_out_of_memory_killer_is_named_beside_the_micro_batch_that_may_take_too_much() -> None:
    play = begun(requirements(spares=1))
    for kills in (0, 1, 2):
        lose(play, compute(0, 5, 1), step=5, oom_kills=kills)
    assert "out-of-memory killer has ended 2 processes here" in play.error().remedy
    assert "look at the samples of this micro-batch" in play.error().remedy


def test_inferred_losses_need_one_more_and_name_the_shards_in_common() -> None:
    play = begun(requirements(spares=1))
    for heartbeat in (None, compute(0, 3, 0), Heartbeat(0, "idle", None, None, 1)):  # the second is older than the step
        lose(play, heartbeat, step=5)
    assert play.state.phase == "running"
    lose(play, compute(0, 5, 1), step=5)
    assert "step 5, shard 1: 4 workers in a row" in str(play.error())
    play = begun(requirements(spares=1))
    for _ in range(4):
        lose(play, None, step=5)
    assert "step 5, one of the shards 0, 1: 4 workers" in str(play.error())


@pytest.mark.parametrize("activity", ["exchange", "update", "evaluate", "checkpoint", "state_transfer"])
def test_losses_outside_of_computing_count_against_no_micro_batch(activity: Any) -> None:
    play = begun(requirements(spares=1))
    for _ in range(6):
        lose(play, Heartbeat(0, activity, 5, None, 1), step=5)
    assert play.state.phase == "running"
    assert play.state.losses == {}


def test_losses_at_different_steps_and_of_several_at_once_are_no_poison() -> None:
    play = begun(requirements(spares=1))
    for step in range(2, 9):
        lose(play, compute(0, step, 1), step=step)
    assert play.state.phase == "running"
    play = begun(requirements(start=4, most=4))
    play(*(Died(member, "") for member in (0, 1, 2)), left(3, 1))
    assert play.state.phase == "running"
    assert {len(hits) for hits in play.state.losses.values()} == {1}


def test_two_timeouts_at_one_micro_batch_end_the_run_by_name() -> None:
    play = begun(requirements(spares=1))
    for _ in range(2):
        begin = play.begin()
        play.wait(31.5, compute(begin.members[0], 5, 1), Heartbeat(begin.members[1], "exchange", 5, None, 1))
        play(
            leaves(begin.members[1], begin.generation, "called off", Progress(5)),
            Ready(play.of(Start)[-1].member, FACTS),
        )
    assert isinstance(play.error(), Stalled)
    assert "step 5, shard 1: 2 workers in a row stood still" in str(play.error())


# ---- joining


def test_a_joiner_asks_for_a_regroup_and_takes_the_state() -> None:
    play = begun(requirements(least=2, most=3))
    assert play.of(Start)[-1] == Start(2, "worker")
    play.now = 7.0
    assert play(Ready(2, FACTS)) == [Ask(0, "regroup")]
    play(left(1, 4, "regroup"))
    assert not play.of(CallOff)
    play(left(0, 4, "regroup"))
    assert (play.begin().members, play.begin().state_transfers) == ((0, 1, 2), ((0, 2),))
    play.now = 7.5
    assert play(Stepped(4)) == [Recovered("joined", 0.5, 0)]


def test_a_joiner_that_prepared_another_run_is_refused_and_after_the_third_none_is_tried_for_long() -> None:
    play = begun(requirements(most=3))
    for member in (2, 3):
        done = play(Ready(member, OTHER_FACTS))
        assert isinstance(done[0], Kill)
        assert "prepared different runs: steps differ" in done[0].why
        assert done[1:] == [Start(member + 1, "worker")]
    assert [type(command) for command in play(Ready(4, OTHER_FACTS))] == [Kill]
    assert "3 starts in a row failed, so the next one is tried in 5 min" in play.reasons[-1]
    assert play.wait(100.0, *(compute(member, 1, 0, beats=member) for member in (0, 1)))[-1:] != [End(None)]


def test_a_joiner_that_fails_dies_or_is_late_is_given_up() -> None:
    play = begun(requirements(most=3))
    assert play(Failed(2, RunFailed("no such file"))) == [Kill(2, "no such file"), Start(3, "worker")]
    assert play(Died(3, "")) == [Start(4, "worker")]
    done = play.wait(61.0, *(Heartbeat(member, "exchange", 1, None, 1) for member in (0, 1)))
    assert done == [Kill(4, "its start has not progressed for 60 s: its process has not started"), Start(5, "worker")]
    assert play.state.phase == "running"
    play(prepare(5, 1))
    done = play.wait(61.0, *(Heartbeat(member, "exchange", 1, None, 1) for member in (0, 1)))
    assert done == [Kill(5, "its start has not progressed for 60 s: it is preparing")]
    assert "3 starts in a row failed, so the next one is tried in 5 min" in play.reasons[-1]


def test_after_starts_that_failed_one_is_tried_now_and_then_and_the_first_that_takes_part_ends_that() -> None:
    play = begun(requirements(most=4))
    for _ in range(FAILURES):
        play(*(Died(start.member, "") for start in play.of(Start)[-2:]))
    told = len(play.of(Start))
    for beats in range(int(SELDOM_S)):
        assert len(play.of(Start)) == told, "not before"
        play.wait(1.0, *(compute(member, 1, 0, beats=beats) for member in (0, 1)))
    (only,) = play.of(Start)[told:]
    play(Ready(only.member, FACTS))
    play(left(0, 4, "regroup"), left(1, 4, "regroup"))
    assert only.member in play.begin().members
    play(Stepped(4))
    assert play.state.later is None
    assert play.state.failures == 0


def test_who_comes_and_is_never_reached_by_another_counts_as_a_start_that_failed() -> None:
    """Two hosts that do not reach each other any more: whoever comes to the second one costs the others the time in which they
    wait for it, so after the third the next one is tried late."""
    play = begun(requirements(start=2, most=3))
    for tries in range(1, FAILURES + 1):
        newest = play.of(Start)[-1].member
        generation = play.begin().generation
        play(Ready(newest, FACTS), left(0, 4, "regroup", generation), left(1, 4, "regroup", generation))
        for number in (generation + 1, generation + 2):
            others = (left(0, 4, generation=number), leaves(newest, number, "called off", None))
            play(left(1, 4, "peer", number, accuses=2), *others)
        assert play.of(Kill)[-1].member == newest
        assert play.state.failures == tries
        play(Stepped(4))
    assert play.wait(SELDOM_S - 1, *(compute(member, 5, 0) for member in (0, 1)))[-1:] != [Start(5, "worker")]
    assert play.of(Start)[-1].member == 2 + FAILURES - 1


def test_starts_that_fail_in_one_moment_are_one_failure() -> None:
    """A node with four workers is lost, and Ray has put all that replace them there, until it knows."""
    play = begun(requirements(shards=5, start=5, most=5))
    play(left(0, 4, "peer"), *(Died(member, "") for member in (1, 2, 3, 4)))
    replacements = [start.member for start in play.of(Start)[-4:]]
    assert replacements == [5, 6, 7, 8]
    play.now = 15.0
    assert play(*(Died(member, "") for member in replacements)) == [
        Start(member, "worker") for member in (9, 10, 11, 12)
    ]
    assert not any("in a row failed" in reason for reason in play.reasons)


@pytest.mark.slow
def test_room_that_is_missing_for_long_is_no_failed_start() -> None:
    """A node that is added after an hour is used."""
    play = begun(requirements(most=3))
    others = [Heartbeat(member, "exchange", 1, None, 1) for member in (0, 1)]
    play.wait(3600.0, *others)
    late = play.of(Start)[-1].member
    assert late > 50
    assert play(prepare(late, 1), Ready(late, FACTS)) == [Ask(0, "regroup")]
    assert play.state.phase == "running"


def test_a_joiner_that_progresses_is_waited_for_also_in_a_pause() -> None:
    play = begun(requirements(most=3))
    others = [Heartbeat(member, "exchange", 1, None, 1) for member in (0, 1)]
    for beats in range(5):
        assert play.wait(25.0, *others, prepare(2, beats)) == []
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5))
    assert play.state.phase == "paused"
    for beats in range(5):
        assert play.wait(50.0, prepare(2, beats)) == []
    assert play.wait(11.0) == []
    play.wait(1.0)
    assert isinstance(play.error(), WorkerLost)


def test_without_room_one_start_at_a_time_is_tried_again() -> None:
    play = begun(requirements(shards=8, most=4))
    assert play(NoRoom(2, "no CPU"), NoRoom(3, "no CPU")) == []
    told = "there is no room for another worker: no CPU; it is tried again every 10 s"
    assert [reason for reason in play.reasons if "room" in reason] == [told]
    idle = [Heartbeat(member, "exchange", 1, None, 1) for member in (0, 1)]
    assert play.wait(9.5, *idle) == []
    assert play.wait(1.0, *idle) == [Start(4, "worker")]
    assert play(NoRoom(4, "no CPU")) == []
    assert play.wait(11.0, *idle) == [Start(5, "worker")]
    assert [reason for reason in play.reasons if "room" in reason] == [told]
    assert play(Ready(5, FACTS)) == [Ask(0, "regroup")]
    assert play.wait(1.0, *idle) == []


def test_too_few_workers_pause_the_run_until_there_are_enough() -> None:
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5))
    assert play.state.phase == "paused"
    assert "paused: 1 workers are ready, 2 are needed" in play.reasons[-1]
    play(Ready(2, FACTS))
    assert (play.begin().members, play.begin().state_transfers) == ((1, 2), ((0, 1),))


def test_a_pause_that_nobody_ends_ends_the_run() -> None:
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5), NoRoom(2, "no CPU"))
    play.wait(62.0)
    assert isinstance(play.error(), WorkerLost)
    assert "1 workers are ready, 2 are needed; there is no room for another worker: no CPU" in str(play.error())
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5))
    play(*(StartFailed(member, "no such image") for member in (2, 3, 4)), Tick())
    assert "no such image" in str(play.error())


def test_a_pause_of_the_driver_does_not_end_a_run_that_waits_or_is_being_saved() -> None:
    """Such as a store that answers after minutes."""
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5), NoRoom(2, "no CPU"))
    play.now += 1000.0
    play(Tick())
    assert play.state.phase == "paused"
    play.wait(55.0)
    assert play.state.phase == "paused"
    play.wait(8.0)
    assert isinstance(play.error(), WorkerLost)
    play = begun(requirements())
    play(Interrupt("SIGINT"), left(0, 6, "stop"), left(1, 6, "stop"))
    assert play.state.phase == "saving"
    play.now += 1000.0
    play(Tick())
    assert play.state.phase == "saving"
    play(CheckpointSaved(6))
    assert "the newest checkpoint holds 6 steps" in str(play.error())


# ---- ending


def test_a_finished_member_gives_its_state_to_who_has_not_finished() -> None:
    play = begun(requirements(start=3, most=3))
    play(finishes(0, 0, Progress(9), "d"), Died(1, ""), left(2, 8))
    assert (play.begin().members, play.begin().state_transfers) == ((0, 2), ((0, 1),))
    assert play(finishes(0, 1, Progress(9), "d"), finishes(2, 1, Progress(9), "d"))[-1] == End(None)


def test_a_member_that_died_after_finishing_is_no_loss_if_another_finished() -> None:
    play = begun(requirements(start=3, most=3))
    play(finishes(0, 0, Progress(9), "d"), finishes(1, 0, Progress(9), "d"), Died(0, ""))
    assert not play.of(CallOff)
    assert play(finishes(2, 0, Progress(9), "d"))[-1] == End(None)
    play = begun(requirements())
    assert CallOff(0, (1,)) in play(finishes(0, 0, Progress(9), "d"), Died(0, ""))


def test_different_digests_are_an_error() -> None:
    play = begun(requirements())
    play(finishes(0, 0, Progress(9), "a"), finishes(1, 0, Progress(9), "b"))
    assert isinstance(play.error(), Inconsistent)


def test_a_failure_is_never_tried_again_and_a_withdrawal_waits_for_it() -> None:
    play = begun(requirements())
    play(left(1, 5, "withdrew"), Failed(0, NonFinite("the loss is nan")))
    assert isinstance(play.error(), NonFinite)
    play = begun(requirements())
    play(leaves(0, 0, "withdrew", Progress(5), why="another one failed"), left(1, 5, "withdrew"))
    assert play.wait(watching.GRACE_S) == []
    play.wait(0.5)
    assert type(play.error()) is RunFailed
    assert "worker 0: another one failed" in str(play.error())
    play = begun(requirements())
    play(left(1, 5, "withdrew"), Died(0, "killed"))
    assert play.begin().members == (1,)


def test_the_driver_can_fail_the_run_itself() -> None:
    play = begun(requirements())
    play(Failed(None, Inconsistent("two trace lines of step 3 differ")))
    assert isinstance(play.error(), Inconsistent)


# ---- interruptions


def test_an_interruption_stops_at_a_step_and_waits_for_the_checkpoint() -> None:
    play = begun(requirements())
    assert play(Interrupt("SIGTERM")) == [Ask(0, "stop")]
    assert play(Interrupt("SIGTERM")) == []
    assert play(left(0, 6, "stop"), left(1, 6, "stop"), CheckpointSaved(4)) == []
    play(CheckpointSaved(6))
    assert isinstance(play.error(), Interrupted)
    assert "interrupted by SIGTERM; the newest checkpoint holds 6 steps" in str(play.error())


def test_an_interruption_does_not_wait_for_ever_nor_for_what_cannot_come() -> None:
    play = begun(requirements())
    play(Interrupt("SIGTERM"), left(0, 6, "stop"), left(1, 6, "stop"))
    assert play.wait(20.0) == []
    assert isinstance(play.wait(1.0)[-1], End)
    play = begun(requirements(stores=False))
    play(Interrupt("SIGTERM"), left(0, 6, "stop"), left(1, 6, "stop"))
    assert "interrupted by SIGTERM" in str(play.error())
    play = begun(requirements())
    play(Interrupt("SIGINT"), Interrupt("SIGINT", urgent=True))
    assert isinstance(play.error(), Interrupted)


def test_an_interruption_waits_for_who_still_writes_when_others_have_written() -> None:
    """A part of gigabytes, or a slow disk: it was killed after 20 s, and the steps since the checkpoint before were lost."""
    play = begun(requirements())
    play(Interrupt("SIGTERM"), Heartbeat(1, "checkpoint", 6, None, 9), left(0, 6, "stop"))
    assert play.wait(25.0, Heartbeat(1, "checkpoint", 6, None, 9)) == []
    assert play(left(1, 6, "stop")) == []
    play(CheckpointSaved(6))
    assert "the newest checkpoint holds 6 steps" in str(play.error())


def test_an_interruption_waits_for_a_silent_member_for_a_moment_only() -> None:
    """All workers were stopped (SIGSTOP): the run ended after the 600 s of cluster.step_timeout_s, without a word."""
    play = begun(requirements(step_s=600.0))
    play.wait(100.0, compute(1, 5, 0))  # long before one that says nothing is given up
    assert play.of(Kill) == []
    play(Interrupt("SIGINT"))
    play.wait(1.0, compute(1, 5, 0))
    assert [each.member for each in play.of(Kill)] == [0]
    play(left(1, 6))
    assert play.of(Begin)[-1].members == (1,)  # which saves what it holds


def test_an_interruption_waits_for_a_long_micro_batch() -> None:
    play = begun(requirements(step_s=600.0))
    play(Interrupt("SIGINT"))
    play.wait(300.0, compute(0, 5, 0), compute(1, 5, 1))
    assert play.of(Kill) == []
    held_up = fault_attribution.holds_up_stop(play.state, play.now)
    assert (
        held_up
        == "worker 0 (in the compute phase of step 5, shard 0), worker 1 (in the compute phase of step 5, shard 1)"
    )


def test_an_interruption_in_a_regroup_begins_the_generation_and_stops_it() -> None:
    play = begun(requirements(start=3, most=3, least=3))
    play(Died(0, ""), Interrupt("SIGINT"), left(1, 5))
    assert play(left(2, 5))[1:] == [Ask(1, "stop")]
    play = begun(requirements())
    play(Died(0, ""), Interrupt("SIGINT"))
    play.wait(21.0, compute(1, 5, 0))
    assert isinstance(play.error(), Interrupted)


def test_an_interruption_ends_a_run_with_nothing_to_save_at_once() -> None:
    play = Play(requirements())
    play(Interrupt("SIGINT"))
    assert isinstance(play.error(), Interrupted)
    play = begun(requirements())
    play(Died(0, ""), Died(1, ""), Interrupt("SIGINT"))
    assert isinstance(play.error(), Interrupted)
    play = begun(requirements())
    play(Interrupt("SIGINT"), Died(0, ""), Died(1, ""))
    assert isinstance(play.error(), Interrupted)


def test_an_interruption_in_a_pause_saves_what_the_living_hold() -> None:
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5))
    assert play(Interrupt("SIGINT")) == [play.begin(), Ask(1, "stop")]
    play = begun(requirements(least=2))
    play(Died(0, ""), left(1, 5), CheckpointSaved(5), Interrupt("SIGINT"))
    assert isinstance(play.error(), Interrupted)


# ---- any history


members = st.integers(0, 5)
progresses = st.one_of(st.none(), st.builds(Progress, st.integers(0, 2), st.booleans()))
generations = st.integers(0, 3)
any_event: st.SearchStrategy[Event] = st.one_of(
    st.builds(Ready, members, st.sampled_from([FACTS, FACTS, OTHER_FACTS]), st.booleans()),
    st.builds(
        leaves,
        members,
        generations,
        st.sampled_from(["peer", "called off", "regroup", "stop", "withdrew"]),
        progresses,
        st.one_of(st.none(), st.just(0)),
    ),
    st.builds(finishes, members, generations, progresses, st.sampled_from(["d", "d", "e"])),
    st.builds(Failed, members, st.builds(NonFinite, st.just("nan"))),
    st.builds(Died, members, st.just("why")),
    st.builds(
        Heartbeat,
        members,
        st.sampled_from(["compute", "exchange"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    st.builds(Stepped, st.integers(0, 3)),
    st.builds(CheckpointSaved, st.integers(0, 3)),
    st.builds(CheckpointRestored, st.none() | st.integers(0, 3)),
    st.builds(NoRoom, members, st.just("why")),
    st.builds(StartFailed, members, st.just("why")),
    st.builds(Interrupt, st.just("SIGINT"), st.booleans()),
    st.just(Tick()),
)


@given(st.lists(st.tuples(st.floats(0, 9), any_event), max_size=40), st.integers(0, 1), st.integers(0, 1))
def test_any_history_even_an_impossible_one_ends_at_most_once(
    history: list[tuple[float, Event]], servers: int, spares: int
) -> None:
    play = Play(requirements(servers=servers, spares=spares, most=3))
    for seconds, event in history:
        play.now += seconds
        before: ControllerState = play.state
        commands = play(event)
        state, again, _ = controller.decide(before, event, play.now)
        assert state == play.state
        assert repr(again) == repr(tuple(commands))  # errors are equal only to themselves
    ends = [place for place, command in enumerate(play.commands) if isinstance(command, End)]
    assert ends in ([], [len(play.commands) - 1])
    assert (play.state.phase == "ended") == bool(ends)
    assert [begin.generation for begin in play.of(Begin)] == list(range(len(play.of(Begin))))


def test_the_limits_are_those_of_rule_d3() -> None:
    assert (fault_attribution.LOSSES, fault_attribution.STALLS) == (3, 2)


# ---- what shards keep


def holding(member: int, step: int, held: tuple[int, ...], staged: tuple[int, ...] = ()) -> Reported:
    return leaves(member, 0, "regroup", Progress(step), held=held, staged=staged)


def test_what_shards_keep_moves_to_their_new_hosts() -> None:
    play = begun(requirements(most=3), KEEPING)
    play(Ready(2, KEEPING, can_restore=True), holding(0, 1, (0, 1)), holding(1, 1, (2, 3)))
    assert play.begin().shards == ((0, 1), (2,), (3,))
    assert play.begin().moves == ((1, 2, (3,)),)
    assert play.begin().state_transfers == ((0, 2),)
    assert not play.begin().forgets


def test_who_is_a_step_behind_has_what_it_staged() -> None:
    play = begun(requirements(), KEEPING)
    play(holding(0, 2, (0, 1)), holding(1, 1, (2, 3), (2, 3)))
    assert (play.begin().moves, play.begin().forgets) == ((), False)
    assert play.begin().state_transfers == ((0, 1),)


@pytest.mark.parametrize(("checkpoint", "step"), [(3, 3), (None, 0)])
def test_what_only_the_dead_had_takes_all_back(checkpoint: int | None, step: int) -> None:
    play = begun(requirements(), KEEPING)
    play(*[Stepped(n) for n in range(1, 5)])
    play(*[CheckpointSaved(checkpoint)] if checkpoint else [])
    play(Died(1, "gone"), holding(0, 5, (0, 1)))
    begin = play.begin()
    assert (begin.members, begin.restore, begin.forgets, begin.moves) == ((0,), 0, True, ())
    assert f"what shards 2, 3 had kept is lost with its only holder, so all members go back to step {step}" in str(
        play.reasons
    )
    play(Stepped(step))
    (recovered,) = play.of(Recovered)
    assert (recovered.kind, recovered.steps_lost) == ("restarted", 5 - step)


def resting(
    member: int, rests: int, held: tuple[int, ...], staged: tuple[int, ...] = (), generation: int = 0
) -> Reported:
    return leaves(member, generation, "peer", Progress(rests, barriers=rests), held=held, staged=staged)


def test_lost_shards_go_on_with_what_the_lowest_living_one_keeps() -> None:
    play = begun(requirements(falls_back=True, start=3, most=3), KEEPING)
    play(CheckpointSaved(3), Died(0, "gone"), resting(1, 5, (2,)), resting(2, 5, (3,)))
    begin = play.begin()
    assert (begin.restore, begin.forgets, begin.shards) == (None, False, ((0, 1), (2, 3)))
    assert begin.fallbacks == begin.all_fallbacks == ((0, 2), (1, 2))
    assert begin.moves == ((0, 1, (2,)),)


def test_all_heirs_since_the_last_rest_are_told_until_there_is_another() -> None:
    """A worker that was called off before a handover has not noted what others have."""
    play = begun(requirements(falls_back=True, start=3, most=3), KEEPING)
    play(Died(0, "gone"), resting(1, 5, (2,)), resting(2, 5, (3,)))
    play(Died(1, "gone"), resting(2, 5, (1, 3), generation=1))
    assert play.begin().fallbacks == ((0, 1), (2, 1))
    assert play.begin().all_fallbacks == ((0, 2), (1, 2), (0, 1), (2, 1))
    play(Ready(3, KEEPING, can_restore=True))
    play(resting(2, 6, (0, 1, 2, 3), generation=2))
    assert (play.begin().fallbacks, play.begin().all_fallbacks) == ((), ())


def test_who_is_back_at_the_rest_before_still_has_the_heirs_of_its_sprint() -> None:
    play = begun(requirements(falls_back=True, start=3, most=3), KEEPING)
    play(Died(0, "gone"), resting(1, 5, (2,)), resting(2, 5, (3,)))
    play(resting(1, 6, (0, 1), generation=1), resting(2, 5, (1, 2, 3), (), generation=1))
    first = play.begin()
    assert first.fallbacks == ((2, 0), (3, 0))
    assert first.all_fallbacks == first.fallbacks
    play(Died(1, "gone"), resting(2, 5, (1, 2, 3), generation=2))
    assert play.begin().fallbacks == ((0, 1),)
    assert play.begin().all_fallbacks == ((0, 2), (1, 2), (0, 1))


def test_where_shards_keep_nothing_the_living_go_on() -> None:
    play = begun(requirements())
    play(Stepped(4), CheckpointSaved(3), Died(1, "gone"), left(0, 5))
    assert (play.begin().restore, play.begin().forgets, play.begin().moves) == (None, False, ())


def test_an_interrupted_run_that_would_have_to_go_back_ends() -> None:
    play = begun(requirements(), KEEPING)
    play(Stepped(4), CheckpointSaved(3), Interrupt("SIGTERM"), Died(1, "gone"), holding(0, 5, (0, 1)))
    assert isinstance(play.error(), Interrupted)


@pytest.mark.parametrize(("clocks", "lost"), [((10, 42), 3), ((), 35)])
def test_a_shard_that_runs_free_has_lost_what_it_did_since_the_last_rest(
    clocks: tuple[int, ...], lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what it is ahead of the run, whose step is 10; where no rest is known, as much as can be."""
    computed = {1: (12, 0), 2: (45, 1), 3: None}
    monkeypatch.setattr(fault_attribution, "computing", computed.get)
    state: Any = SimpleNamespace(generation=SimpleNamespace(lost_members=(1, 2, 3)), clocks=clocks)
    assert formation._given_up(state, 10) == lost
