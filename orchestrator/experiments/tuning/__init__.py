"""Choose settings of the layout by measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config.settings import Settings


def decided(
    settings: Settings, origins: Mapping[str, str], *, trusted: bool = False
) -> tuple[Settings, dict[str, str], dict[str, Any] | None]:
    """As `choosing.decided`, which is imported where a key is `auto` alone: each launch waits for what it imports."""
    if not settings.tuning.auto:
        return settings, dict(origins), None
    from orchestrator.experiments.tuning import choosing

    return choosing.decided(settings, origins, trusted=trusted)
