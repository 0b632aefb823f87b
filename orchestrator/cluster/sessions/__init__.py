"""Ray itself: a private one, or one that is joined."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from orchestrator.cluster.sessions.diagnosis import Diagnosis


class RaySession(AbstractContextManager["RaySession"], Protocol):
    """A Ray that is in use within the block."""

    def trouble(self) -> str | None:
        """The fault of this Ray because of which the run cannot go on; None while it works."""

    def diagnosis(self) -> Diagnosis:
        """The facts that are known of its end, and of that of members."""

    def draining(self) -> Mapping[str, float | None]:
        """The nodes that are about to go, each with when, in seconds since the epoch; None where no time is set."""
