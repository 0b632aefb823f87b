"""The environment: packages, interpreter, processor and variables of a node."""
