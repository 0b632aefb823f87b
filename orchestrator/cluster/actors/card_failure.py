"""What a member answers when its GPU fails: which kind of failure it was, on which card, and what was computed then."""

from __future__ import annotations

import traceback
from typing import Any

from orchestrator.common import card_faults
from orchestrator.errors import CardFailed


def answered(error: Exception, at: tuple[int | None, int | None], card: str) -> dict[str, Any] | None:
    """`{"failed", "card"}`; None where it was no failure of a card. at: the step and shard of it; card: the UUID."""
    fault = card_faults.of(error)
    if fault is None:
        return None
    told = error.error if isinstance(error, CardFailed) else fault.told(str(error).strip(), traceback.format_exc())
    return {"failed": told.as_dict(), "card": {"code": fault.code, "card": card, "step": at[0], "shard": at[1]}}
