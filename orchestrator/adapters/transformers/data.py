"""Training and validation samples: a folder of `datasets`, files, or what a function of the user's returns.

Files are read by pyarrow, and nothing is written: several workers begin at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.adapters.transformers.library import own, package
from orchestrator.errors import ConfigurationError

_FORM = (
    "a folder that save_to_disk has written, a .jsonl, .csv or .parquet file, module:function, {train: ..., validation: ...} "
    "of folders and files, or {from: ..., args: {...}, train: SPLIT, validation: SPLIT}"
)
_KEYS = ("from", "args", "train", "validation")


class Loaded(NamedTuple):
    """The sets of a run. others: the names of splits from which a person may choose one to evaluate, where there is none."""

    train: Any
    validation: Any = None
    others: tuple[str, ...] = ()


def load(given: Any) -> Loaded:
    """Training and validation set, the second None where there is none. given: `pipeline.args.data`. Raises
    ConfigurationError."""
    entry = dict(given) if isinstance(given, Mapping) else {"from": given}
    if unknown := [key for key in entry if key not in _KEYS]:
        raise ConfigurationError(
            [f"pipeline.args.data: there is no {unknown[0]!r}"], f"give {_FORM}", code="transformers.data-form"
        )
    if "from" not in entry:
        return Loaded(_set("train", entry.get("train")), _set("validation", entry.get("validation")))
    source = entry["from"]
    is_function = isinstance(source, str) and ":" in source and not Path(source).exists()
    found = own("data", source)(**entry.get("args", {})) if is_function else _place(source)
    if isinstance(found, tuple) and len(found) == 2:
        return Loaded(*found)
    if not isinstance(found, Mapping):
        return Loaded(found)
    train, validation = entry.get("train", "train"), entry.get("validation")
    for name in (train, *([validation] if validation else [])):
        if not isinstance(name, str) or name not in found:
            raise ConfigurationError(
                [f"pipeline.args.data: it has no split {name!r}, but {', '.join(map(str, found))}"],
                "name them: data: {from: ..., train: SPLIT, validation: SPLIT}",
                code="transformers.no-such-split",
            )
    held_out = found.get(validation or "validation")
    others = tuple(str(name) for name in found if name != train) if held_out is None else ()
    return Loaded(found[train], held_out, others)


def _set(key: str, given: Any) -> Any:
    """The samples at one place, None for no validation set. Several training sets are those of a mixture. Raises
    ConfigurationError."""
    if given is None and key == "validation":
        return None
    found = _place(given)
    if isinstance(found, Mapping) and (key == "validation" or "train" in found):
        names = list(map(str, found))
        raise ConfigurationError(
            [f"pipeline.args.data.{key}: {given!r} has the splits {', '.join(names)}"],
            f"name one of its folders, such as {given}/{key if key in names else names[-1]}, or data: {{from: {given}, "
            "train: SPLIT, validation: SPLIT}",
            code="transformers.several-splits",
        )
    return found


def _place(given: Any) -> Any:
    place = Path(str(given))
    if place.is_dir() and ((place / "state.json").is_file() or (place / "dataset_dict.json").is_file()):
        return package("datasets").load_from_disk(str(place))
    read = _READERS.get(place.suffix)
    if place.is_file() and read is not None:
        return Rows(read(place))
    what = "there is no such file or folder" if not place.exists() else "it is none of these"
    raise ConfigurationError(
        [f"pipeline.args.data: {given!r}: {what}; nothing is fetched from a hub while a run starts"],
        f"give {_FORM}",
        code="transformers.data",
    )


def _jsonl(place: Path) -> Any:
    from pyarrow import json

    return json.read_json(place)


def _csv(place: Path) -> Any:
    from pyarrow import csv

    return csv.read_csv(place)


def _parquet(place: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(place)


_READERS: Mapping[str, Callable[[Path], Any]] = {
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".csv": _csv,
    ".parquet": _parquet,
}


class Rows(Sequence[dict[str, Any]]):
    """The rows of a table as mappings."""

    def __init__(self, table: Any) -> None:
        self._table = table

    @property
    def column_names(self) -> list[str]:
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        return self._table.slice(int(index), 1).to_pylist()[0]
