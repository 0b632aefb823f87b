"""`rerun=`: a run, a crate or a sweep repeated exactly, and compared."""
