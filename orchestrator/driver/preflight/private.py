"""The driver's part of a private run: its secret, the keys that are bound to what it is made of, and its epsilon so far.

The file `privacy.json` of a run holds the commitment to the secret and a hash of what the keys are bound to; neither leads to a
key. A run that is resumed has to come to the same keys, and a rerun needs the same secret, or the noise would be another one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.config.plan import Privacy
from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder, read_json
from orchestrator.errors import ConfigurationError, NotRerunnable, OrchestratorError, coded
from orchestrator.optim.privacy import secret
from orchestrator.optim.privacy.accounting import Accountant
from orchestrator.optim.privacy.keys import Keys
from orchestrator.optim.privacy.secret import Secret
from orchestrator.provenance.environment import node
from orchestrator.records.identity import canonical

COMMITMENT: Final = "privacy.commitment"  # among the settings that determine the result
_OF_WORKERS: Final = (
    *("initial_parameters", "reference", "samples", "partition", "layout", "steps"),
    *("compute", "machine"),
)


def of_launch(settings: Settings) -> Secret | None:
    """The secret of a run that begins, made where there is none; None of a run without noise. Raises ConfigurationError."""
    return secret.read_or_create(secret.place(settings.privacy.secret)) if settings.is_private else None


def of_record(settings: Settings, files: RunFolder, run_id: str) -> Secret | None:
    """The secret that the run began with. Raises NotRerunnable where it is not here."""
    if not settings.is_private:
        return None
    remedy = "give its file: privacy.secret=PATH; without it nobody can make the same noise, nor know who played"
    try:
        found = secret.read(secret.place(settings.privacy.secret))
    except ConfigurationError as error:
        raise NotRerunnable(
            f"the secret of run {run_id} is not here: {error.problems[0]}", remedy, code="privacy.secret-missing"
        ) from None
    if found.commitment != commitment_in(files):
        raise NotRerunnable(
            f"run {run_id} began with another secret than the one in {found.path}", remedy, code="privacy.other-secret"
        )
    return found


def commitment_in(files: RunFolder) -> str | None:
    """The commitment to the secret that a run began with; None for a run without noise."""
    found: str | None = read_json(files.privacy).get("commitment")
    return found


class Private:
    """The keys and the accountant of a private run. secret: of the run; facts: what its record knows of code, data and
    settings."""

    def __init__(self, secret: Secret, privacy: Privacy, files: RunFolder, facts: Mapping[str, Any]) -> None:
        self._secret = secret
        self._files = files
        self._facts = facts
        self._keys: tuple[str, Keys] | None = None
        self._accountant = Accountant(privacy.noise, privacy.rate, privacy.delta)
        _write(files.privacy, {**read_json(files.privacy), "commitment": secret.commitment})

    def keys(self, run_manifest: Mapping[str, Any]) -> Keys:
        """Bound to all that the run is made of. Raises NotRerunnable where that has changed since it began."""
        found = {name: run_manifest[name] for name in _OF_WORKERS if name in run_manifest}
        bits = {name: value for name, value in node.capture().as_dict()["bits"].items() if name != "variables"}
        about = canonical({**self._facts, "workers": found, "environment": bits})
        bound = hashlib.sha256(about.encode()).hexdigest()
        if self._keys is None or self._keys[0] != bound:
            recorded = read_json(self._files.privacy)
            if recorded.get("bound_to", bound) != bound:
                raise NotRerunnable(
                    "what this run is made of has changed since it began (its environment, or data that data.inputs does not "
                    "name), and the noise would be another one",
                    "resume it where it began, or launch a new run with conf=",
                    code="privacy.changed",
                )
            _write(self._files.privacy, {**recorded, "bound_to": bound})
            self._keys = bound, self._secret.keys(about)
        return self._keys[1]

    def epsilon(self, rounds: int) -> float:
        """The epsilon that so many rounds spend."""
        return self._accountant.epsilon(rounds)


def misplaced(settings: Settings, recorded: Path) -> list[str]:
    """A secret among the files that are recorded with the code would be recorded too. recorded: their folder."""
    if not settings.is_private:
        return []
    path = secret.place(settings.privacy.secret).resolve()
    if not path.is_relative_to(recorded.resolve()):
        return []
    return [
        coded(
            "privacy.secret-in-code",
            f"privacy.secret: {path} lies in {recorded}, which is recorded with the code; put it elsewhere",
        )
    ]


def unusable(settings: Settings) -> list[str]:
    """A secret that is there is read; one that is not there is made by the launch."""
    path = secret.place(settings.privacy.secret)
    if not os.path.lexists(path):
        return []
    try:
        secret.read(path)
    except ConfigurationError as error:
        return error.with_remedy()
    return []


def unbound(settings: Settings, obstacles: list[str]) -> OrchestratorError | None:
    """Why noise could meet other code than it is bound to. obstacles: to a record of the code."""
    if not settings.is_private or not obstacles:
        return None
    return ConfigurationError(
        [f"privacy.noise_multiplier: {obstacle}" for obstacle in obstacles],
        "noise is bound to the code that is recorded, so that other code never meets the same noise; mend this first",
        code="privacy.unrecorded-code",
    )


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
