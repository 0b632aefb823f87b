"""The parts that a worker computes with: the user's pipeline, its model and optimizer, micro-batches, and the state that
follows."""
