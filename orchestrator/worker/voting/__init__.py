"""The step reports on which members vote, and the memory that a worker needs."""
