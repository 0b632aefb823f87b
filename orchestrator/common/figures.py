"""Numbers of bytes, and tables, as text for a person."""

from __future__ import annotations

from collections.abc import Sequence


def megabytes(size_bytes: int) -> str:
    """A number of bytes for a person."""
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 10_000_000 else f"{size_bytes / 1e6:.1f} MB"


def sized(size_bytes: float) -> str:
    """The same in three digits, whatever the size."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= one:
            return f"{size_bytes / one:.3g} {unit}"
    return f"{size_bytes:.0f} bytes"


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> str:
    """Rows of cells as text in columns: the first so many begin at the left, the others end at the right. All begin at the
    left if no number is given."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        padded = (
            cell.ljust(width) if left is None or place < left else cell.rjust(width) for place, (cell, width) in cells
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
