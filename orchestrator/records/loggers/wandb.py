"""Weights & Biases, by the package wandb. The run has the id that it has in MLflow, in the project that is named like its
experiment; where to, as whom and whether at once are wandb's own business: WANDB_MODE=offline, WANDB_ENTITY, WANDB_BASE_URL,
`wandb login`. Its files on this machine lie in the run's folder, where `wandb sync` finds what was written offline.

It is told what MLflow is told and nothing else: it reads no command line, which may hold a credential, no code and no git.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import Status
from orchestrator.records.loggers.logger import LoggedRun, missing

_FORBIDDEN = re.compile(r"[/\\#?%:]")  # in the name of a project
_LONGEST = 128
_TAG_LONGEST = 64
_LOGIN = "import wandb; wandb.login(verify=False)"
_OFFLINE = ("offline", "dryrun", "disabled")


class WeightsAndBiases:
    """A run at wandb."""

    def __init__(self, run: LoggedRun) -> None:
        import wandb

        tags = [name if value is None else f"{name}={value}" for name, value in (run.tags or {}).items()]
        quiet = {"console": "off", "silent": True}
        unread = dict.fromkeys(("x_disable_meta", "disable_git", "disable_code"), True)
        self._run = wandb.init(
            project=_FORBIDDEN.sub("_", run.experiment)[:_LONGEST],
            id=run.run_id,
            name=run.name,
            notes=run.note,
            tags=[tag[:_TAG_LONGEST] for tag in tags],
            config=dict(run.settings),
            dir=str(run.folder),
            resume=None if run.since is None else "allow",
            settings=wandb.Settings(**quiet, **unread),
        )
        self._run.define_metric("step")  # its own steps only rise; an evaluation may be told after the next step
        self._run.define_metric("*", step_metric="step")

    @staticmethod
    def problem() -> str | None:
        """Whether it knows as whom to write is asked in a process without a terminal: here it would ask for a key."""
        lacking = missing("wandb")
        if lacking is not None or os.environ.get("WANDB_MODE", "online") in _OFFLINE:
            return lacking
        asked = subprocess.run(
            [sys.executable, "-c", _LOGIN],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            check=False,
        )
        return (
            None
            if asked.returncode == 0
            else "wandb does not know as whom to write; `wandb login`, or WANDB_MODE=offline in the environment"
        )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def end(self, status: Status, results: Mapping[str, Any]) -> None:
        self._run.summary.update({"status": status, **results})
        self._run.finish(exit_code=0 if status == "finished" else 1)
