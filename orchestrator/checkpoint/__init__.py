"""A checkpoint exists if and only if its manifest exists: what is in one, who writes it, where it lies, which one is good."""
