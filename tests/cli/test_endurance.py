"""A run of many steps whose workers are killed again and again comes to the digest of an undisturbed one. The driver and the
worker that lives on hold as many threads and descriptors, and as much memory, at its end as at its beginning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.alone import alone
from tests.cli.watching import WatchedRun
from tests.projects import make_project

STEPS, KILLS = 20_000, 11
RUN = ("conf=tiny", f"run.steps={STEPS}", "output=json")
TINY = """
run: {name: tiny, seed: 1}
pipeline: {target: "tests.worker.pipelines:Small", args: {rows: 200}}
data: {shards: 2, batch_size: 20}
cluster: {workers: 2}
checkpoint: {every: 2000}
optimizer: {name: sgd, lr: 0.01}
evaluation: {every: 5000}
trace: {digest_every: 1000}
"""


class Held:
    """The threads, descriptors and memory that a process holds."""

    def __init__(self, pid: int) -> None:
        proc = Path("/proc") / str(pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        self.threads = int(status["Threads"])
        self.resident_mb = int(status["VmRSS"].split()[0]) / 1024
        self.descriptors = len(os.listdir(proc / "fd"))  # noqa: PTH208

    def assert_as(self, before: Held, who: str) -> None:
        told = f"{who}: {vars(before)} before, {vars(self)} after"
        assert abs(self.threads - before.threads) <= 3, told
        assert abs(self.descriptors - before.descriptors) <= 6, told
        assert self.resident_mb - before.resident_mb <= 24, told


@pytest.mark.long
@pytest.mark.ray
def test_many_steps_and_many_kills_leave_digest_and_memory_as_they_were(tmp_path: Path) -> None:
    project = make_project(tmp_path, [])
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tiny.yaml").write_text(TINY)
    project.commit()
    run = WatchedRun(project, *RUN)
    held: list[Held] = []
    for kill in range(KILLS):
        run.wait_for_steps((kill + 1) * STEPS // (KILLS + 2))
        run.wait(lambda: len(run.living()) == 2 or None)
        living = run.living()
        run.kill(living[max(living)])
        run.wait_for("worker_lost", kill + 1)
        if kill in (1, KILLS - 1):
            run.wait(lambda: len(run.living()) == 2 or None)
            held += [Held(run.process.pid), Held(run.living()[0])]
    done = run.end()
    assert done.code == 0, done.err
    assert sum(each["steps_lost"] for each in done.report["recoveries"]) <= KILLS  # that only the dead had applied
    held[2].assert_as(held[0], "driver")
    held[3].assert_as(held[1], "worker 0")
    assert done.report["digest"] == alone(project, "tiny", *RUN[1:]).digest
    assert project.leftovers() == []
