"""Reports of members by which a generation ends for them, as events for the controller."""

from __future__ import annotations

from typing import Any

from orchestrator.controller.events import Ended, Reported
from orchestrator.records.progress import Progress


def leaves(
    member: int, generation: int, kind: Any, progress: Progress | None, accuses: int | None = None, **more: Any
) -> Reported:
    """It has left the generation and waits for the next one; more: what else it tells (`Ended`)."""
    return Reported(member, generation, Ended(kind, progress, accuses, **more))


def finishes(member: int, generation: int, progress: Progress | None, digest: str | None, **more: Any) -> Reported:
    """It has done all steps."""
    return Reported(member, generation, Ended("finished", progress, digest=digest, **more))
