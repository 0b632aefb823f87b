"""Processes that have imported what a process of this program imports, and are forked from: importing torch takes a second.

    client.py         asks a server for a process; run by its path, too, where Ray starts a worker
    server.py         imports, waits, forks
    equivalence.py    whether what was imported is what the one that asks would import
    launch_server.py  where a server listens, and how it is started and ended
    children.py       asks for a child of a worker, such as a loader

A server imports libraries and this package, and nothing of a project. It runs one thread, and torch has not computed in it. A
process that is forked takes environment, folder, descriptors, limits and priority of the one that has asked, and becomes what
that one would have become. A request that does not fit is refused with the reason, and the process that has asked goes the
usual way.
"""
