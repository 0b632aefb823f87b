"""What is done with runs: rerun, sweep, tuning, simulation."""
