"""Ray itself: a private one, or one that is joined."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class RaySession(AbstractContextManager["RaySession"], Protocol):
    """A Ray, in use within the block."""

    def trouble(self) -> str | None:
        """What is wrong with it, if anything is: then nothing goes on."""
