"""What hangs on the insides of a library is done with the versions it was tried with, and left out with others.

RAY = Tried("ray", "2.60")
if RAY.is_here: ...                     # else the usual way, which takes longer and comes to the same
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    """versions: the beginnings of them, such as 2.60 for 2.60.1 too."""

    package: str
    versions: tuple[str, ...]

    @property
    def is_here(self) -> bool:
        """Whether one of these versions is installed."""
        try:
            found = importlib.metadata.version(self.package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            return False
        return any(found == each or found.startswith(f"{each}.") for each in self.versions)

    @property
    def wanted(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.versions[-1]}.*"


RAY = Tried("ray", ("2.60",))
MLFLOW = Tried("mlflow", ("3.17",))
TORCH = Tried("torch", ("2.13",))
NUMBA = Tried("numba", ("0.68",))
LLVMLITE = Tried("llvmlite", ("0.50",))
