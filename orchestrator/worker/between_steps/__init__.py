"""The work between two steps: evaluation, state for checkpoints and for other members, and when each is due."""
