"""The ways of a launch: anew, from a checkpoint, or only told."""
