"""The page computed on this machine and compared with what is known.

    found = check(cases=relevant({"convolution", "convolution_backward"}))
    found.differing               # names of cases that this processor computes otherwise

`known.json`: per case the hash that all processors came to on which the page was made (docs/portable.md names them), null where
they came to several, and the operators that it uses.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.numerics.portable.conformance import PAGE
from orchestrator.numerics.portable.conformance.drawing import results
from orchestrator.numerics.portable.used import recorded

FILE = Path(__file__).with_name("known.json")
_DIGITS = 12


@dataclass(frozen=True)
class Known:
    """A case of the page. hash: None for one that is not portable."""

    hash: str | None
    operators: frozenset[str]


@dataclass(frozen=True)
class Checked:
    """The comparison of this machine with the known hashes. hashes: what came out here, by case; differing: the names of
    portable cases that came out otherwise."""

    hashes: dict[str, str]
    differing: list[str]


@functools.cache
def known() -> dict[str, Known]:
    return {name: Known(entry["hash"], frozenset(entry["operators"])) for name, entry in _read()["cases"].items()}


def known_torch() -> str:
    """The version of torch with which the page was made; another one may compute otherwise."""
    return str(_read()["torch"])


def unportable() -> list[str]:
    """The cases whose bits depend on the processor."""
    return [name for name, entry in known().items() if entry.hash is None]


def concerned(operators: Set[str]) -> list[str]:
    """The cases that are not portable and may concern a pipeline with these operators. Operators of a case that no portable
    case has are suspects. A case is returned if a suspect of it is among these operators, or, if it has no suspects, if all
    its operators are."""
    sound = frozenset[str]().union(*(entry.operators for entry in known().values() if entry.hash is not None))
    found = []
    for name in unportable():
        suspects = known()[name].operators - sound
        if suspects & operators if suspects else known()[name].operators <= operators:
            found.append(name)
    return found


def relevant(operators: Set[str]) -> list[str]:
    """The portable cases that need no operator but these."""
    return [
        name
        for name, entry in known().items()
        if entry.hash is not None and entry.operators and entry.operators <= operators
    ]


def unknown(operators: Set[str]) -> list[str]:
    """The operators among these that no case has."""
    return sorted(set(operators).difference(*(entry.operators for entry in known().values())))


def check(cases: Iterable[str]) -> Checked:
    """Compute these cases; those that are not portable are not counted as differing."""
    hashes = {name: computed(name) for name in cases}
    return Checked(hashes, [name for name, found in hashes.items() if known()[name].hash not in (None, found)])


def computed(name: str) -> str:
    """The hash of what this processor makes of a case, with one thread and torch's deterministic algorithms."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's of what is new or slow
            return hash_of(results(PAGE[name], name))
    finally:
        torch.set_num_threads(threads)


def operators_of(name: str) -> list[str]:
    with recorded() as operators:
        results(PAGE[name], name)
    return sorted(operators)


def hash_of(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_DIGITS]


@functools.cache
def _read() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))
