"""What a run leaves behind, as lines: the journal of events and the trace of steps; and how far it is.

Standard library only.
"""
