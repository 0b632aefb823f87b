"""The order of things: the loop, the lockstep step, the state of the run."""
