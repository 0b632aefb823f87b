"""Stage `prepare_stream`: the source code of sympy, which comes with torch, as documents in many files, in data/stream.

    train/00.jsonl ... 63.jsonl     a document a line: {"name", "text"}, of one module, 4,000 characters at most
    validation/00.jsonl             the modules held out, one in a hundred
    train.npy, validation.npy       int32: the bytes of each document, by which they are packed
    train/files.json, validation/files.json     what each file holds: `python -m orchestrator index=data/stream/train`

The same bytes with every copy of the version of sympy that constraints.txt pins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import sympy

FOLDER = Path("data/stream")
FILES = 64
HELD_OUT = 100
MOST = 4000


def main() -> None:
    root = Path(sympy.__file__).parent
    modules = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    documents = [(name, list(_pieces((root / name).read_text(encoding="utf-8")))) for name in modules]
    _write("validation", [documents[::HELD_OUT]])
    rest = [each for number, each in enumerate(documents) if number % HELD_OUT]
    _write("train", [rest[file::FILES] for file in range(FILES)])


def _pieces(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if lines and sum(map(len, lines)) + len(line) > MOST:
            yield "".join(lines)
            lines = []
        lines.append(line)
    if lines:
        yield "".join(lines)


def _write(part: str, files: list[list[tuple[str, list[str]]]]) -> None:
    (FOLDER / part).mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    for number, documents in enumerate(files):
        rows = [{"name": name, "text": piece} for name, pieces in documents for piece in pieces]
        counts += [len(row["text"].encode()) for row in rows]
        (FOLDER / part / f"{number:02}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )
    numpy.save(FOLDER / f"{part}.npy", numpy.array(counts, numpy.int32))


if __name__ == "__main__":
    main()
