"""A member of a run: its life over generations, what it says of itself, how it leaves."""
