"""The cards that a private Ray gives its workers, by CUDA_VISIBLE_DEVICES: looked at before anything is started.

Ray counts the names in that variable, up to the number of cards that the machine has, without looking for cards of these
names. It hands each worker one of them, as it is written. CUDA takes names up to the first that it does not know, and none at
all where one comes twice. So a name that is wrong would show only in a worker, or as a card too few. A name of CUDA is the
index of a card, the beginning of its UUID, or a MIG device. Ray counts a card that is lost, and nobody says how CUDA numbers
the rest; so the others are named by their UUIDs then. Source: NVIDIA, "CUDA Environment Variables";
ray/_private/accelerators/nvidia_gpu.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from orchestrator.cluster.sessions import gpus
from orchestrator.cluster.sessions.gpus import VARIABLE
from orchestrator.common import card_faults
from orchestrator.errors import ConfigurationError, coded
from orchestrator.provenance.environment import cards
from orchestrator.provenance.environment.cards import Card, CardsUnknown, Lost

_KEPT: Final = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
_HIDES: Final = ("", "NoDevFiles")  # what Ray takes for none
_NO_DRIVER: Final = "communicate with the NVIDIA driver"


class Visible(NamedTuple):
    """The outcome of a look. problem: why the run is refused; named: what CUDA_VISIBLE_DEVICES has to name in place of what it
    does, since a card is lost; note: the sentence about it. Each is None where there is nothing to say or do."""

    problem: str | None = None
    named: str | None = None
    note: str | None = None


def look(environ: Mapping[str, str] = os.environ) -> Visible:
    """At this machine and this environment. If NVIDIA's tool is not installed, or fails, workers will tell."""
    given = environ.get(VARIABLE)
    if given is not None and (hidden := _hidden(given)):
        return Visible(hidden)
    if environ.get(_KEPT, "").lower() in ("1", "true"):
        return Visible(
            coded(
                "gpu.ray-does-not-set",
                f"run.device: {_KEPT}={environ[_KEPT]} keeps Ray from giving each worker a card of its own, so all "
                "would compute on the first; unset it",
            )
        )
    try:
        found, lost = cards.look()
    except FileNotFoundError:
        return Visible()
    except CardsUnknown as error:
        return Visible(unknown(error))
    return without_lost(given, found, lost) if lost else Visible(problem_of(given, found))


def for_ray(environ: Mapping[str, str] = os.environ, *, wanted: bool = True) -> tuple[int | None, str | None]:
    """How many GPUs there are for a private Ray to give its workers, and the product of the first. Ray would ask the driver in
    this process, which nobody can end if the driver hangs. None where NVIDIA's tool is not installed, or has an error of its
    own. wanted: whether any worker needs one; else nobody is asked. Raises ConfigurationError where the tool does not answer,
    or answers that no run can have a card."""
    if not wanted:
        return 0, None
    of_parts = gpus.for_ray(environ)
    try:
        found, _ = cards.look()
    except FileNotFoundError:
        return of_parts, None
    except CardsUnknown as error:
        if (problem := unknown(error)) is not None:
            raise ConfigurationError([problem]) from None
        return of_parts, None
    named = len(found) if VARIABLE not in environ else len(gpus.names(environ[VARIABLE]))
    return min(named, len(found)) if of_parts is None else of_parts, found[0].name if found else None


def free_bytes(environ: Mapping[str, str] = os.environ) -> list[int]:
    """The bytes of `with_free`."""
    return [size for _, size in with_free(environ)]


def with_free(environ: Mapping[str, str] = os.environ) -> list[tuple[Card, int]]:
    """Each card that a private Ray gives its workers, with the bytes of its memory that are free now. Called after `look` found
    no problem. Raises CardsUnknown where nobody tells it, as of a MIG device."""
    given = environ.get(VARIABLE)
    try:
        found, _ = cards.look()
        names = [_first_of(card) for card in found] if given is None else given.split(",")
        return [_free(name, found) for name in names]
    except FileNotFoundError:
        raise CardsUnknown(f"{cards.PROGRAM} is not installed") from None


def _free(name: str, found: Sequence[Card]) -> tuple[Card, int]:
    uuid = _meant(name, found)
    card = next((each for each in found if each.uuid == uuid), None)
    used = cards.measure(card.uuid).get("memory_bytes") if card is not None and not card.mig else None
    if card is None or used is None or not card.memory_bytes:
        raise CardsUnknown(f"{cards.PROGRAM} has no figure for {name}")
    return card, card.memory_bytes - round(used)


