"""The cost of a launch: processor time of every process that it starts, and of the commands that start none.

    python -m benchmarks.launch [--repeats 5] [--steps 20] [--workers 2]

Each launch of the digits is one in a project folder of its own, as a user begins and as tests do it, so that a store is made;
a second one in that folder finds it. Counted is what the kernel has noted of each process, user and system together, looked at
every few hundredths of a second until it ends; the least of the repeats counts, because other programs only add. Steps are part
of it: 20 of them take a worker some tenths of a second. The figures of a process that ends between two looks lack that time.

Wall is from the start of the command to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
KINDS = {  # what the name of a process begins with -> as what it is counted
    "ray::MemberActor": "worker",
    "ray::IDLE": "idle worker",
    "ray::DashboardAgent": "agents of Ray",
    "ray::RuntimeEnvAgent": "agents of Ray",
    "raylet": "raylet",
    "gcs_server": "gcs_server",
    "git": "git",
}
PROJECT = ("conf", "pipelines", "data", "dvc.yaml", "dvc.lock", ".gitignore")
VERBS = {
    "--help": ("--help",),
    "help=KEY": ("help=cluster.workers",),
    "runs": ("runs",),
    "show=true": ("conf=digits", "show=true"),
    "plan=true": ("conf=digits", "plan=true"),
    "compare": ("compare=last,last",),
}
_LOOK_S = 0.02
PATIENCE_S = 1800.0  # of one command
_SUBREAPER = 36  # prctl.h: what the command's processes leave behind becomes a child of this one
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Spent:
    """The cost of one command: seconds on the wall, and of the processors by kind and process."""

    wall: float = 0.0
    of: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def total(self) -> float:
        return sum(sum(each) for each in self.of.values())


@dataclass
class _Seen:
    """parent: when it was first seen; own, waited: seconds of its own, and of children that it has waited for."""

    parent: int
    name: str = ""
    own: float = 0.0
    waited: float = 0.0


class Watch:
    """Looks at the processes that come from this one."""

    def __init__(self) -> None:
        self._foreign: set[int] = set()
        self._ours: dict[int, _Seen] = {}

    def look(self) -> None:
        parents: dict[int, int] = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or (pid := int(entry.name)) in self._foreign or pid == os.getpid():
                continue
            try:
                stat = Path(entry.path, "stat").read_text()
                name = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue
            _, parent, *values = stat.rpartition(")")[2].split()
            parents[pid] = int(parent)
            seen = self._ours.setdefault(pid, _Seen(int(parent)))
            seen.name = (
                name.replace(b"\0", b" ").decode(errors="replace").strip() or seen.name
            )  # none when it has ended
            seen.own, seen.waited = (_TICK_S * (int(values[at]) + int(values[at + 1])) for at in (9, 11))
        for pid in parents:
            if not self._comes_from_us(pid, parents):
                self._foreign.add(pid)
        for pid in self._foreign & self._ours.keys():
            del self._ours[pid]

    def spent(self, command: int) -> dict[str, list[float]]:
        """Processor seconds of each process, by kind. command: the process of the command itself."""
        found: dict[str, list[float]] = defaultdict(list)
        for pid, seen in self._ours.items():
            found["driver" if pid == command else _kind(seen.name)].append(seen.own)
        ended = (
            seen for pid, seen in self._ours.items() if seen.parent == command and not Path(f"/proc/{pid}").exists()
        )
        found["between two looks"].append(
            max(0.0, self._ours[command].waited - sum(each.own + each.waited for each in ended))
        )
        return found

    def _comes_from_us(self, pid: int, parents: Mapping[int, int]) -> bool:
        while pid in parents:
            pid = parents[pid]
        return pid == os.getpid() or pid in self._ours


def _kind(name: str) -> str:
    program = name.split(" ")[0].rpartition("/")[2]
    if "orchestrator.cluster.forkserver.server" in name:
        return "fork server"
    begins = next((kind for start, kind in KINDS.items() if name.startswith(start) or program == start), None)
    return begins or (f"other: {name[:60]}" if "default_worker" not in name else "idle worker")


def environment() -> dict[str, str]:
    """The environment of a command, without variables of the caller's own Ray, MLflow or test, and without one that has each
    process compile all of orchestrator anew."""
    left_out = ("RAY_", "MLFLOW_", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**inherited, "PYTHONPATH": str(REPOSITORY), "DVC_NO_ANALYTICS": "1"}


def run(command: Sequence[str], folder: Path) -> str:
    """The output of a command to its end. Exits when it fails, with its own message or the end of what it said."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    if done.returncode:
        own = next(
            (line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr.strip()[-1000:]
        )
        sys.exit(f"`{' '.join(command[1:])}` exited with {done.returncode}: {own}")
    return done.stdout


def outcome(folder: Path, *command: str) -> dict[str, Any]:
    """The outcome of a launch."""
    said = run((sys.executable, "-m", "orchestrator", *command, "output=json"), folder)
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told


def outcome_of(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The outcome of a launch in the repository by these settings, which are written to the folder."""
    (folder / "run.yaml").write_text(json.dumps(settings))
    return outcome(REPOSITORY, f"conf={folder}/run.yaml")


def measure(command: Sequence[str], project: Path) -> Spent:
    """Run a command of the orchestrator to its end. Exits when it fails."""
    watch, began = Watch(), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *command],
        cwd=project,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watch.look()
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        watch.look()
        time.sleep(_LOOK_S)
    wall = time.perf_counter() - began
    watch.look()
    spent = watch.spent(process.pid)
    _, error = process.communicate()
    with contextlib.suppress(ChildProcessError):  # what has come to this process
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{error}")
    return Spent(wall, spent)


@contextmanager
def project() -> Iterator[Path]:
    """A folder with the digits and their data, in a repository of its own, and no run yet."""
    with tempfile.TemporaryDirectory(prefix="launch-", dir="/tmp") as name:
        folder = Path(name)
        for each in PROJECT:
            source, target = Path(each), folder / each
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            copy(source, target)
        of_whom = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@benchmark.invalid"]
        for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "as it is"]):
            subprocess.run(["git", *of_whom, *arguments], cwd=folder, check=True)
        yield folder


def least(spent: Sequence[Spent]) -> list[tuple[str, int, float]]:
    """(kind, processes, the least processor time of all of them together), the most expensive first."""
    kinds = {
        kind: max(len(each.of.get(kind, ())) for each in spent) for kind in {kind for one in spent for kind in one.of}
    }
    rows = [(kind, count, min(sum(each.of.get(kind, ())) for each in spent)) for kind, count in kinds.items()]
    return sorted(rows, key=lambda row: -row[2])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args(arguments)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    command = ("conf=digits", f"run.steps={chosen.steps}", f"cluster.workers={chosen.workers}", "output=json")
    first: list[Spent] = []
    later: list[Spent] = []
    verbs: dict[str, list[Spent]] = defaultdict(list)
    for _ in range(chosen.repeats):
        with project() as folder:
            first.append(measure(command, folder))
            later.append(measure(command, folder))
            for name, verb in VERBS.items():
                verbs[name].append(measure(verb, folder))
    for title, spent in (("the first launch of a project", first), ("a later one", later)):
        print(f"{title:<44}{'processes':>10}{'seconds':>9}")
        for kind, count, seconds in least(spent):
            print(f"  {kind:<42}{count:>10}{seconds:>9.2f}")
        print(f"  {'together':<42}{'':>10}{min(each.total for each in spent):>9.2f}")
        print(f"  {'wall':<42}{'':>10}{min(each.wall for each in spent):>9.2f}\n")
    print(f"{'a command that starts nothing':<44}{'processor':>10}{'wall':>9}")
    for name, spent in verbs.items():
        print(f"  {name:<42}{min(e.total for e in spent):>10.2f}{min(e.wall for e in spent):>9.2f}")


if __name__ == "__main__":
    main()
