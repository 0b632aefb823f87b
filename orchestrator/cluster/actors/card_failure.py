"""The answer of a member whose GPU fails: the kind of failure, the card, and what was computed then. And the same, as its last
words tell it, of a member whose process was aborted before it answered."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.common import card_faults
from orchestrator.common.card_faults import CardFault
from orchestrator.errors import CardFailed, OrchestratorError

# Before the member took part in anything.
PREPARING: Final[dict[str, Any]] = {"step": None, "shard": None, "prepares": True}
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def answered(error: Exception, at: dict[str, Any], card: str) -> dict[str, Any] | None:
    """`{"failed", "card"}`; None where it was no failure of a card. at: the activity at that
    moment, with the names of `events.CardFailed`; card: the UUID."""
    fault = card_faults.of(error)
    if fault is None:
        return None
    return {"failed": _told(error, fault).as_dict(), "card": {"code": fault.code, "card": card, **at}}


def of_death(said: str, last: Mapping[str, Any] | None, card: str, *, prepares: bool) -> dict[str, Any] | None:
    """As `answered`, of a process that has ended; None where its last words tell of no failure of a card. said: those words;
    last: its last activity, where that is known; prepares: whether it was not ready yet."""
    found = card_faults.aborted(said)
    if found is None:
        return None
    fault, what = found
    at = PREPARING if prepares else {key: None if last is None else last[key] for key in ("step", "shard")}
    failed = fault.told(f"{what}; it ended the process", said)
    return {"failed": failed.as_dict(), "card": {"code": fault.code, "card": card, **at}}


def named_card(environ: Mapping[str, str]) -> str:
    """The UUID of the card that is set aside for this process, where it is named by that: if CUDA does not start, it does not
    tell. An index is no name, as nobody says how CUDA counts cards when one of them is lost."""
    name = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return name if _UUID.fullmatch(name) else ""


def _told(error: Exception, fault: CardFault) -> OrchestratorError:
    # To let go of a step calls the card, too, which fails again after the error that names the user's code.
    named = next((each for each in card_faults.chain(error) if isinstance(each, CardFailed)), None)
    if named is not None:
        return named.error
    if isinstance(error, OrchestratorError):
        return error
    return fault.told(card_faults.words(error).strip(), traceback.format_exc())
