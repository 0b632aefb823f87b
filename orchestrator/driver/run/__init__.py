"""One run from its first member to its end."""
