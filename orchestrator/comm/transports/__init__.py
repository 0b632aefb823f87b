"""Messages between members: shared memory with Unix sockets, and TCP, behind one interface (`base`)."""
