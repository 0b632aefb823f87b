"""The terminal and the process: output, progress, signals, child processes."""
