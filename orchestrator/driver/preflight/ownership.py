"""Tells whose a run is, and asks whether places that the record of somebody else names may be opened.

To take weights, a state or data from where such a record says that they are is to call there, with one's own rights and
credentials. So the places are named before, and `trust=true` is asked for. The launch of a run records its user, and only by
that is another user's run known. `driver/recording/trust.py` asks before code is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

from orchestrator.driver.terminal.console import plain
from orchestrator.errors import UsageError
from orchestrator.provenance.tracking import Past
from orchestrator.provenance.tracking.store import accounts


class Refusable(Protocol):
    """An action that is refused until the user trusts the record. key: in the JSON object; asked: what the command does with
    it, and a heading; left: what was not done."""

    key: ClassVar[str]
    asked: ClassVar[str]
    left: ClassVar[str]

    @property
    def text(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class WouldOpen:
    """A question to the user: may places be opened that the record of somebody else names? places: what lies there, in words
    -> where that is, as the record says."""

    key: ClassVar[str] = "would_open"
    asked: ClassVar[str] = "takes from where its record says, with your rights and credentials. It would open"
    left: ClassVar[str] = "nothing was opened"
    places: Mapping[str, str]

    @property
    def text(self) -> str:
        return "\n".join(f"  {what}: {plain(place)}" for what, place in self.places.items())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Untrusted(UsageError):
    """Nothing was executed or opened; the JSON object has what would have been, `would_execute` or `would_open`."""

    def __init__(self, of: str, what: str, found: Refusable) -> None:
        super().__init__(
            f"{plain(of)}, and {what} {found.asked}:\n{found.text}",
            f"if you trust who made it, add trust=true; {found.left}",
            code="record.untrusted",
        )
        self.more = {found.key: found.as_dict()}


def is_own(past: Past) -> bool:
    """Whether this user launched it."""
    return is_of(past.user)


def is_of(user: str | None) -> bool:
    """Whether that is this user; cron and containers do not say in `USER` who that is."""
    return user in accounts()


def require_own_places(past: Past, trusted: bool, what: str, places: Mapping[str, str]) -> None:
    """Raises Untrusted for a run that another user launched, before these places are opened; none is no question. what: is
    about to open them; places: as of WouldOpen."""
    if places and not (trusted or is_own(past)):
        raise Untrusted(whose(past), what, WouldOpen(places))


def whose(past: Past) -> str:
    return f"{past.kind} {past.run_id} was launched by {past.user or 'somebody unknown'}"
