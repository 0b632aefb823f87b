"""The Merkle tree of a trace: a few of its lines are checked against one hash, without the others.

    leaf   SHA-256(0x00, line)             the line as it stands in the file, without its end
    node   SHA-256(0x01, left, right)      left: the largest power of two of leaves that leaves some for the right

A head is `LINES:ROOT`, the number of lines and the hash of the root in hexadecimal. A path has the hashes of the largest
subtrees beside some lines that follow each other, from left to right; with one line alone they are those of an audit path.
Source: RFC 6962, section 2.1. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

_LEAF, _NODE = b"\x00", b"\x01"
_EMPTY = hashlib.sha256().digest()
_DIGITS = 64


def leaf(line: bytes) -> bytes:
    return hashlib.sha256(_LEAF + line).digest()


def head(leaves: Iterable[bytes]) -> str:
    """The head of the Merkle tree over these leaves, of which few hashes are kept at a time. leaves: hashes of lines."""
    count, whole = 0, list[bytes]()  # roots of the largest complete trees, from left to right
    for each in leaves:
        count += 1
        whole.append(each)
        for _ in range((count & -count).bit_length() - 1):
            _join(whole)
    while len(whole) > 1:
        _join(whole)
    return f"{count}:{(whole[0] if whole else _EMPTY).hex()}"


def _join(roots: list[bytes]) -> None:
    """The last two become one."""
    right = roots.pop()
    roots[-1] = _node(roots[-1], right)


def parsed(told: str) -> tuple[int, bytes]:
    """The number of lines and the root of a head. Raises ValueError."""
    lines, _, root = told.partition(":")
    if not (lines.isascii() and lines.isdigit() and len(root) == _DIGITS):
        raise ValueError(f"{told!r} is no head of a trace: it is LINES:ROOT, such as 3000:{'0f' * 4}...")
    return int(lines), bytes.fromhex(root)


def path(leaves: Sequence[bytes], begin: int, end: int) -> list[bytes]:
    """Beside the lines from `begin` up to `end`, exclusive. Raises ValueError where there are no such lines."""
    _check(len(leaves), begin, end)
    return list(_beside(leaves, begin, end))


def holds(trace_head: str, begin: int, line_hashes: Sequence[bytes], beside: Sequence[bytes]) -> bool:
    """Whether these hashes of lines are those from line `begin` on of the trace that has this head. Raises ValueError for what
    is no head."""
    lines, root = parsed(trace_head)
    try:
        _check(lines, begin, begin + len(line_hashes))
        unused_lines, unused_hashes = iter(line_hashes), iter(beside)
        rebuilt = _rebuilt(lines, begin, begin + len(line_hashes), unused_lines, unused_hashes)
    except (ValueError, StopIteration):
        return False
    return rebuilt == root and next(unused_lines, None) is None and next(unused_hashes, None) is None


def _tree(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = _split(len(leaves))
    return _node(_tree(leaves[:half]), _tree(leaves[half:]))


def _beside(leaves: Sequence[bytes], begin: int, end: int) -> Iterator[bytes]:
    """begin, end: may lie outside."""
    if end <= 0 or begin >= len(leaves):
        yield _tree(leaves)
    elif len(leaves) > 1:
        half = _split(len(leaves))
        yield from _beside(leaves[:half], begin, end)
        yield from _beside(leaves[half:], begin - half, end - half)


def _rebuilt(lines: int, begin: int, end: int, some: Iterator[bytes], beside: Iterator[bytes]) -> bytes:
    """The hash of a tree of so many lines. Raises StopIteration where hashes are missing."""
    if end <= 0 or begin >= lines:
        return next(beside)
    if lines == 1:
        return next(some)
    half = _split(lines)
    left = _rebuilt(half, begin, end, some, beside)
    return _node(left, _rebuilt(lines - half, begin - half, end - half, some, beside))


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _split(lines: int) -> int:
    """The largest power of two that is smaller."""
    return 1 << ((lines - 1).bit_length() - 1)


def _check(lines: int, begin: int, end: int) -> None:
    if not 0 <= begin < end <= lines:
        raise ValueError(f"of {lines} lines there are none from {begin} up to {end}")
