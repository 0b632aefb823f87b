"""Code that depends on the insides of a library runs with the versions it was tried with, and is left out with others.

RAY = Tried("ray", "2.60")
if RAY.is_here: ...                     # else the usual way, which takes longer and comes to the same
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True)
class Tried:
    """The versions of a package with which code that depends on its insides was tried. versions: the beginnings of them, such
    as 2.60 for 2.60.1 too."""

    package: str
    versions: tuple[str, ...]

    @property
    def is_here(self) -> bool:
        """Whether one of these versions is installed."""
        found = _installed(self.package, importlib.metadata.version)
        return found is not None and any(found == each or found.startswith(f"{each}.") for each in self.versions)

    @property
    def wanted(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.versions[-1]}.*"


@functools.cache
def _installed(package: str, version: Callable[[str], str]) -> str | None:
    """Without what follows a plus. It is looked up once, since a driver asks in each turn, and that reads files."""
    try:
        return version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Tables:
    """The tables of a database in SQLite that a package keeps."""

    package: str
    versions: tuple[str, ...]  # as Alembic names them

    def version(self, connection: sqlite3.Connection) -> str | None:
        """The one that is in the database; None where it has no tables yet."""
        if connection.execute("select 1 from sqlite_master where name = 'alembic_version'").fetchone() is None:
            return None
        found = connection.execute("select version_num from alembic_version").fetchone()
        return None if found is None else str(found[0])

    def are_in(self, connection: sqlite3.Connection) -> bool:
        """Whether one of these versions is in the database."""
        return self.version(connection) in self.versions


RAY = Tried("ray", ("2.60",))
MLFLOW = Tried("mlflow", ("3.17",))
MLFLOW_TABLES = Tables("mlflow", ("dc11669786a5",))
TORCH = Tried("torch", ("2.11", "2.13"))  # of 2.11 a build for CUDA
DVC = Tried("dvc", ("3.67",))
OPTUNA = Tried("optuna", ("5.0",))
LITDATA = Tried("litdata", ("0.2.76",))
NUMBA = Tried("numba", ("0.68",))
LLVMLITE = Tried("llvmlite", ("0.50",))
