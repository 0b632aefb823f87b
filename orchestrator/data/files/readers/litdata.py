"""A chunk of litData, by the package's own loaders: a sample is what was given to `litdata.optimize`.

How a chunk is read stands in `index.json` beside it; `index=` copies that into the options of the manifest. A sample of a
data set of tokens (`TokensLoader`) is `block_size` of them.

The list says by which serializer each part of a sample is read, and which containers hold the parts. Pickles execute code,
and so do graphs, in which litData keeps some; a `defaultdict` imports any module. So those that are known to execute nothing
stand here, and any other is read where the pipeline says `unsafe`.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from orchestrator.common.kernel_calls import memory_file
from orchestrator.common.tested_versions import LITDATA
from orchestrator.data.files.readers.listing import INDEX, Counts, Listed, Read, Unsafe, by_folder, told_by, untrusted
from orchestrator.errors import ConfigurationError

Config = Annotated[Any, Field(description="How chunks are read: `config` of index.json.")]
BlockSize = Annotated[int | None, Field(ge=1, description="The number of tokens in a sample.")]
_LEVEL = 4  # of compression, which is not asked for here
_LONGEST = 16  # bytes of a complex128
_LOADERS = ("PyTreeLoader", "TokensLoader")
_SERIALIZERS = (
    *("str", "text", "bool", "int", "float", "bytes", "file", "json"),
    *("numpy", "no_header_numpy", "tensor", "no_header_tensor"),
    *("pil", "image", "jpeg", "jpeg_array", "tifffile"),
)
_CONTAINERS = (
    *(None, "builtins.tuple", "builtins.list", "builtins.dict"),  # None: a part itself
    *("collections.namedtuple", "collections.OrderedDict", "collections.deque"),
)


def litdata(
    path: Path, name: str, *, config: Config = None, block_size: BlockSize = None, unsafe: Unsafe = False
) -> _Chunk:
    if config is None:
        raise ConfigurationError(
            ["reader.config: required by litdata"], "write the manifest anew (index=FOLDER)", code="data.litdata-config"
        )
    if not unsafe:
        _refuse_what_executes(name, config)
    return _Chunk(path, ".zstd." in name, config, block_size, _serializers(unsafe=unsafe))


def _refuse_what_executes(name: str, config: Mapping[str, Any]) -> None:
    """Raises ConfigurationError; ValueError for a list that cannot be understood."""
    try:
        parts, spec = list(config["data_format"]), config.get("data_spec")
        containers = set() if spec is None else _containers(json.loads(spec)[1])
    except (KeyError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"has a list that cannot be understood: {type(error).__name__}: {error}") from error
    for each in (part for part in parts if str(part).partition(":")[0] not in _SERIALIZERS):
        raise untrusted("litdata", name, f"has parts of the kind {each!r}")
    for each in containers - set(_CONTAINERS):
        raise untrusted("litdata", name, f"has samples in a {each!r}")


def _containers(spec: Mapping[str, Any]) -> set[str | None]:
    return {spec["type"]}.union(*map(_containers, spec["children_spec"]))


def _serializers(*, unsafe: bool) -> dict[str, Any]:
    """litData's own. It unpickles a part of the kind `file:pickle`, too, so those that execute must not be among them."""
    every = _inside("litdata.streaming.serializers", "_get_serializers")(None)
    return {name: each for name, each in every.items() if unsafe or name in _SERIALIZERS}


def _inside(module: str, name: str) -> Any:
    """A thing that litData has no public name for. Raises ConfigurationError where a version that was not tested has it no
    more, and ModuleNotFoundError where there is no litData."""
    importlib.import_module("litdata")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        if LITDATA.is_here:
            raise
        raise ConfigurationError(
            [f"reader: this version of litdata was not tested, and has no {module}.{name}"],
            f"install {LITDATA.wanted}",
            code="data.litdata-untested",
        ) from error


def listed(names: list[str], read: Read, options: Mapping[str, Any]) -> Listed:
    """The chunks that `index.json` names. Raises ConfigurationError, DataDamaged, OSError."""
    indices = [name for name in names if name.endswith(INDEX)]
    if not indices:
        raise ConfigurationError(
            [f"{INDEX} is missing, in which litData says how its chunks are read"], code="data.litdata-index"
        )
    configs = [told_by(index, read, _config) for index in indices]
    if any(config != configs[0] for config in configs):
        raise ConfigurationError(
            [f"the {INDEX} of the folders differ in how chunks are read"],
            "index one folder each",
            code="data.litdata-differs",
        )
    if configs[0]["item_loader"] == "TokensLoader" and options.get("block_size") is None:
        raise ConfigurationError(
            ["these are tokens: how many of them are a sample?"],
            "reader='{name: litdata, block_size: 1024}'",
            code="data.litdata-tokens",
        )
    return Listed(by_folder(names, read, _chunks, ".bin"), {**options, "config": configs[0]})


