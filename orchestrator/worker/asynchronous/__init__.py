"""Replicas that run free between rests: async phases, sync barriers, replays and gossip."""
