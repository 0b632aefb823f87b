"""The cards of this machine, as NVIDIA's own tool tells of them.

It is asked as a program with a deadline, and never as a library in this process: where a card has failed, its driver may not
answer, and who waits for it cannot be killed. The tool tells nothing of a machine with a card that has fallen off its bus; the
cards are asked one by one then. Source: `nvidia-smi --help-query-gpu`, and `nvidia-smi -L` for MIG.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from orchestrator.common import card_faults
from orchestrator.common.bounded_command import output_of

PROGRAM: Final = "nvidia-smi"
# The tool sets up one card after the other, each for seconds, if nothing keeps the driver loaded (nvidia-persistenced).
LIMIT_S: Final = 60.0
_MEASURE_S: Final = 10.0  # of a card on which somebody computes
BUS: Final = Path("/proc/driver/nvidia/gpus")  # a folder for each card, lost ones too, named by its place on the bus
LOST: Final = "gpu.fell-off"
_FACTS: Final = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.total",
    "compute_cap",
    "mig.mode.current",
    "ecc.errors.uncorrected.volatile.total",
)
_MEASURES: Final = ("uuid", "utilization.gpu", "memory.used", "temperature.gpu", "power.draw")
_UNITS: Final = (("utilization", 0.01), ("memory_bytes", float(1 << 20)), ("temperature_c", 1.0), ("power_w", 1.0))
_ANSWERED: Final = (0, 14)  # exit codes; the latter adds a warning that the card's own notes are damaged
_CARD = re.compile(r"GPU \d+: .*\(UUID: (GPU-[\w-]+)\)")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[\w/-]+)\)")


class CardsUnknown(Exception):
    """Nobody tells which cards there are; the message says why. hangs: the tool was given up."""

    def __init__(self, why: str, *, hangs: bool = False) -> None:
        super().__init__(why)
        self.hangs = hangs


@dataclass(frozen=True)
class Card:
    """One card, as its driver tells of it."""

    index: int  # by the place on the bus, which is not always the number that CUDA gives it
    uuid: str  # GPU-...
    name: str  # of the product
    driver: str  # its version
    memory_bytes: int  # 0 where it has none of its own
    capability: str  # what it computes, such as 9.0
    mig: bool  # whether it is cut into MIG devices
    ecc_errors: int | None  # that could not be corrected, since the driver was loaded; None where they are not counted
    parts: tuple[str, ...] = ()  # the names of its MIG devices

    def __str__(self) -> str:
        return f"{self.index} ({self.name}, {self.uuid})"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "parts": list(self.parts)}


class Lost(NamedTuple):
    """A card that does not answer on its bus any more. place: on the bus, as 0000:3b:00.0; why: what the tool says of it."""

    place: str
    why: str


class Seen(NamedTuple):
    """The cards of a machine, and those of it that are lost."""

    cards: list[Card]
    lost: list[Lost]


def look(limit_s: float = LIMIT_S) -> Seen:
    """All of this machine, whatever CUDA_VISIBLE_DEVICES says. limit_s: for each question to the tool. Raises CardsUnknown,
    also where all cards are lost, and FileNotFoundError without the tool."""
    lost: list[Lost] = []
    try:
        found = read(_facts((), limit_s))
    except CardsUnknown as error:
        if not _is_lost(error):
            raise
        found, lost = _one_by_one(limit_s)
        if not found:
            raise
    if any(card.mig for card in found):
        found = with_parts(found, "\n".join(_listed(found, lost, limit_s)))
    return Seen(found, lost)


def measure(card: str, limit_s: float = _MEASURE_S) -> dict[str, float]:
    """Ask a card for its utilization (from 0 to 1), memory in use, temperature and power; a MIG device tells nothing. It
    alone is asked, as another one may be lost. card: its UUID. Raises CardsUnknown, and FileNotFoundError without the tool."""
    if not card.startswith("GPU-"):
        return {}
    asked = (PROGRAM, "-i", card, f"--query-gpu={','.join(_MEASURES)}", "--format=csv,noheader,nounits")
    return measured(_asked(asked, limit_s)).get(card, {})


def _facts(of: Sequence[str], limit_s: float) -> str:
    return _asked((PROGRAM, *of, f"--query-gpu={','.join(_FACTS)}", "--format=csv,noheader,nounits"), limit_s)


def _is_lost(error: CardsUnknown) -> bool:
    fault = card_faults.named_in(str(error))
    return fault is not None and fault.code == LOST


def _one_by_one(limit_s: float) -> tuple[list[Card], list[Lost]]:
    """Raises CardsUnknown where a card fails otherwise than by being lost."""
    found, lost = [], []
    for place in sorted(each.name for each in BUS.iterdir()) if BUS.is_dir() else []:
        try:
            found += read(_facts(("-i", place), limit_s))
        except CardsUnknown as error:
            if not _is_lost(error):
                raise
            lost.append(Lost(place, str(error)))
    return found, lost


def _listed(found: Sequence[Card], lost: Sequence[Lost], limit_s: float) -> Iterator[str]:
    """The answer of `nvidia-smi -L`; where it would fail for all, one for each card that is cut."""
    for of in [("-i", card.uuid) for card in found if card.mig] if lost else [()]:
        yield _asked((PROGRAM, "-L", *of), limit_s)


def read(text: str) -> list[Card]:
    """The cards in a text with a line for each. Raises CardsUnknown."""
    try:
        return [_card(cells) for cells in _rows(text, len(_FACTS))]
    except ValueError as error:
        raise CardsUnknown(f"{PROGRAM} answers otherwise than expected: {error}") from None


def measured(text: str) -> dict[str, dict[str, float]]:
    """Likewise of `measure`; without what a card does not tell."""
    found = {}
    for uuid, *cells in _rows(text, len(_MEASURES)):
        told = ((name, _number(cell), unit) for (name, unit), cell in zip(_UNITS, cells, strict=True))
        found[uuid] = {name: number * unit for name, number, unit in told if number is not None}
    return found


def with_parts(cards: Sequence[Card], listed: str) -> list[Card]:
    """The cards with the MIG devices that `nvidia-smi -L` lists below each."""
    parts: dict[str, list[str]] = {}
    for line in listed.splitlines():
        if card := _CARD.match(line):
            parts[card.group(1)] = []
        elif (part := _PART.match(line)) and parts:
            parts[[*parts][-1]].append(part.group(1))
    return [Card(**{**vars(card), "parts": tuple(parts.get(card.uuid, ()))}) for card in cards]


def _asked(command: Sequence[str], limit_s: float) -> str:
    try:
        told = output_of(command, limit_s)
    except TimeoutError as error:
        raise CardsUnknown(str(error), hangs=True) from None
    except FileNotFoundError:
        raise
    except OSError as error:  # not allowed, a damaged file
        raise CardsUnknown(f"{PROGRAM} cannot be started: {error.strerror}") from None
    text = f"{told.out} {told.err}"
    if told.code in _ANSWERED or "No devices were found" in text:
        return told.out
    raise CardsUnknown(" ".join(text.split()) or f"{PROGRAM} ended with exit code {told.code}")


def _rows(text: str, count: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if "," in line]
    if short := [row for row in rows if len(row) != count]:
        raise CardsUnknown(f"{PROGRAM} answers otherwise than expected: {','.join(short[0])}")
    return rows


def _card(cells: Sequence[str]) -> Card:
    if _is_lost(CardsUnknown(told := ",".join(cells))):
        raise CardsUnknown(told)
    index, uuid, name, driver, memory, capability, mig, errors = cells
    counted, mebibytes = _number(errors), _number(memory) or 0.0  # memory that a card shares with its host is not told
    return Card(
        index=int(index),
        uuid=uuid,
        name=name,
        driver=driver,
        memory_bytes=int(mebibytes) << 20,
        capability=capability,
        mig=mig == "Enabled",
        ecc_errors=None if counted is None else int(counted),
    )


def _number(cell: str) -> float | None:
    """None of "[N/A]" and its like."""
    try:
        return float(cell)
    except ValueError:
        return None
