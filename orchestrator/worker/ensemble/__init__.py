"""The members of an ensemble as one model: what it computes (`model`), how it is kept (`saved`), how good it is (`judging`).

python -m orchestrator.worker.ensemble REQUEST ANSWER      in a process of its own, as `request.py` says
"""
