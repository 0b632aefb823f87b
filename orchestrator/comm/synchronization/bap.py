"""Barrierless: replicas run free and never wait for another's computation; every update is sent whole, as soon as it can be.

Source: Han and Daudjee, "Giraph unchained: barrierless asynchronous parallel execution in Pregel-like graph processing systems"
(VLDB 2015); for training, Recht et al., "Hogwild!" (NIPS 2011).
"""

from __future__ import annotations

from orchestrator.comm.synchronization.mode import Mode
from orchestrator.comm.synchronization.options import REST_EVERY, RestEvery


def bap(*, rest_every: RestEvery = REST_EVERY) -> Mode:
    return Mode("sprints", rest_every=rest_every)
