"""The record of a run, written and read again: its folder and its run in MLflow."""
