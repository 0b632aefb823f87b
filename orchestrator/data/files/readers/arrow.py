"""An Arrow file (IPC), or a stream in one, as Hugging Face writes it; mapped: a dictionary per row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

_MAGIC: Final = b"ARROW1"
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream; one that was cut off between two messages ends like another

Columns = Annotated[tuple[str, ...] | None, Field(description="Which columns a sample has; null: all.")]


def arrow(path: Path, name: str, *, columns: Columns = None) -> Rows:  # noqa: ARG001
    import pyarrow

    try:
        source = pyarrow.memory_map(str(path))
        if source.read(len(_MAGIC)) == _MAGIC:
            table = pyarrow.ipc.open_file(source).read_all()
        else:
            source.seek(0)
            table = pyarrow.ipc.open_stream(source).read_all()
            source.seek(source.size() - len(_END))
            if source.read() != _END:
                raise ValueError("is a stream of Arrow without an end: whoever wrote it did not close it")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"is no Arrow file: {error}") from error
    return Rows(table, columns, held=0)


class Rows:
    """Rows of a table of Arrow as dictionaries."""

    def __init__(self, table: Any, columns: tuple[str, ...] | None, held: int) -> None:
        missing = [name for name in columns or () if name not in table.column_names]
        if missing:
            raise ValueError(f"has no column {missing[0]}; it has {', '.join(table.column_names)}")
        self._table = table if columns is None else table.select(list(columns))
        self.held = held

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: self._table[name][number].as_py() for name in self._table.column_names}

    def close(self) -> None:
        self._table = None
