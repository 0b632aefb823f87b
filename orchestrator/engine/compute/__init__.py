"""What a worker computes: micro-batches, gradients, evaluations, the state that results."""
