"""The command that a job runs: `once=ID conf=...`, which goes on with the run of this id where there is one.

So a job that is started again, by Ray, Kubernetes, Slurm or a person, trains no step twice and makes no second run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from orchestrator.errors import UsageError
from orchestrator.records import redaction

_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")  # what KubeRay takes as the name of a RayJob
# A variable's name is no credential, nor is a user without a password.
_VARIABLE = re.compile(r"\$\{oc\.env:\w+\}")
_USER = re.compile(r"(?<=://)[^/\s:@]*:?@")
# FOLDER VARIABLE WORD...: the words in the folder, the last one followed by what the variable holds.
_RUN = (
    "import os, sys; from urllib.parse import unquote; folder, variable, *words = map(unquote, sys.argv[1:]); "
    "os.chdir(folder); os.execvp(words[0], [*words[:-1], words[-1] + os.environ[variable]])"
)


@dataclass(frozen=True)
class Submission:
    """A job that is to be submitted."""

    id: str  # of the job, which the run keeps
    conf: str  # the configuration, as for a launch
    overrides: tuple[str, ...]  # of the settings, as for a launch
    project: str  # folder to run in, on the machine of the job
    members: int  # processes that the run starts with
    cpus: float  # CPUs of each member
    gpus: float  # GPUs of each member
    start_timeout_s: float = 120.0  # seconds that members have to start

    def words(self) -> list[str]:
        """To be run in the project's folder, with cluster.address= of the Ray to join besides."""
        return ["python", "-m", "orchestrator", f"once={self.id}", f"conf={self.conf}", *self.overrides, "output=json"]

    def joining(self) -> str:
        """The command for where Ray itself starts it. Each word is written so that no shell on the way sees anything in it:
        `ray job submit` puts words into double quotes, in which the head's shell would expand `$` and run what stands in
        backticks."""
        words = (self.project, "RAY_ADDRESS", *self.words(), "cluster.address=")
        return shlex.join(["python", "-c", _RUN, *map(_plain, words)])


def _plain(word: str) -> str:
    return quote(word, safe="/=:,+@").replace("~", "%7E")


def check_id(name: str) -> str:
    """Raises UsageError for what is no name everywhere."""
    if not _ID.fullmatch(name):
        raise UsageError(
            f"id={name}: expected lower-case letters, digits and hyphens, at most 40",
            "such as id=digits-1",
            code="job.id",
        )
    return name


def own_address(overrides: Sequence[str]) -> None:
    """Raises UsageError: a job joins the Ray that it is submitted to."""
    if any(override.startswith("cluster.address=") for override in overrides):
        raise UsageError(
            "cluster.address: a job joins the Ray that runs it", "leave cluster.address out", code="job.address"
        )


def no_credentials(overrides: Sequence[str]) -> None:
    """Raises UsageError: whoever sees the job, or its script, would see them."""
    for override in overrides:
        key, _, value = override.partition("=")
        if (public := _USER.sub("", _VARIABLE.sub("", value))) and redaction.setting(key, public) != public:
            raise UsageError(
                f"{key}: a credential in the command of a job can be read on the dashboard, in its manifest or its script",
                f"write {key}='${{oc.env:NAME}}', and set the variable here and where the job runs; for an MLflow server leave "
                "name and password out of its address, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
                code="job.credential",
            )
