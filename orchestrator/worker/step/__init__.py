"""A lockstep step: what shards contribute, how it is added up, and what is done with the sum."""
