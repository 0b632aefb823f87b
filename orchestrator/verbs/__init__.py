"""The verbs of the command line: what a user types, read and answered. A verb is a file here and a line in `VERBS`.

These files are light, because each start of the program reads them all: what a verb needs (Ray, torch, MLflow) is imported
by `orchestrator.commands`, once it is called.
"""
