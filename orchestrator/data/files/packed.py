"""`Packed`: documents of tokens, put one behind the other and cut into sequences of one length, to be read by number.

    Packed(documents, 1024, counts)[7]      {"tokens", "document", "position"}: int64, 1024 of each

Documents are packed within their file: a sequence reads one file, and what is left at the end of a file, less than a sequence,
is not trained on. `counts` says how many tokens each document has; `Packed.counted` finds that out, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.data.files.dataset import spread
from orchestrator.data.files.prefetch import SeveralPrefetchers
from orchestrator.errors import DataDamaged, PipelineRaised


class Packed:
    """A map-style data set. documents: one; length: tokens of a sequence; counts: tokens of each document, in order, an array
    (which may be mapped: `numpy.load(file, mmap_mode="r")`); tokens: makes the token numbers of a sample, None where a sample
    is that. Raises PipelineRaised."""

    def __init__(self, documents: Any, length: int, counts: Any, tokens: Callable[[Any], Any] | None = None) -> None:
        import numpy

        if length < 1 or len(counts) != len(documents):
            raise PipelineRaised(
                f"Packed: {len(counts)} counts for {len(documents)} documents, in sequences of {length} tokens",
                "give the number of tokens of each document, and a length of at least 1",
                code="data.packed-counts",
            )
        self._documents = documents
        self._made: Callable[[Any], Any] = tokens or (lambda sample: sample)
        self._length = length
        self._counts = counts
        files = getattr(documents, "file_lengths", None)
        lengths = numpy.array([len(counts)] if files is None else files)
        self._last = numpy.cumsum(lengths)  # documents, at the ends of files
        held = [
            int(counts[end - own : end].sum(dtype=numpy.int64)) for own, end in zip(lengths, self._last, strict=True)
        ]
        self.file_lengths: Sequence[int] = numpy.array(held) // length  # type: ignore[assignment]
        self._ends = numpy.cumsum(self.file_lengths)
        self._starts: tuple[int, Any] = (-1, None)  # of a file: at which token each of its documents begins

    @staticmethod
    def counted(documents: Any, file: str | Path, tokens: Callable[[Any], Any] | None = None) -> Any:
        """The numbers of tokens of all documents, int32, from a file that is written where it is not there (.npy, 4 bytes a
        document); then every document is read once. tokens: as of `Packed`."""
        import numpy

        path = Path(file)
        if not path.exists():
            counts = numpy.fromiter(
                (len(documents[i] if tokens is None else tokens(documents[i])) for i in range(len(documents))),
                numpy.int32,
                len(documents),
            )
            unfinished = path.with_name(f".{path.name}.{os.getpid()}.npy")
            numpy.save(unfinished, counts)
            unfinished.replace(path)
        return numpy.load(path, mmap_mode="r")

    @property
    def is_elsewhere(self) -> bool:
        """Whether its documents are fetched before they are read."""
        return bool(getattr(self._documents, "is_elsewhere", False))

    @property
    def listing(self) -> str | None:
        """As `Files.listing`."""
        found: str | None = getattr(self._documents, "listing", None)
        return found

    def need_room(self, together: int) -> None:
        """As `Files.need_room`."""
        if self.is_elsewhere:
            self._documents.need_room(together)

    def ahead(self, share: int) -> SeveralPrefetchers | None:
        """As `Files.ahead`."""
        ahead = self._documents.ahead(share) if self.is_elsewhere else None
        return None if ahead is None else SeveralPrefetchers([(ahead, self._documents_of)], share)

    def spread(self, most: int, files: int) -> list[int]:
        """As `Files.spread`."""
        return spread(self.file_lengths, most, files)

    def _documents_of(self, indices: Sequence[int]) -> list[int]:
        """One of each file that these sequences are of."""
        files = dict.fromkeys(int(self._ends.searchsorted(index, "right")) for index in indices)
        return [int(self._last[file]) - 1 for file in files]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        """tokens; document: the number of each token's document within the sequence, 0, 1, ...; position: of the token in its
        document, so that attention can stay within one."""
        import numpy

        if not 0 <= index < len(self):
            raise IndexError(index)
        file = int(self._ends.searchsorted(index, "right"))
        first = (index - (int(self._ends[file - 1]) if file else 0)) * self._length
        last, starts = first + self._length, self._starts_of(file)
        before = int(self._last[file - 1]) if file else 0
        found: list[Any] = []
        positions: list[Any] = []
        number = int(starts.searchsorted(first, "right")) - 1
        while number < len(starts) and starts[number] < last:
            begin, end = int(starts[number]), int(starts[number]) + int(self._counts[before + number])
            if end > max(first, begin):
                own = slice(max(first, begin) - begin, min(last, end) - begin)
                positions.append(numpy.arange(own.start, own.stop))
                found.append(self._tokens(before + number)[own].copy())  # the next may be put where these are
            number += 1
        return {
            "tokens": numpy.concatenate(found),
            "document": numpy.repeat(numpy.arange(len(found)), [len(each) for each in found]),
            "position": numpy.concatenate(positions),
        }

    def _tokens(self, document: int) -> Any:
        import numpy

        tokens = numpy.asarray(self._made(self._documents[document]), numpy.int64)
        count = int(self._counts[document])
        if tokens.shape != (count,):
            raise DataDamaged(
                f"Packed: document {document} has tokens of the shape {tokens.shape}; its count says {count}",
                "count them anew, and give documents as flat sequences of token numbers",
                code="data.packed-shape",
            )
        return tokens

    def _starts_of(self, file: int) -> Any:
        import numpy

        if self._starts[0] != file:
            first, last = (int(self._last[file - 1]) if file else 0), int(self._last[file])
            counts = numpy.asarray(self._counts[first:last], numpy.int64)
            self._starts = file, numpy.cumsum(counts) - counts
        return self._starts[1]
