"""A member's part in generations: how it is told to begin, its heartbeat, how it leaves."""
