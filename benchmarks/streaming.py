"""Data that streams: what a kill and a resume with another number of workers lose and repeat, beside other libraries; and what
streaming costs here.

    python -m benchmarks.streaming [--peers FOLDER] [--only NAME ...] [--steps 60] [--rounds 3]

    lost, repeated    an epoch of 1,920 samples in 40 files, 24 rows a step. All ranks are killed by SIGKILL at step 20, with
                      their states saved just then, and go on with 3 in place of 2 (then 4 in place of 2) by what the library
                      documents. Lost: samples that no step had; repeated: those that several had. Ours is the command itself,
                      its driver and workers killed, and `resume=`. Other libraries read without workers of their loaders, but
                      for litData, which does not resume so
    throughput        steps per second of `pipelines.stream` with two loaders: from files, and from the same samples in memory
    first batch       of step 1,000, from the opening of the data set to the micro-batch: from a folder, and from a server of S3
    order             its memory for 1e9 samples in 100,000 files, and the time of a micro-batch of 64
    bytes per node    of the files that the shards of a node read in an epoch, in proportion to the node's share

--peers: folders, which `pip install --target` fills with the libraries; `make streams` makes .venv/streams, with two of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARIES = ("mosaicml-streaming", "litdata", "datasets", "torchdata", "accelerate")
SAMPLES, FILES, ROWS, KILLED = 1920, 40, 24, 20  # no rank has rows too few, which some libraries fill with others
PATIENCE_S = 300.0
PIPELINE = """\
import json, pathlib
import torch
from orchestrator import Files, Pipeline

class Numbers(Pipeline):
    def __init__(self, place, told):
        self.place, self.told = place, pathlib.Path(told)
    def model(self):
        return torch.nn.Linear(1, 1)
    def datasets(self):
        return Files(self.place), None
    def loss(self, model, batch, step):
        numbers = batch["id"].tolist()
        if model.training and numbers:  # computed again it writes the same again
            (self.told / f"{step}-{min(numbers)}.json").write_text(json.dumps(numbers))
        return model(batch["id"][:, None].float() / 2000).mean()
