"""The claim after a file of a run was damaged: the resume ends with the right bits, or says why it cannot go on. Pure.

Bits, tracebacks and what is left behind are looked at as with any other fault (`campaign.checks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from campaign.kinds import storage

_NOT_USED = "is not used"  # of a checkpoint (`checkpoint.catalog`)


def findings(fault: Mapping[str, Any], code: int | None) -> Iterator[str]:
    """fault: as it was told, with the file's name, what the resume with the damaged file said, and its code. code: of the last
    resume, which had the file as it was where that one was refused."""
    told = fault["damage"]
    where = f"{told['what']} {told['file']}, {told['how']} at {told['place']}"
    if told["code"]:
        if told["file"] not in told["said"]:
            yield f"message: a resume was refused, and the file is not named ({where}): {told['said'][-500:]}"
        if told["what"] in storage.OF_CHECKPOINT:
            yield f"damage: the checkpoint before was not taken ({where}): {told['said'][-500:]}"
        if code:
            yield f"damage: with the file as it was the resume ends with {code} ({where})"
    elif told["what"] in storage.OF_CHECKPOINT and _NOT_USED not in told["said"]:
        yield f"message: a resume took a damaged checkpoint, or does not tell that it did not ({where})"
