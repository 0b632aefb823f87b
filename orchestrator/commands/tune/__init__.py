"""`tune`, and what a launch chooses where a key is `auto`."""
