"""The table of combinations: how the members of an ensemble are made one.

A combination is a class, `name(members: int, *, option, ...)`, with three things (`combination.py`): whether it chooses weights
on validation samples, how it does so, and what it makes of the members' outputs. It knows neither files nor models. Adding one
is a file and a line in `COMBINATIONS`; `laws.py` has what each has to keep to, a user's own too.

    mean       the mean of the members' probabilities
    vote       each member has one vote; of equal ones the mean probability decides
    weighted   a weighted mean, whose weights are chosen on half of the validation samples
"""

from __future__ import annotations

from orchestrator.common.registry import Table
from orchestrator.worker.ensemble.combinations.combination import Build
from orchestrator.worker.ensemble.combinations.mean import Mean
from orchestrator.worker.ensemble.combinations.vote import Vote
from orchestrator.worker.ensemble.combinations.weighted import Weighted

__all__ = ["COMBINATIONS"]

COMBINATIONS: Table[Build] = Table("ensemble.combine", {"mean": Mean, "vote": Vote, "weighted": Weighted})
