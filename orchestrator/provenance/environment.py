"""The packages and the machine a run was made with. Names and versions come from the metadata; no pip is called."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any

from orchestrator.numerics.determinism import cpu_model


@dataclass(frozen=True)
class Environment:
    """packages: name -> version, names normalised and sorted."""

    python: str
    platform: str
    cpu: str
    cores: int
    packages: dict[str, str]

    @property
    def packages_sha256(self) -> str:
        listing = "".join(f"{name}=={version}\n" for name, version in self.packages.items())
        return hashlib.sha256(listing.encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        return {
            "python": self.python,
            "platform": self.platform,
            "cpu": self.cpu,
            "cores": self.cores,
            "packages_sha256": self.packages_sha256,
            "packages": self.packages,
        }


def capture() -> Environment:
    """This process's environment."""
    found = ((d.metadata["Name"], d.version) for d in importlib.metadata.distributions())
    packages = {name.lower().replace("_", "-"): version for name, version in found if name}
    return Environment(
        python=sys.version,
        platform=platform.platform(),
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        packages=dict(sorted(packages.items())),
    )
