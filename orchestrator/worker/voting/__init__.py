"""What members tell each other: collectives and step reports."""
