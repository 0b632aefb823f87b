"""What a worker computes: micro-batches, gradients, evaluations, and the state that follows."""
