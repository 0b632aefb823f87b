"""What a run would take on a cluster that is not there, by the project's own schedules, modes and controller. Pure.

    conditions.py   the cluster that is imagined: network, compute, stragglers, failures
    exchange.py     one exchange of a schedule over a network
    steps.py        many steps under a mode, with stragglers and stalls
    lives.py        losses and joins, driven through the controller
    report.py       all of it for the topologies and modes of a table

What it does not do: measure anything, or compute a gradient.
"""
