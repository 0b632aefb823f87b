"""Runs that another machine starts: `submit`, `status`, `logs`, `stop`, and `once`, which the job runs."""
