"""The identity of a run: one hash over all that determines its result, and a hash per part to see which part differs.

Two runs of one identity must have one digest (law 2). It leaves out what may differ between them: workers and topology,
losses and joins, folder, names, host, user, time zone. Under `reduction: fast` workers and topology are among the settings
that determine (rule F2). Environments are a set: how many nodes there were, and which did what, is no part of it. The
settings of an asynchronous run do not determine its result, so the record of its sync barriers (`barriers.py`) is a part,
too; and so is what live streams gave, and which shards sat out while their site was away. Hashed is JSON with sorted keys and
no spaces; a float is written as Python writes it, so as to be read as the same bits.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

FORMAT = 1  # a change of what is hashed, or how, is another format, and its identities are other identities
PARTS = ("code", "data", "settings", "environment", "initial_parameters")
BARRIERS = "rests"  # the part that only asynchronous runs have
STREAMS = "streams"  # the part of runs that have learned from live streams

SAT_OUT = "sat_out"  # the part of runs in which a site was away

Parts = dict[str, str]


def parts(
    code_tree: str,
    elsewhere: Mapping[str, str],
    data: Mapping[str, str],
    settings: Mapping[str, Any],
    environment: Iterable[Mapping[str, Any]],
    initial_parameters: str,
) -> Parts:
    """A hash for each of PARTS.

    code_tree: the id of the snapshot's tree, or "none" without git; elsewhere: hashes of the modules that were imported from
    other files than the snapshot's; data: declared path -> md5; settings: the flat ones that determine the result; environment:
    the bits of every node; initial_parameters: a digest (rule B5).
    """
    nodes = sorted({canonical(node) for node in environment})
    return {
        "code": _sha256(canonical([code_tree, elsewhere])) if elsewhere else code_tree,
        "data": _sha256(canonical({posixpath.normpath(path): md5 for path, md5 in data.items()})),
        "settings": _sha256(canonical(settings)),
        "environment": _sha256("\n".join(nodes)),
        "initial_parameters": initial_parameters,
    }


def of(parts: Mapping[str, str]) -> str:
    """The identity of these parts."""
    names = (*PARTS, *(name for name in (BARRIERS, STREAMS, SAT_OUT) if name in parts))
    return _sha256(canonical({"format": FORMAT, **{name: parts[name] for name in names}}))


def absences(sat_out: Mapping[int, Iterable[int]]) -> Parts:
    """The part that says who sat out, by step; none where nobody did."""
    plain = {str(step): list(shards) for step, shards in sat_out.items()}
    return {SAT_OUT: _sha256(canonical(plain))} if plain else {}


def canonical(value: Any) -> str:
    """JSON that is the same for equal values, whatever the order of their keys. Raises TypeError for what is not plain data."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal. A NaN, which an argument of a pipeline may be, is equal to itself here."""
    return bool(one == other) or canonical(one) == canonical(other)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
