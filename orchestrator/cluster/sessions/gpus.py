"""How many GPUs a Ray is told of that is started here, by the names in CUDA_VISIBLE_DEVICES.

Ray counts the names in that variable, up to the number of cards that the machine has. A card that is cut into MIG devices is
one card, so with seven devices of one card named Ray would have one GPU. Slurm sets the variable on each node to what it has
allotted there, MIG devices by their names. Source: ray/_private/resource_and_label_spec.py; Slurm, "Generic Resource (GRES)
Scheduling", GPU Management and MIG Management.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
MIG: Final = "MIG-"


def names(given: str) -> list[str]:
    """The names in the variable's value."""
    return [name.strip() for name in given.split(",")] if given.strip() else []


def for_ray(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many GPUs to tell a Ray of, where MIG devices are named; None: it counts right."""
    named = names(environ.get(VARIABLE, ""))
    return len(named) if named and all(name.startswith(MIG) for name in named) else None
