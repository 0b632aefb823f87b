"""What a run would take on a cluster that is not there, by the project's own schedules, modes and controller. Pure.

    conditions.py   the cluster that is imagined: network, compute, stragglers, failures
    exchange.py     one exchange of a schedule over a network
    steps.py        many steps under a mode, with stragglers and stalls
    cores.py        one lockstep step, task by task, of members that share cores
    calibration.py  the conditions of a true cluster, from what its members report of their time
    candidates.py   the layouts that a run could have, with the step times that follow from the conditions
    losses.py       losses and joins, driven through the controller
    report.py       all of it for the topologies and modes of a table

What it does not do: start anything, or compute a gradient.
"""
