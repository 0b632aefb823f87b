"""Replicas that run free between rests: sprints, rests, replays and gossip."""
