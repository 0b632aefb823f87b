"""Decisions as pure functions: who hosts which shard, who belongs to a generation, what a run does next."""
