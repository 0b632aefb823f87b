"""The part of `doctor` about GPUs: what each is, and what was tried on it. Nothing of a GPU is asked in this process.

`nvidia-smi` has a minute for its answer, and each step of `worker/card_trial.py` 30 s, since the first one on a card starts
CUDA and reads the compiler from the disk. A process that does not answer is left behind.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.cluster.sessions.gpus import VARIABLE
from orchestrator.common.child import Messages, Started
from orchestrator.driver.preflight import visible_cards
from orchestrator.numerics import cuda
from orchestrator.provenance.environment import cards
from orchestrator.provenance.environment.cards import Card, CardsUnknown, Lost

TRIAL = "orchestrator.worker.card_trial"
LIMIT_S = 30.0
_FIRST_S = 60.0  # to import torch, on a busy machine
_GIB = 1 << 30
_STEPS = {"cards": "what torch sees", "peers": "peers", "compiles": "compiling kernels", "shares": "sharing memory"}


class Trying(Protocol):
    """A process that tries cards."""

    messages: Messages

    def kill(self) -> None: ...

    def close(self) -> int | None: ...


@dataclass
class Tried:
    """The outcome of the trial."""

    uuids: list[str] = field(default_factory=list)  # of the cards that torch sees, by its number
    peers: list[list[int]] | None = None  # pairs (one, other) of these numbers: one maps the memory of the other
    compiles: list[str | None] = field(default_factory=list)  # of each card: None where it works, else why not
    shares: list[str | None] = field(default_factory=list)  # likewise
    failed: str | None = None  # what CUDA said when it ended the trials; None where it did not
    trouble: str | None = None  # why there is no more; None where all was tried

    def hear(self, name: str, answer: Any) -> None:
        if name == "cards":
            self.uuids = answer
        elif name == "peers":
            self.peers = answer
        elif name == "failed":
            self.failed = answer
        else:
            getattr(self, name).append(answer)

    @property
    def next_step(self) -> str:
        """The step that was under way when nothing more came."""
        if self.peers is None:
            return _STEPS["peers" if self.uuids else "cards"]
        card = len(self.shares)
        return f"{_STEPS['shares' if len(self.compiles) > card else 'compiles']} of card {card}"


@dataclass(frozen=True)
class CardReport:
    """The part of `doctor` about GPUs."""

    found: list[Card]  # all of the machine that answer
    lost: list[Lost] = field(default_factory=list)  # those that do not
    unknown: str | None = None  # why these are not known; None where they are
    tried: Tried | None = None  # None where there was nothing to try

    def as_dict(self) -> dict[str, Any]:
        tried = self.tried
        return {
            "cards": [{**card.as_dict(), **self._of(card)} for card in self.found],
            "lost": [lost._asdict() for lost in self.lost],
            "unknown": self.unknown,
            "peers": None if tried is None else tried.peers,
            "trouble": None if tried is None else tried.trouble,
        }

    def as_text(self) -> list[str]:
        lines = [] if self.unknown is None else [f"GPUs: {self.unknown}"]
        lines += [line for card in self.found for line in self._lines(card)]
        lines += [f"GPU at {lost.place} does not answer on its bus: {lost.why}" for lost in self.lost]
        tried = self.tried
        if tried is None:
            return lines
        if tried.peers is not None and len(tried.uuids) > 1:
            pairs = ", ".join(f"{one}-{other}" for one, other in tried.peers) or "none"
            lines.append(f"GPUs that map each other's memory, by torch's numbers: {pairs}")
        return lines if tried.trouble is None else [*lines, f"GPUs: {tried.trouble}"]

    def _lines(self, card: Card) -> Iterator[str]:
        errors = "not counted" if card.ecc_errors is None else f"{card.ecc_errors} uncorrectable errors"
        parts = f", MIG devices {', '.join(card.parts) or 'none'}" if card.mig else ""
        yield (
            f"GPU {card}: {card.memory_bytes / _GIB:.1f} GiB, driver {card.driver}, compute capability {card.capability}, "
            f"ECC {errors}{parts}"
        )
        said = {"compiles": ("kernels compile", "kernels do not compile"), "shares": ("memory is shared", "no sharing")}
        told = [
            well if self._of(card)[name] is None else f"{ill}: {self._of(card)[name]}"
            for name, (well, ill) in said.items()
            if name in self._of(card)
        ]
        if told:
            yield f"  {'; '.join(told)}"

    def _of(self, card: Card) -> dict[str, str | None]:
        """The trials on it, as far as they came."""
        if self.tried is None or card.uuid not in self.tried.uuids:
            return {}
        number = self.tried.uuids.index(card.uuid)
        answers = {"compiles": self.tried.compiles, "shares": self.tried.shares}
        return {name: given[number] for name, given in answers.items() if number < len(given)}


def report(start: Callable[[], Trying] = lambda: Started(TRIAL, silent=True, apart=True)) -> CardReport:
    """The report of this machine. start: the process that tries."""
    try:
        found, lost = cards.look()
    except FileNotFoundError:
        return CardReport([])
    except CardsUnknown as error:
        return CardReport([], unknown=str(error))
    if not found:
        return CardReport([], unknown=f"{cards.PROGRAM} finds none")
    given = os.environ.get(VARIABLE)
    visible = visible_cards.without_lost(given, found, lost).problem if lost else visible_cards.problem_of(given, found)
    problem = cuda.build_problem() or visible
    tried = Tried(trouble=f"nothing was tried: {problem}") if problem else heard(start())
    return CardReport(found, lost, tried=tried)


def heard(trying: Trying, first_s: float = _FIRST_S, limit_s: float = LIMIT_S) -> Tried:
    """Its messages until it ends, or until it does not answer; then it is killed, and not waited for."""
    come: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: _take(trying.messages, come), daemon=True).start()
    tried, patience = Tried(), first_s
    while True:
        try:
            payload = come.get(timeout=patience)
        except queue.Empty:
            tried.trouble = f"did not answer in {patience:g} s: {tried.next_step}"
            trying.kill()
            return tried
        if payload is None:
            tried.trouble = _shortfall(tried)
            trying.close()
            return tried
        tried.hear(*json.loads(payload))
        patience = limit_s


def _take(messages: Messages, come: queue.SimpleQueue[bytes | None]) -> None:
    for payload in _received(messages):
        come.put(payload)
    come.put(None)


def _received(messages: Messages) -> Iterable[bytes]:
    return iter(messages.receive, None)


def _shortfall(tried: Tried) -> str | None:
    """The trials that a process left out when it ended; None if it made all."""
    if tried.peers is None or len(tried.shares) < len(tried.uuids):
        why = "" if tried.failed is None else f": {tried.failed}"
        return f"the process that tried ended: {tried.next_step}{why}"
    return None if tried.uuids else "nothing was tried, since torch sees none (CUDA_VISIBLE_DEVICES, driver)"
