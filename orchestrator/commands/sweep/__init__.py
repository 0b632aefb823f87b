"""`sweep=` and `ensemble=`: many runs, chosen by a search."""
