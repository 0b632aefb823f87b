"""The command that a job runs: `once=ID conf=...`, which goes on with the run of this id where there is one.

So a job that is started again, by Ray, Kubernetes, Slurm or a person, trains no step twice and makes no second run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import UsageError

_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")  # what KubeRay takes as the name of a RayJob


@dataclass(frozen=True)
class Submission:
    """id: of the job, which the run keeps; conf, overrides: as for a launch; project: the folder to run in, where the job
    runs; members: processes that the run starts with, each with so many cpus and gpus."""

    id: str
    conf: str
    overrides: tuple[str, ...]
    project: str
    members: int
    cpus: float
    gpus: float

    def command(self, address: str) -> str:
        """For a shell, in the project's folder. address: of the Ray to join, as the shell has it, such as "$RAY_ADDRESS"."""
        words = ["python", "-m", "orchestrator", f"once={self.id}", f"conf={self.conf}", *self.overrides]
        return f'cd {shlex.quote(self.project)} && exec {shlex.join(words)} cluster.address="{address}" output=json'

    def joining(self) -> str:
        """The command as one shell command, for where Ray itself starts it and tells the shell its address."""
        return f"bash -c {shlex.quote(self.command('$RAY_ADDRESS'))}"


def check_id(name: str) -> str:
    """Raises UsageError for what is no name everywhere."""
    if not _ID.fullmatch(name):
        raise UsageError(
            f"id={name}: expected lower-case letters, digits and hyphens, at most 40", "such as id=digits-1"
        )
    return name


def own_address(overrides: Sequence[str]) -> None:
    """Raises UsageError: a job joins the Ray that it is submitted to."""
    if any(override.startswith("cluster.address=") for override in overrides):
        raise UsageError("cluster.address: a job joins the Ray that runs it", "leave cluster.address out")
