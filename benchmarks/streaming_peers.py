"""One rank that reads an epoch by a library's own way, for `benchmarks.streaming`: python -m benchmarks.streaming_peers LIBRARY
FOLDER STATES IDS RANK WORLD BATCH STOP.

It writes the samples of each step to IDS, and its state to STATES; at step STOP (0: never) it waits to be killed. If STATES
holds states, it goes on from them, as the library's documentation says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEED = 7
Save = Callable[[int], None]
Reader = Callable[[Path, Path, int, int, int], tuple[Iterator[list[int]], Save]]


def mosaicml(folder: Path, states: Path, rank: int, world: int, batch: int) -> tuple[Iterator[list[int]], Save]:  # noqa: ARG001
    """StreamingDataset and StreamingDataLoader; the state is one for all ranks."""
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=str(folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=batch)
    loader = StreamingDataLoader(dataset, batch_size=batch)
    state = states / "all.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))

    def save(_step: int) -> None:
        if rank == 0:
            _put(state, json.dumps(loader.state_dict()))

    return (each["id"].tolist() for each in loader), save


def litdata(folder: Path, states: Path, rank: int, world: int, batch: int) -> tuple[Iterator[list[int]], Save]:  # noqa: ARG001
    """StreamingDataset and StreamingDataLoader; the state is one for all ranks. With a worker, since without one it does not
    resume (litData #24)."""
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder / "litdata"), shuffle=True, seed=SEED, drop_last=False)
    loader = StreamingDataLoader(dataset, batch_size=batch, num_workers=1)
    state = states / "all.pt"
    if state.exists():
        loader.load_state_dict(torch.load(state, weights_only=False))

    def save(_step: int) -> None:
        if rank == 0:
            torch.save(loader.state_dict(), state)

    return (each["id"].tolist() for each in loader), save


def datasets(folder: Path, states: Path, rank: int, world: int, batch: int) -> tuple[Iterator[list[int]], Save]:
    """An IterableDataset with a shuffle buffer, split by node; a state of each rank."""
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    files = sorted(str(path) for path in (folder / "jsonl").glob("*.jsonl"))
    whole = load_dataset("json", data_files=files, streaming=True, split="train", cache_dir=str(states))
    mine = split_dataset_by_node(whole.shuffle(seed=SEED, buffer_size=100), rank=rank, world_size=world).batch(batch)
    state = states / f"{rank}.json"
    if state.exists():
        mine.load_state_dict(json.loads(state.read_text()))
    return (each["id"] for each in mine), lambda _step: _put(state, json.dumps(mine.state_dict()))


def torchdata(folder: Path, states: Path, rank: int, world: int, batch: int) -> tuple[Iterator[list[int]], Save]:
    """StatefulDataLoader with StatefulDistributedSampler; a state of each rank."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    numbers = _numbers(folder)
    sampler = StatefulDistributedSampler(numbers, num_replicas=world, rank=rank, shuffle=True, seed=SEED)
    loader: Any = StatefulDataLoader(numbers, batch_size=batch, sampler=sampler)
    state = states / f"{rank}.pt"
    if state.exists():
        loader.load_state_dict(torch.load(state, weights_only=False))
    return (each.tolist() for each in loader), lambda _step: torch.save(loader.state_dict(), state)


def accelerate(folder: Path, states: Path, rank: int, world: int, batch: int) -> tuple[Iterator[list[int]], Save]:  # noqa: ARG001
    """A DataLoader that Accelerator prepares, and `skip_first_batches`; the state is the number of steps."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed
    from torch.utils.data import DataLoader

    set_seed(SEED)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    loader = accelerator.prepare(DataLoader(_numbers(folder), batch_size=batch, shuffle=True))  # type: ignore[arg-type]
    state = states / "all.json"
    if state.exists():
        loader = accelerator.skip_first_batches(loader, json.loads(state.read_text()))

    def save(step: int) -> None:
        if rank == 0:
            _put(state, json.dumps(step))

    return (each.tolist() for each in loader), save


READERS: dict[str, Reader] = {
    "mosaicml-streaming": mosaicml,
    "litdata": litdata,
    "datasets": datasets,
    "torchdata": torchdata,
    "accelerate": accelerate,
}


def clean(library: str) -> None:
    """Remove what killed ranks have left behind, before others start."""
    if library == "mosaicml-streaming":
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()


def write(library: str, folder: Path, samples: int, files: int) -> None:
    """The samples 0, 1, ... in the library's own form, in so many files."""
    per_file = samples // files
    if library == "mosaicml-streaming":
        from streaming import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"id": "int"}, size_limit=40 * per_file) as out:
            for number in range(samples):
                out.write({"id": number})
    elif library == "litdata":
        from litdata.streaming.cache import Cache

        cache = Cache(str(folder / "litdata"), chunk_size=per_file)
        for number in range(samples):
            cache[number] = {"id": number}
        cache.done()
        cache.merge()
    else:
        place = folder / "jsonl"
        place.mkdir(exist_ok=True)
        for file in range(files):
            rows = range(file * per_file, samples if file == files - 1 else (file + 1) * per_file)
            (place / f"{file:03}.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in rows))


def _numbers(folder: Path) -> list[int]:
    rows = [line for path in sorted((folder / "jsonl").glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(row)["id"] for row in rows]


def _put(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def main() -> None:
    library, *places, rank, world, batch, stop = sys.argv[1:]
    folder, states, ids = map(Path, places)
    if int(world) > 1:
        import torch.distributed

        torch.distributed.init_process_group("gloo")  # by the variables that torchrun sets
    batches, save = READERS[library](folder, states, int(rank), int(world), int(batch))
    if int(world) > 1:
        torch.distributed.barrier()  # nobody saves a state that another one still looks for
    with ids.open("a") as out:
        for step, found in enumerate(batches, 1):
            out.write(f"{json.dumps(found)}\n")
            out.flush()
            os.fsync(out.fileno())
            if step == int(stop):
                save(step)
                out.write("saved\n")
                out.flush()
                signal.pause()


if __name__ == "__main__":
    main()