"""


class Story(NamedTuple):
    """The consequences of a kill: samples that no step had, and that several had."""

    lost: int
    repeated: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming")
    parser.add_argument("--peers", default=os.environ.get("PYTHONPATH", ""))
    parser.add_argument("--only", nargs="*", default=[*LIBRARIES, "ours", "throughput", "first", "order", "bytes"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        for name in given.only:
            for line in _section(name, Path(place), given):
                print(line, flush=True)
    return 0


def _section(name: str, place: Path, given: argparse.Namespace) -> Iterator[str]:
    if name in LIBRARIES:
        version = _version(name, given.peers)
        for before, after in ((2, 3), (2, 4)):
            folder = place / f"{name}-{after}"
            yield f"{name} {version}, {before} ranks, then {after}: {_said(_peer, name, folder, before, after, given.peers)}"
    elif name == "ours":
        for before, after in ((2, 3), (2, 4)):
            folder = place / f"ours-{after}"
            yield f"orchestrator, {before} workers, then {after}: {_said(_ours, folder, before, after)}"
    elif name == "throughput":
        yield from _throughput(given.steps, given.rounds)
    elif name == "first":
        yield from _first_batch(place)
    elif name == "order":
        yield from _order()
    else:
        yield from _bytes()


def _said(measure: Any, *arguments: Any) -> str:
    try:
        story: Story = measure(*arguments)
    except _DidNotGoOn as error:
        return str(error)
    return f"{story.lost} samples lost, {story.repeated} repeated, of {SAMPLES}"


class _DidNotGoOn(Exception):
    pass


def _version(library: str, peers: str) -> str:
    found = {
        each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions(path=peers.split(":"))
    }
    return found.get(library, "")


def _peer(library: str, folder: Path, before: int, after: int, peers: str) -> Story:
    for name in ("states", "data"):
        (folder / name).mkdir(parents=True)
    variables = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY}:{peers}",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    place = str(folder / "data")
    written = (
        f"import pathlib; from benchmarks.streaming_peers import write; write({library!r}, pathlib.Path({place!r}), "
    )
    written += f"{SAMPLES}, {FILES})"
    subprocess.run(
        [sys.executable, "-c", written],
        env=variables,
        check=True,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    steps = [*_life(library, folder, before, KILLED, variables), *_life(library, folder, after, 0, variables)]
    return _counted(number for rows in steps for number in rows)


def _life(library: str, folder: Path, world: int, stop: int, variables: dict[str, str]) -> list[list[int]]:
    """The samples that all ranks read; killed once all have saved their state at step `stop`, or else read to the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cleaned = f"from benchmarks.streaming_peers import clean; clean({library!r})"
    subprocess.run([sys.executable, "-c", cleaned], env=variables, check=True, cwd=folder, capture_output=True)
    ranks, ids, logs = [], [], []
    for rank in range(world):
        ids.append(folder / f"ids-{world}-{rank}-{stop}.jsonl")
        logs.append((folder / f"log-{world}-{rank}-{stop}").open("w+"))
        command = [
            sys.executable,
            "-m",
            "benchmarks.streaming_peers",
            library,
            *map(str, (folder / "data", folder / "states", ids[-1])),
        ]
        own = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        numbers = [str(number) for number in (rank, world, ROWS // world, stop)]
        environment = {**variables, **{key: str(value) for key, value in own.items()}}
        ranks.append(
            subprocess.Popen([*command, *numbers], env=environment, cwd=folder, stdout=logs[-1], stderr=logs[-1])
        )
    try:
        _wait(ranks, ids, logs, stop)
    finally:
        for each in ranks:
            each.send_signal(signal.SIGKILL)
            each.wait()
    return [json.loads(line) for file in ids for line in file.read_text().splitlines() if line != "saved"]


def _wait(ranks: list[subprocess.Popen[bytes]], ids: list[Path], logs: list[Any], stop: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if stop and all(file.exists() and "saved" in file.read_text() for file in ids):
            return
        if not stop and all(each.poll() == 0 for each in ranks):
            return
        failed = [log for each, log in zip(ranks, logs, strict=True) if each.poll() not in (None, 0)]
        if failed:
            failed[0].seek(0)
            said = [line for line in failed[0].read().splitlines() if line.strip()]
            raise _DidNotGoOn(f"it did not go on: {said[-1][:160] if said else 'without a word'}")
        time.sleep(0.05)
    raise _DidNotGoOn(f"it did not end within {PATIENCE_S:.0f} s")


def _counted(numbers: Iterator[int]) -> Story:
    times = Counter(numbers)
    return Story(sum(times[number] == 0 for number in range(SAMPLES)), sum(count > 1 for count in times.values()))


def _ours(folder: Path, before: int, after: int) -> Story:
    """Its workers and its driver are killed at step 20 or soon after; the checkpoint is where it is."""
    from benchmarks.streaming_peers import write

    told = folder / "told"
    told.mkdir(parents=True)
    write("ours", folder, SAMPLES, FILES)
    (folder / "numbered.py").write_text(PIPELINE)
    conf = {
        "run": {"epochs": 1, "name": "numbers"},
        "pipeline": {"target": "numbered:Numbers", "args": {"place": str(folder / "jsonl"), "told": str(told)}},
        "data": {"shards": 12, "batch_size": ROWS, "order": {"name": "blocks", "files": 4}},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "checkpoint": {"every": 5},
        "cluster": {"workers": before},
    }
    (folder / "numbers.yaml").write_text(json.dumps(conf))
    run = [sys.executable, "-m", "orchestrator"]
    os.environ.pop("PYTHONPATH", None)  # what other libraries bring is no part of this
    subprocess.run([*run, f"index={folder / 'jsonl'}"], cwd=folder, check=True, capture_output=True)
    began = subprocess.Popen(
        [*run, "conf=numbers.yaml"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not list(told.glob(f"{KILLED}-*.json")):
        if began.poll() is not None:
            raise _DidNotGoOn("the run ended before it was killed")
        time.sleep(0.01)
    os.killpg(began.pid, signal.SIGKILL)
    began.wait()
    done = subprocess.run(
        [*run, "resume=last", f"cluster.workers={after}"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise _DidNotGoOn(f"it did not go on: {done.stderr.strip().splitlines()[-1]}")
    return _counted(number for file in told.glob("*.json") for number in json.loads(file.read_text()))


def _throughput(steps: int, rounds: int) -> Iterator[str]:
    found: dict[str, list[float]] = {"files": [], "memory": []}
    for _ in range(rounds):
        for name, target in (("files", "pipelines.stream:Stream"), ("memory", "benchmarks.streaming_memory:InMemory")):
            command = [
                sys.executable,
                "-m",
                "orchestrator",
                "conf=stream",
                f"pipeline.target={target}",
                f"run.steps={steps}",
            ]
            options = ["evaluation.every=null", "data.loaders=2", "output=json", "cluster.workers=1"]
            done = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1])["steps_per_s"])
    ratios = [a / b for a, b in zip(found["files"], found["memory"], strict=True)]
    yield (
        f"throughput: {statistics.median(ratios):.3f} of that from memory ({', '.join(f'{each:.3f}' for each in ratios)}; "
        f"{statistics.median(found['files']):.2f} and {statistics.median(found['memory']):.2f} steps/s)"
    )


def _first_batch(place: Path) -> Iterator[str]:
    for name, where in (("folder", "data/stream"), *_s3(place)):
        code = (
            "import sys, time; from orchestrator.data.files import cache; import torch\n"
            f"cache.use(10**9, {str(place / 'cache')!r}); begin = time.perf_counter()\n"
            "from orchestrator.data.order import Epochs; from orchestrator.data.sampling.orders import ORDERS\n"
            "from orchestrator.common.values import Steps\n"
            f"from pipelines.stream import Stream; train, _ = Stream({where!r}).datasets()\n"
            "epochs = Epochs(1, len(train), Steps.constant(64), 8, train.file_lengths)\n"
            "found = ORDERS.build('blocks', {'files': 4})(epochs).indices(1000, 3)\n"
            "[train[index] for index in found]; print(time.perf_counter() - begin)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        yield f"first batch, {name}: {float(done.stdout):.3f} s, imports of the data set in it"


def _s3(place: Path) -> list[tuple[str, str]]:
    """The same data at a server of S3, where there is one: `AWS_ENDPOINT_URL` and `STREAM_BUCKET` say so."""
    bucket = os.environ.get("STREAM_BUCKET")
    return [("S3", f"s3://{bucket}/stream")] if bucket and place else []


def _order() -> Iterator[str]:
    import numpy

    from orchestrator.common.values import Steps
    from orchestrator.data.order import Epochs
    from orchestrator.data.sampling.orders import ORDERS

    files = numpy.full(100_000, 10_000)
    tracemalloc.start()
    epochs = Epochs(1, 10**9, Steps.constant(64 * 8), 8, files)  # type: ignore[arg-type]
    order = ORDERS.build("blocks", {"files": 64})(epochs)
    order.indices(12_345, 3)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    begin = time.perf_counter()
    for step in range(200):
        order.indices(20_000 + step, 3)
    each_ms = (time.perf_counter() - begin) * 5
    yield f"order of 1e9 samples in 100,000 files: {held / 1e6:.2f} MB held, {each_ms:.2f} ms a micro-batch"


def _bytes() -> Iterator[str]:
    import numpy

    from orchestrator.common.values import Steps
    from orchestrator.data.order import Epochs
    from orchestrator.data.sampling.orders import ORDERS

    lengths = numpy.random.RandomState(0).randint(50, 150, 400)
    ends = numpy.cumsum(lengths)
    epochs = Epochs(1, int(ends[-1]), Steps.constant(64), 8, lengths)  # type: ignore[arg-type]
    order = ORDERS.build("blocks", {"files": 8})(epochs)
    worst = 0.0
    for shards in ((0, 1, 2, 3), (4, 5, 6, 7)):
        found = {
            int(ends.searchsorted(i, "right"))
            for step in range(epochs.steps_per_epoch)
            for shard in shards
            for i in order.indices(step, shard)
        }
        worst = max(worst, float(lengths[list(found)].sum()) / (float(ends[-1]) / 2))
    yield f"bytes per node: {worst:.3f} of its share, 8 shards on 2 nodes, 400 files"


if __name__ == "__main__":
    sys.exit(main())
