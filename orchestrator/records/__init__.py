"""The records of a run, as lines: the journal of events and the trace of steps; and how far it is.

Standard library only.
"""
