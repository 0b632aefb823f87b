"""A Parquet file, decoded into memory when it is opened: rows are asked for in any order, and a row group is decoded as a
whole."""

from __future__ import annotations

from pathlib import Path

from orchestrator.data.files.readers.arrow import Columns, Rows


def parquet(path: Path, name: str, *, columns: Columns = None) -> Rows:  # noqa: ARG001
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, use_threads=False, partitioning=None)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"is no Parquet file: {error}") from error
    return Rows(table, columns, held=table.nbytes)
