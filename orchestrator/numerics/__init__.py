"""Torch without I/O: exact sums, random streams, the flat layout, digests. Nothing here knows a worker or a network."""
