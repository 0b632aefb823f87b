"""The data: the versions of what a pipeline reads, by the bytes and by DVC, and bringing them back."""
