"""The answer of a member whose GPU fails: the kind of failure, the card, and what was computed then."""

from __future__ import annotations

import traceback
from typing import Any, Final

from orchestrator.common import card_faults
from orchestrator.common.card_faults import CardFault
from orchestrator.errors import CardFailed, OrchestratorError

# Before the member took part in anything.
PREPARING: Final[dict[str, Any]] = {"step": None, "shard": None, "prepares": True}


def answered(error: Exception, at: dict[str, Any], card: str) -> dict[str, Any] | None:
    """`{"failed", "card"}`; None where it was no failure of a card. at: what was computed then, as `events.CardFailed` has
    it; card: the UUID."""
    fault = card_faults.of(error)
    if fault is None:
        return None
    return {"failed": _told(error, fault).as_dict(), "card": {"code": fault.code, "card": card, **at}}


def _told(error: Exception, fault: CardFault) -> OrchestratorError:
    # To let go of a step calls the card, too, which fails again after the error that names the user's code.
    named = next((each for each in card_faults.chain(error) if isinstance(each, CardFailed)), None)
    if named is not None:
        return named.error
    return error if isinstance(error, OrchestratorError) else fault.told(str(error).strip(), traceback.format_exc())
