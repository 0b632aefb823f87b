"""The costs of a run beside its work, by the number of its members: `python -m benchmarks.scale`."""
