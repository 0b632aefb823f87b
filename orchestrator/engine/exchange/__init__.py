"""What members tell each other: collectives, step reports, state transfer."""
