"""The time that a run would take on a cluster that is not there, by the project's own schedules, modes and controller. Pure.

    conditions.py       the cluster that is imagined: network, compute, stragglers, failures
    discrete_events.py  members' tasks and messages, in the order in which they happen
    exchange.py         one exchange of a schedule over a network
    cores.py            lockstep steps, task by task, of members that share cores
    steps.py            many steps under a mode, with stragglers and stalls
    calibration.py      the conditions of a true cluster, from what its members report of their time
    candidates.py       the layouts that a run could have, with the step times that follow from the conditions
    losses.py           losses and joins, driven through the controller
    report.py           all of it for the topologies and modes of a table

There are two models of a step. One plays each task and message (`discrete_events.py`): of an exchange alone, and of whole steps
where up to 64 members share cores. The other is a formula (`steps.py`): the slowest worker's computation, the exchange that was
played, the update. It serves where each has a core, and for more members: of 25 M parameters on 4 to 64 workers it is within
2 % of steps that are played, in a fiftieth of the time. It leaves out the messages of the vote, which take 0.3 ms of
the 27 ms that a step of a ring of 64 takes.

It starts nothing, and computes no gradient.
"""
