"""Tasks and messages in virtual time happen in the order of programs, of time and of cores."""

from __future__ import annotations

from orchestrator.comm.topologies import Move
from orchestrator.experiments.simulation.conditions import Conditions, Network
from orchestrator.experiments.simulation.discrete_events import Simulation, Task

FREE = Network(latency_s=0.0, bandwidth=1e30)


def to_last(source: int) -> Move:
    return Move(source, 2, 0, "add")


def test_a_message_that_comes_early_waits_for_those_before_it_in_the_program() -> None:
    late = [Task(5.0, sends=to_last(0))]
    early = [Task(0.0, sends=to_last(1))]
    takes = [Task(1.0, takes=to_last(0)), Task(1.0, takes=to_last(1))]
    simulation = Simulation([iter(late), iter(early), iter(takes)], Conditions(FREE), [0, 0, 0])
    simulation.run()
    assert simulation.ready == [5.0, 0.0, 7.0]


def test_at_a_wire_of_several_members_what_was_handed_over_first_leaves_first() -> None:
    network = Network(hosts=2, wire_latency_s=1.0, wire_bandwidth=1.0)
    senders = [[Task(2.0, sends=to_last(0), size=3.0)], [Task(1.0, sends=to_last(1), size=3.0)]]
    takes = [Task(0.0, takes=to_last(0)), Task(0.0, takes=to_last(1))]
    simulation = Simulation([*map(iter, senders), iter(takes)], Conditions(network), [0, 0, 1])
    simulation.run(seen=True)
    assert simulation.flights == [(to_last(1), 1.0, 5.0), (to_last(0), 4.0, 8.0)]


def test_of_shared_cores_the_first_free_one_goes_to_whoever_could_begin_first() -> None:
    tasks = [[Task(4.0)], [Task(2.0), Task(2.0, ends=True)], [Task(1.0)]]
    simulation = Simulation(list(map(iter, tasks)), Conditions(FREE, cores=2), [0, 0, 0])
    simulation.run()
    assert simulation.ready == [4.0, 5.0, 3.0]
    assert simulation.ends == [[], [5.0], []]