def without_lost(variable: str | None, cards_here: Sequence[Card], lost: Sequence[Lost]) -> Visible:
    """The cards that are left to a run. A name that is unknown may be that of a lost card, as these tell no UUID.
    variable: as of `problem_of`."""
    not_answering = "; ".join(f"the GPU at {each.place} does not answer ({each.why})" for each in lost)
    fault = card_faults.BY_CODE[cards.LOST]
    names = [_first_of(card) for card in cards_here] if variable is None else variable.split(",")
    lost_names = [
        name for name in names if _meant(name, cards_here) is None and _may_be_lost(name, len(cards_here) + len(lost))
    ]
    if len(lost_names) > len(lost) and any(not name.startswith(gpus.MIG) for name in lost_names):
        return Visible(problem_of(variable, cards_here))
    left_uuids = [_by_uuid(name, cards_here) for name in names if name not in lost_names]
    if not left_uuids:
        named = "" if variable is None else f" and {VARIABLE}={variable} names no other"
        return Visible(coded(cards.LOST, f"run.device: {not_answering}{named}; {fault.remedy}"))
    if problem := problem_of(",".join(left_uuids), cards_here):
        return Visible(problem)
    remaining = ", ".join(str(card) for card in cards_here if any(_meant(name, [card]) for name in left_uuids))
    return Visible(
        None,
        ",".join(left_uuids),
        f"{not_answering} and is left out; the run has the other GPUs: {remaining}; to have it back, {fault.remedy}",
    )


def unknown(error: CardsUnknown) -> str | None:
    """The refusal where the tool does not answer, or answers that no run can have a card; None for what may be its own error,
    since Ray and the workers ask otherwise."""
    if error.hangs:
        return coded(
            "gpu.no-answer",
            f"run.device: {error}: the driver of the GPUs hangs; look at dmesg for Xid, end what uses the cards, and reboot "
            "the machine or reset the card, or launch a new run with run.device=cpu",
        )
    fault = card_faults.named_in(str(error))
    if fault is not None:
        return coded(fault.code, f"run.device: {fault.sentence} ({error}); {fault.remedy}")
    if _NO_DRIVER not in str(error):
        return None
    return coded(
        "gpu.no-driver",
        f"run.device: {cards.PROGRAM} finds no driver: {error}; load NVIDIA's driver on this machine (for a container: start "
        "it with GPUs), or launch a new run with run.device=cpu",
    )


def problem_of(variable: str | None, cards_here: Sequence[Card]) -> str | None:
    """Why these names are no cards of this machine. variable: what names the cards (`VARIABLE`); None where it is not set."""
    if not cards_here:
        return coded(
            "gpu.none-here",
            f"run.device: {cards.PROGRAM} finds no GPU on this machine; start the run where there is one (for a container: "
            "give it GPUs), or launch a new run with run.device=cpu",
        )
    if variable is None:
        return None
    if hidden := _hidden(variable):
        return hidden
    names = variable.split(",")  # as Ray hands them to workers
    listed = ", ".join(map(str, cards_here))
    uuids = [_meant(name, cards_here) for name in names]
    for name, meant in zip(names, uuids, strict=True):
        if meant is None:
            return coded(
                "gpu.unknown-card",
                f"run.device: {VARIABLE}={variable} names {name!r}, which is no GPU of this machine; it has {listed}; name "
                "them by index or UUID, or unset it",
            )
    if len({*uuids}) < len(uuids):
        return coded(
            "gpu.named-twice",
            f"run.device: {VARIABLE}={variable} names a GPU twice, for which CUDA shows none at all; name each once, and let "
            "workers share it by cluster.gpus_per_worker=0.5",
        )
    return None


def _hidden(given: str) -> str | None:
    named = gpus.names(given)
    if given not in _HIDES and named and not named[0].startswith("-"):
        return None
    return coded(
        "gpu.hidden",
        f"run.device: {VARIABLE}={given!r} hides all GPUs; unset it, name those that the run may have, or "
        "launch a new run with run.device=cpu",
    )


def _first_of(card: Card) -> str:
    """The device that CUDA shows of it where it is named by its index."""
    return card.parts[0] if card.parts else card.uuid


def _may_be_lost(name: str, count: int) -> bool:
    """count: of all cards, the lost ones too."""
    return int(name) < count if name.strip().isdecimal() else name.startswith(("GPU-", gpus.MIG))


def _by_uuid(name: str, found: Sequence[Card]) -> str:
    """The name, where it is no index. One that is unknown stays, to be told of."""
    indices = {str(card.index): _first_of(card) for card in found}
    return indices.get(name.strip(), name)


def _meant(name: str, found: Sequence[Card]) -> str | None:
    """Which card or MIG device; None where that is none, or more than one."""
    if name.strip().isdecimal():
        return next((card.uuid for card in found if card.index == int(name)), None)
    if name.startswith(gpus.MIG):
        return next((part for card in found for part in card.parts if part == name), None)
    meant = [card.uuid for card in found if name.startswith("GPU-") and card.uuid.startswith(name)]
    return meant[0] if len(meant) == 1 else None