def _config(index: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(index["config"])
    if config["item_loader"] not in _LOADERS:
        raise ValueError(f"asks for {config['item_loader']}, not {' or '.join(_LOADERS)}")
    if config.get("encryption"):
        raise ValueError("says that chunks are encrypted, which is not read here")
    return config


def _chunks(index: Mapping[str, Any]) -> Counts:
    of_tokens = index["config"]["item_loader"] == "TokensLoader"
    return {str(chunk["filename"]): None if of_tokens else int(chunk["chunk_size"]) for chunk in index["chunks"]}


class _Chunk:
    def __init__(
        self,
        path: Path,  # of the chunk's file
        compressed: bool,  # whether the file is
        config: Mapping[str, Any],  # of the index
        block_size: int | None,  # tokens of a sample; None where chunks hold samples
        serializers: Mapping[str, Any],  # by name, those of litdata
    ) -> None:
        treespec_loads = _inside("litdata.utilities._pytree", "treespec_loads")
        self._memory = _inflated(path) if compressed else None
        self._path = str(path if self._memory is None else f"/proc/self/fd/{self._memory}")
        self.held = self._size = os.stat(self._path).st_size  # noqa: PTH116
        self._count, tokens = _counted(self._path, self._size, config, block_size)
        chunk = {"chunk_bytes": self._size, "chunk_size": self._count, "dim": tokens, "filename": path.name}
        spec = config["data_spec"]
        self._loader = _loader(config, block_size)
        described = {**config, "data_spec": None if spec is None else treespec_loads(spec)}
        self._loader.setup(described, [chunk], serializers)
        self._loader.set_mmap_allowed_chunks({0})
        self._samples = self._count if block_size is None else tokens // block_size

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> Any:
        try:
            return self._loader.load_item_from_chunk(number, 0, self._path, 0, self._size)
        except (struct.error, LookupError, TypeError) as error:
            raise ValueError(f"has damaged bytes in sample {number}: {error}") from error

    def close(self) -> None:
        self._loader.close(0)
        if self._memory is not None:
            os.close(self._memory)


def _loader(config: Mapping[str, Any], block_size: int | None) -> Any:
    from litdata.streaming.item_loader import PyTreeLoader, TokensLoader

    return TokensLoader(block_size) if config["item_loader"] == "TokensLoader" else PyTreeLoader(batch_decode=0)


def _counted(path: str, size: int, config: Mapping[str, Any], block_size: int | None) -> tuple[int, int]:
    """(items, tokens) of a chunk. Raises ValueError."""
    if config.get("compression_level") == "batch":
        return len(_framed(path)) - 1, 0
    ends = _ends(path)
    if not ends or ends[0] < 4 * (len(ends) + 1) or ends[-1] > size or ends != sorted(ends):
        raise ValueError(f"is no whole chunk of litData: it has {size} bytes")
    return len(ends) - 1, 0 if block_size is None else (ends[-1] - ends[0]) // _token_bytes(config)


def _ends(path: str) -> list[int]:
    """The places at which items end and the first one begins; empty if there is no room for them."""
    with open(path, "rb") as stream:
        count = int.from_bytes(stream.read(4), "little")
        ends = stream.read(4 * (count + 1))
    return list(struct.unpack(f"<{count + 1}I", ends)) if len(ends) == 4 * (count + 1) else []


def _framed(path: str) -> Sequence[int]:
    """The same of items that are compressed some at a time. Raises ValueError."""
    from litdata.streaming.framed_zstd import parse_framed_header

    content = Path(path).read_bytes()
    try:
        return list(parse_framed_header(content).offsets)
    except Exception as error:
        raise ValueError(f"is no whole chunk of litData: {error}") from error


def _token_bytes(config: Mapping[str, Any]) -> int:
    """How long a token is: by its number in the list, of which bytes of the longest type are read."""
    from litdata.streaming.serializers import NoHeaderNumpySerializer, NoHeaderTensorSerializer

    of_tensors = config["data_format"][0].startswith("no_header_tensor:")
    serializer = NoHeaderTensorSerializer() if of_tensors else NoHeaderNumpySerializer()
    serializer.setup(config["data_format"][0])
    return int(serializer.deserialize(bytes(_LONGEST)).itemsize)


def _inflated(path: Path) -> int:
    """A file in memory, by its descriptor, that has what a chunk holds which was compressed as a whole. Raises ValueError."""
    from litdata.streaming.compression import ZSTDCompressor

    try:
        compressor = ZSTDCompressor(_LEVEL)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            ["the chunks are compressed, which needs the package zstd"], "pip install zstd", code="data.litdata-zstd"
        ) from error
    try:
        content = compressor.decompress(path.read_bytes())
    except Exception as error:
        raise ValueError(f"is not compressed by zstd: {error}") from error
    memory = memory_file("litdata")
    with open(memory, "wb", closefd=False) as stream:
        stream.write(content)
    return memory
