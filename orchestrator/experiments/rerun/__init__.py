"""Repeat a run from its record, and say whether the repetition is equal."""
