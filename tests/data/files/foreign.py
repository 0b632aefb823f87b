"""Writes data sets with the packages whose formats `Files` reads, and compares sample by sample: `python -m
tests.data.files.foreign FORMAT FOLDER` ends with 0 where all are the same. It needs what `make streams` installs."""

from __future__ import annotations

import pickle
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy

warnings.simplefilter("ignore")  # of the packages, and before they are imported

from orchestrator import Files  # noqa: E402
from orchestrator.data.files.index import index  # noqa: E402
from orchestrator.errors import ConfigurationError, DataDamaged  # noqa: E402

BLOCK = 16
ODD = Fraction(1, 3)  # neither format has a way of its own for it


def sample(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "text": f"sample {number} " * (number % 3 + 1),
        "x": numpy.arange(4, dtype=numpy.float32) + number,
    }


def odd(_: int) -> dict[str, Any]:
    return {"x": ODD}


def raw(_: int) -> dict[str, Any]:
    return {"x": pickle.dumps(ODD)}


def tokens(number: int) -> Iterator[Any]:
    import torch

    yield torch.arange(number * 50, number * 50 + 50, dtype=torch.int32)


def write(kind: str, folder: str) -> None:
    """A data set of 100 samples."""
    {"mds": _write_mds, "litdata": _write_litdata}[kind](Path(folder))


def mds(folder: Path) -> None:
    from streaming import StreamingDataset

    for compression in (None, "zstd", "gz", "br"):
        at = folder / f"{compression}"
        _write_mds(at, compression)
        _compare(at, StreamingDataset(remote=str(at), local=str(folder / f"read-{compression}"), batch_size=1))
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "pickles"), columns={"x": "pkl"}) as writer:
        writer.write({"x": ODD})
    _only_where_it_is_asked_for(folder / "pickles", "mds", {"x": ODD})


def _write_mds(folder: Path, compression: str | None = None) -> None:
    from streaming import MDSWriter

    columns = {"id": "int", "text": "str", "x": "ndarray:float32:4"}
    with MDSWriter(out=str(folder), columns=columns, compression=compression, size_limit=1500) as writer:
        for number in range(100):
            writer.write(sample(number))


def litdata(folder: Path) -> None:
    import litdata

    for level in (None, "batch", "sample", "chunk"):
        _write_litdata(folder / f"{level}", level)
        shutil.copytree(folder / f"{level}", folder / f"read-{level}")  # it removes what it has decompressed
        _compare(folder / f"{level}", litdata.StreamingDataset(str(folder / f"read-{level}")))
    _damage_is_told(folder / "None" / "chunk-0-0.bin")
    at = folder / "tokens"
    litdata.optimize(
        tokens, list(range(20)), str(at), chunk_size=128, num_workers=1, item_loader=litdata.TokensLoader()
    )
    _compare(at, litdata.StreamingDataset(str(at), item_loader=litdata.TokensLoader(BLOCK)), block_size=BLOCK)
    litdata.optimize(odd, [0], str(folder / "odd"), chunk_size=13, num_workers=1)
    _only_where_it_is_asked_for(folder / "odd", "litdata", {"x": ODD})
    _a_file_is_bytes(folder / "kind")


def _damage_is_told(chunk: Path) -> None:
    """Damage in the places of items is told when files are listed, and damage in an item when that is read."""
    whole = chunk.read_bytes()
    second = int.from_bytes(whole[8:12], "little")
    chunk.write_bytes(whole[:8] + b"\xff\xff\xff\0" + whole[12:])
    _is_damaged(lambda: index(str(chunk.parent), None, {}), f"{chunk} is no whole chunk of litData")
    chunk.write_bytes(whole[:second] + b"\x07" + whole[second + 1 :])
    index(str(chunk.parent), None, {})
    files = Files(chunk.parent)
    number = next(number for number, file in enumerate(files.manifest.files) if file.path == chunk.name)
    first = int(sum(files.file_lengths[:number]))
    _is_damaged(lambda: files[first + 1], f"{chunk} has damaged bytes in sample 1")
    files.close()
    chunk.write_bytes(whole)


def _is_damaged(act: Callable[[], Any], said: str) -> None:
    try:
        act()
    except DataDamaged as error:
        assert said in error.message, error.message  # noqa: PT017
    else:
        raise AssertionError(f"nobody said: {said}")


def _a_file_is_bytes(folder: Path) -> None:
    """litData's own loader unpickles a part of the kind `file:pickle`."""
    import litdata

    litdata.optimize(raw, [0], str(folder), chunk_size=13, num_workers=1)
    listed = folder / "index.json"
    listed.write_text(listed.read_text().replace('"bytes"', '"file:pickle"'))
    index(str(folder), None, {})
    files = Files(folder)
    assert files[0] == {"x": pickle.dumps(ODD)}
    files.close()


def _only_where_it_is_asked_for(folder: Path, reader: str, expected: Any) -> None:
    """Files that can execute code are read only if both the index and the pipeline say `unsafe`."""
    for ask in (lambda: index(str(folder), None, {}), lambda: Files(folder)):
        try:
            ask()
        except ConfigurationError as error:
            assert "unsafe=True" in str(error.remedy)  # noqa: PT017
        else:
            raise AssertionError(f"{folder} was read")
        index(str(folder), reader, {"unsafe": True})
    files = Files(folder, unsafe=True)
    assert files[0] == expected
    files.close()


def _write_litdata(folder: Path, level: str | None = None) -> None:
    import litdata

    how = {} if level is None else {"compression": "zstd", "compression_level": level}
    litdata.optimize(sample, list(range(100)), str(folder), chunk_size=13, num_workers=1, **how)


def webdataset(folder: Path) -> None:
    import webdataset

    with webdataset.ShardWriter(str(folder / "part-%04d.tar"), maxcount=7, verbose=0) as writer:
        for number in range(30):
            written = {"txt": f"text {number}", "cls": number % 5, "meta.json": {"n": number}}
            writer.write({"__key__": f"a/s{number:03d}", **written})
    read = webdataset.WebDataset([str(path) for path in sorted(folder.glob("*.tar"))], shardshuffle=False)
    aside = ("__url__", "__local_path__")
    _compare(folder, [{key: value for key, value in each.items() if key not in aside} for each in read])


def _compare(folder: Path, expected: Sequence[Any], **options: Any) -> None:
    """In an order that jumps between the files."""
    index(str(folder), "litdata" if options else None, options)
    files = Files(folder)
    assert len(files) == len(expected)
    assert len(files.file_lengths) > 1
    for number in numpy.random.default_rng(0).permutation(len(files)).tolist():
        assert _same(files[number], expected[number]), number
    files.close()


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(numpy.array_equal(numpy.asarray(one), numpy.asarray(other)))


FORMATS: dict[str, Callable[[Path], None]] = {"mds": mds, "litdata": litdata, "webdataset": webdataset}

if __name__ == "__main__":
    FORMATS[sys.argv[1]](Path(sys.argv[2]))
