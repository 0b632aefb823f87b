"""What a run leaves behind, as lines: the journal of events and the trace of steps. Standard library only."""
