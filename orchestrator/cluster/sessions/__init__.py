"""Ray itself: a private one, or one that is joined."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class RaySession(AbstractContextManager["RaySession"], Protocol):
    """A Ray that is in use within the block."""

    def trouble(self) -> str | None:
        """The fault of this Ray because of which the run cannot go on; None while it works."""

    def draining(self) -> Mapping[str, float | None]:
        """The nodes that are about to go, each with when, in seconds since the epoch; None where no time is set."""
