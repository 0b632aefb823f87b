"""The actors: one process per member, and the driver's side of it."""
