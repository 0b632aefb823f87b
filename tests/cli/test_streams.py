"""Files from a true server of S3, through small caches: the digest of the same samples in memory, whatever happens."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.data.files.index import index
from tests.cli.watching import WatchedRun
from tests.cluster.conftest import wait_for_line
from tests.projects import REPOSITORY, Done, Project, packages

pytestmark = [pytest.mark.long, pytest.mark.ray]

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
FILES, BLOCK = 30, 2
AWAY_S = 20

PIPELINE = """
import json, time, torch
from pathlib import Path
from torch import nn
from torch.nn import functional as F
from orchestrator import Files, Pipeline


class InMemory:
    def __init__(self, folder):
        listed = json.loads((Path(folder) / "files.json").read_text())["files"]
        self.file_lengths = [samples for _, samples, _, _ in listed]
        lines = [line for name, *_ in listed for line in (Path(folder) / name).read_text().splitlines()]
        self._samples = [json.loads(line) for line in lines]

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, index):
        return self._samples[index]


class Rows(Pipeline):
    def __init__(self, place, takes=0.0, in_memory=False):
        self._place, self._takes, self._in_memory = place, takes, in_memory

    def model(self):
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def datasets(self):
        return (InMemory if self._in_memory else Files)(self._place), None

    def collate(self, items):
        time.sleep(self._takes)
        return torch.tensor([each["x"] for each in items]), torch.tensor([each["y"] for each in items])

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])
"""
CONF = f"""
pipeline: {{target: "rows:Rows"}}
data: {{shards: 5, batch_size: 40, order: {{name: blocks, files: {BLOCK}}}}}
run: {{epochs: 2}}
optimizer: {{name: adam, lr: 0.01}}
"""


@dataclass(frozen=True)
class Streams:
    """A project, and a server of S3 that is started and killed. limit: of a cache that holds a block and nothing more."""

    project: Project
    store: Path
    limit: int
    port: int
    servers: list[subprocess.Popen[str]]

    @property
    def local(self) -> str:
        return f"pipeline.args.place={self.store / 'corpus'}"

    @property
    def remote(self) -> tuple[str, ...]:
        cache = self.project.path.parent / "cache"
        return (
            "pipeline.args.place=s3://bucket/corpus",
            f"data.cache_folder={cache}",
            f"data.cache_gb={self.limit / 1e9}",
        )

    def serve(self, port: int) -> str:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server", str(port), str(self.store)],
            cwd=REPOSITORY,
            env={**KEYS, "PYTHONPATH": f"{packages('s3')}:{REPOSITORY}", "PATH": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.servers.append(server)
        return wait_for_line(server, "url ").split()[1]

    def stop(self) -> None:
        _end(self.servers.pop())

    def most_on_disk(self, over: threading.Event) -> int:
        """The most bytes of files that the cache has held until `over` is set, without its own note of how many they are."""
        cache, most = self.project.path.parent / "cache", 0
        while not over.wait(0.02):
            with contextlib.suppress(FileNotFoundError):
                most = max(most, sum(path.stat().st_size for path in cache.iterdir() if path.name != "taken"))
        return most


def _end(server: subprocess.Popen[str]) -> None:
    """Its stdout is read, and closed, by the thread that has waited for its line."""
    server.kill()
    server.wait()
    assert server.stdin is not None
    server.stdin.close()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    folder = tmp_path_factory.mktemp("streams")
    project = Project(folder / "project")
    (project.path / "conf").mkdir(parents=True)
    (project.path / "rows.py").write_text(PIPELINE)
    (project.path / "conf" / "rows.yaml").write_text(CONF)
    project.commit()
    corpus = folder / "store" / "corpus"
    corpus.mkdir(parents=True)
    drawn = random.Random(1)
    for number in range(FILES):
        rows = [{"x": [drawn.random() for _ in range(8)], "y": drawn.randrange(4), "z": "z" * 2000} for _ in range(40)]
        (corpus / f"{number:02}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[: 30 + number % 10]))
    index(str(corpus), None, {})
    sizes = sorted(path.stat().st_size for path in corpus.glob("*.jsonl"))
    made = Streams(project, folder / "store", sum(sizes[-BLOCK:]), 0, [])
    url = made.serve(0)
    variables = {**KEYS, "AWS_ENDPOINT_URL": url, "PYTHONPATH": f"{REPOSITORY}:{packages('s3')}"}
    try:
        yield replace(made, project=replace(project, variables=variables), port=int(url.rpartition(":")[2]))
    finally:
        for server in made.servers:
            _end(server)


def _launch(streams: Streams, *arguments: str) -> Done:
    done = streams.project.run("conf=rows", "output=json", *arguments)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err
    return done


@pytest.fixture(scope="module")
def expected(streams: Streams) -> str:
    """The digest of a run on the same samples, map-style and in memory, in the same order."""
    done = _launch(streams, streams.local, "pipeline.args.in_memory=true", "cluster.workers=1")
    return str(done.report["digest"])


@pytest.mark.parametrize(("workers", "loaders"), [(1, 0), (2, 2), (3, 0), (5, 1)])
def test_one_digest_from_s3_through_a_cache_of_one_block(
    workers: int, loaders: int, streams: Streams, expected: str
) -> None:
    over, most = threading.Event(), [0]
    looking = threading.Thread(target=lambda: most.append(streams.most_on_disk(over)))
    looking.start()
    try:
        done = _launch(streams, *streams.remote, f"cluster.workers={workers}", f"data.loaders={loaders}")
    finally:
        over.set()
        looking.join()
    assert done.report["digest"] == expected
    assert 0 < most[-1] <= streams.limit
    assert sum(each["fetched"] for each in done.report["bytes_read"].values()) > 0
    assert streams.project.leftovers() == []


def test_a_digest_from_files_of_this_machine(streams: Streams, expected: str) -> None:
    assert _launch(streams, streams.local, "cluster.workers=2", "data.loaders=2").report["digest"] == expected


def test_a_store_that_is_away_for_a_while_is_waited_for(streams: Streams, expected: str) -> None:
    """Longer than a step may take: a worker that waits for it is not taken for dead, nor is one that waits for this worker."""
    run = WatchedRun(
        streams.project,
        *("conf=rows", "output=json", *streams.remote),
        *("cluster.workers=2", "cluster.step_timeout_s=5", "pipeline.args.takes=0.02"),
    )
    run.wait_for_steps(3)
    streams.stop()
    time.sleep(AWAY_S)  # what is tested: it is away for that long
    streams.serve(streams.port)
    done = run.end()
    assert done.report["digest"] == expected
    assert (done.report["generations"], done.report["recoveries"]) == (1, [])
    assert "waiting for s3://bucket/corpus/" in done.err
    assert "asked again in 4 s" in done.err
    assert streams.project.leftovers() == []


def test_a_kill_and_a_resume_on_others_change_no_bit(streams: Streams, expected: str) -> None:
    run = WatchedRun(
        streams.project,
        *("conf=rows", "output=json", *streams.remote, "checkpoint.every=5"),
        *("cluster.workers=2", "pipeline.args.takes=0.02"),
    )
    run.wait_for("checkpoint_saved", 2)
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate()
    done = streams.project.run(f"resume={run.run_id}", "output=json", "cluster.workers=3", "data.loaders=1")
    assert done.code == 0, done.err
    assert done.report["digest"] == expected
    assert streams.project.leftovers() == []


def test_an_asynchronous_run_is_repeated_from_its_record(streams: Streams) -> None:
    first = _launch(streams, *streams.remote, "cluster.workers=2", "sync=asp", "optimizer.name=sgd")
    again = streams.project.run(f"rerun={first.report['run_id']}", "output=json", "cluster.workers=1")
    assert again.code == 0, again.err
    assert again.report["verdict"] == "exact"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("missing", "cannot be read"),
        ("truncated", "bytes with the MD5"),
        ("changed", "bytes with the MD5"),
    ],
)
def test_a_file_that_is_not_what_was_listed_ends_the_run_by_its_name(
    harm: str, said: str, streams: Streams, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    (store / "corpus").mkdir(parents=True)
    for path in itertools.chain(streams.store.glob("corpus/*")):
        (store / "corpus" / path.name).write_bytes(path.read_bytes())
    victim = store / "corpus" / "07.jsonl"
    content = victim.read_bytes()
    changed = {"missing": None, "truncated": content[:-9], "changed": content[:-9] + b" " + content[-8:]}[harm]
    victim.unlink() if changed is None else victim.write_bytes(changed)
    other = replace(streams, store=store, servers=[])
    url = other.serve(0)
    try:
        project = replace(streams.project, variables={**streams.project.variables, "AWS_ENDPOINT_URL": url})
        done = project.run("conf=rows", "output=json", *other.remote[:1], f"data.cache_folder={tmp_path / 'cache'}")
    finally:
        other.stop()
    assert done.code == 1
    assert f"s3://bucket/corpus/07.jsonl {'cannot' if changed is None else 'has'}" in done.err
    assert said in done.err
    assert "Traceback" not in done.err
