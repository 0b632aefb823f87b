"""Work with whole runs: rerun, sweep, tuning, simulation."""
