"""Steps over a network: two and four hosts as network namespaces, exact sums beside torch's DDP over gloo, in turns.

    python -m benchmarks.hosts [--hosts 2,4] [--rate 1,10] [--models mlp,characters] [--conditions even,shards,slow]
        [--topologies ring,peer_to_peer,hierarchical] [--workers 2] [--steps 20] [--rounds 1] [--set transport.tls=true]
        [--picture docs/hosts.svg]

Needs root, ip and tc. Each host is a namespace with a wire of so many Gbit/s in each direction to a common bridge, 0.1 ms long
where the kernel has netem; all share this machine's processors. Ours is a launch that joins a Ray with a node on each host,
with all that a launch does; DDP is a process per worker. 8 rows a shard, AdamW.

even     a shard per worker
shards   four shards per worker; DDP adds up four micro-batches before it sends
slow     the same; a micro-batch sleeps 50 ms, on the last host 150 ms

Steps per second: of the median step, from first micro-batch to first micro-batch. MB: what crosses the busiest wire in its
busier direction in a step, headers and all that Ray says included. The digest of each launch is compared with that of one
worker on one host.

Hosts have no processors of their own. Computations on many hosts at once take turns here.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import pages
from benchmarks.namespaces import Network, address_of, interface, wired
from benchmarks.wired import WARM_UP, marks_of, spans_of
from orchestrator.comm.topologies import TOPOLOGIES
from tests.cluster.conftest import new_access, wait_for_line

REPOSITORY = Path(__file__).resolve().parent.parent
ROWS = 8  # of a shard
PORT, DDP_PORT = 6379, 29500
ADDRESS = f"{address_of(0)}:{PORT}"
DELAY = "0.1ms"
WAYS = ("ring", "peer_to_peer", "hierarchical")
MODELS = {"mlp": "benchmarks.wired:Mlp", "characters": "benchmarks.wired:Text"}
DDP = "DDP over gloo"


@dataclass(frozen=True)
class Condition:
    """shards: per worker; pace: of a micro-batch (`wired`), with `slow` for the last host."""

    shards: int
    sleep_s: float = 0.0
    factor: float = 1.0

    def pace(self, hosts: int) -> dict[str, Any]:
        return {"sleep_s": self.sleep_s, "factor": self.factor, "slow": hosts - 1 if self.factor > 1 else -1}


CONDITIONS = {"even": Condition(1), "shards": Condition(4), "slow": Condition(4, 0.05, 3.0)}


class Case(NamedTuple):
    """The case in which contestants meet."""

    hosts: int
    rate: int
    model: str
    condition: str


@dataclass(frozen=True)
class Course:
    """How one contestant went. step_s: the median; bytes: a step's, of the busiest wire in its busier direction."""

    step_s: float
    bytes: float


Found = dict[tuple[Case, str], list[Course]]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parsed(arguments)
    if os.geteuid():
        sys.exit("benchmarks.hosts needs root: it makes network namespaces")
    found: Found = {}
    digests: dict[tuple[str, int], str] = {}
    for hosts in chosen.hosts:
        with wired(hosts, f"{chosen.rate[0]}gbit", DELAY) as network, ray_on(network, chosen.workers) as nodes:
            for note in network.notes:
                print(f"note: {note}", file=sys.stderr)
            for rate, model, condition in itertools.product(chosen.rate, chosen.models, chosen.conditions):
                network.limit(f"{rate}gbit", DELAY)
                case = Case(hosts, rate, model, condition)
                meet(network, nodes.variables, case, chosen, digests, found)
    print(table(found))
    if chosen.picture is not None:
        draw(found, chosen.picture)
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts")
    parser.add_argument("--hosts", type=_numbers, default="2,4")
    parser.add_argument("--rate", type=_numbers, default="1,10", help="Gbit/s of each wire and direction")
    parser.add_argument("--models", type=_among(MODELS), default="mlp,characters")
    parser.add_argument("--conditions", type=_among(CONDITIONS), default="even,shards,slow")
    parser.add_argument("--topologies", type=_among(TOPOLOGIES), default=",".join(there(WAYS)))
    parser.add_argument("--workers", type=int, default=2, help="of each host")
    parser.add_argument("--steps", type=int, default=20, help="that are counted")
    parser.add_argument("--rounds", type=int, default=1, help="in each of which all take their turn")
    parser.add_argument("--set", action="append", default=[], help="a further setting of the launches, key=value")
    parser.add_argument("--picture", type=Path, help="an SVG file: steps per second over those of DDP")
    return parser.parse_args(arguments)


def there(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in TOPOLOGIES]


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _among(known: Any) -> Any:
    def split(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return split


@dataclass(frozen=True)
class Nodes:
    """A Ray on hosts."""

    network: Network
    workers: int  # that a host has room for
    variables: dict[str, str]  # the environment with which a driver may join it
    folder: str  # of its head's files
    gpus: int | None = None  # that a host is said to have, which may be those of another one; None: as Ray finds them

    def start(self, host: int) -> None:
        """A node, until it is there. The Ray of host 0 is the head, and the first."""
        # The others see an empty folder where the first has its Ray's files, as on another machine.
        hidden = "" if host == 0 else f"mount -t tmpfs none {self.folder} && "
        gpus = "" if self.gpus is None else f"--num-gpus={self.gpus} "
        common = f"{gpus}--num-cpus={self.workers} --object-store-memory=83886080 --disable-usage-stats --block"
        head = f"--head --port={PORT} --include-dashboard=false --temp-dir={self.folder}"
        joins = f"--address={ADDRESS}" if host else head
        ray = f"{sys.executable} -m ray.scripts.scripts start {common} {joins} --node-ip-address={address_of(host)}"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        variables = {**self.variables, "GLOO_SOCKET_IFNAME": interface(host)}
        process = self.network.start(host, ["sh", "-c", f"{hidden}exec {ray}"], variables, **pipes)
        wait_for_line(process, "Ray runtime started")


@contextlib.contextmanager
def ray_on(
    network: Network,
    workers: int,
    hosts: int | None = None,
    more: Mapping[str, str] = {},
    gpus: int | None = None,
) -> Iterator[Nodes]:
    """A Ray with a node on each host, or on the first ones. more: variables of its processes and drivers; workers, gpus: as
    `Nodes` has them."""
    access = {**new_access(), "RAY_worker_niceness": "0", **more}
    folder = tempfile.mkdtemp(prefix="hosts-", dir="/tmp")  # short, because Unix sockets lie in it
    nodes = Nodes(network, workers, environment(access), folder, gpus)
    try:
        for host in range(len(network.names) if hosts is None else hosts):
            nodes.start(host)
        yield nodes
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**inherited, **more, "PYTHONPATH": path}


def meet(
    network: Network,
    access: dict[str, str],
    case: Case,
    chosen: argparse.Namespace,
    digests: dict[tuple[str, int], str],
    found: Found,
) -> None:
    """All contestants in turn, as often as there are rounds."""
    workers, steps = case.hosts * chosen.workers, chosen.steps + WARM_UP
    condition = CONDITIONS[case.condition]
    pace, shards = condition.pace(case.hosts), condition.shards * workers
    alone = digests.get((case.model, shards)) or digest_alone(case.model, shards, steps)
    digests[case.model, shards] = alone
    address = {"address": ADDRESS, "workers": workers}
    for number, way in itertools.product(range(chosen.rounds), (*chosen.topologies, DDP)):
        with tempfile.TemporaryDirectory(prefix="marks-", dir="/tmp") as folder:
            if way == DDP:
                ddp(network, folder, case.model, chosen.workers, condition.shards, steps, pace)
            else:
                settings = {**configuration(folder, case.model, shards, steps, pace), "topology": way}
                command = ours(Path(folder), {**settings, "cluster": address}, chosen.set)
                process = network.start(0, command, access, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                require_equal(alone, outcome(process)["digest"], f"{case}, {way}")
            course = course_of(Path(folder))
        found.setdefault((case, way), []).append(course)
        said = f"{1 / course.step_s:.2f} steps/s, {course.bytes / 1e6:.2f} MB"
        print(f"round {number + 1}: {' '.join(map(str, case))}, {way}: {said}", file=sys.stderr, flush=True)


def digest_alone(model: str, shards: int, steps: int) -> str:
    """The digest of one worker on this host, which the others have to repeat."""
    with tempfile.TemporaryDirectory(prefix="marks-", dir="/tmp") as folder:
        settings = configuration(folder, model, shards, steps, CONDITIONS["even"].pace(1))
        command = ours(Path(folder), settings, [])
        process = subprocess.Popen(
            command, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        digest: str = outcome(process)["digest"]
        return digest


def configuration(folder: str, model: str, shards: int, steps: int, pace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": {"name": "hosts", "steps": steps, "seed": 1},
        "pipeline": {"target": MODELS[model], "args": {"folder": folder, **pace}},
        "data": {"shards": shards, "batch_size": ROWS * shards},
        "optimizer": {"name": "adamw", "lr": 0.001},
        "trace": {"digest_every": 0},
        "checkpoint": {"every": None},
    }


def ours(folder: Path, settings: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    (folder / "run.yaml").write_text(json.dumps(settings))
    return [sys.executable, "-m", "orchestrator", f"conf={folder}/run.yaml", "output=json", *more]


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate()
    if process.returncode:
        sys.exit(f"a launch failed:\n{err}")
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def require_equal(alone: str, digest: str, where: str) -> None:
    if digest != alone:
        sys.exit(f"{where}: digest {digest}, that of one worker is {alone}")


def ddp(
    network: Network, folder: str, model: str, workers: int, shards: int, steps: int, pace: Mapping[str, Any]
) -> None:
    world = len(network.names) * workers
    common = {"model": model, "world": world, "meeting": f"tcp://{address_of(0)}:{DDP_PORT}", "shards": shards}
    processes = []
    for rank in range(world):
        told = json.dumps({**common, **pace, "steps": steps, "rank": rank, "interface": interface(rank // workers)})
        command = [sys.executable, "-m", "benchmarks.wired", folder, told]
        processes.append(network.start(rank // workers, command, environment({}), stdin=subprocess.DEVNULL))
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("a process of DDP failed")


def course_of(folder: Path) -> Course:
    marks = marks_of(folder)
    common = set.intersection(*map(set, marks.values()))
    first, last = min(common), max(common)
    crossed = [of_host[last][way] - of_host[first][way] for of_host in marks.values() for way in (1, 2)]
    return Course(statistics.median(spans_of(marks)), max(crossed) / (last - first))


def table(found: Mapping[tuple[Case, str], Sequence[Course]]) -> str:
    """In Markdown; medians over the rounds."""
    lines = ["| hosts | Gbit/s | model | condition | | steps/s | / DDP | MB per step | / DDP |", f"|{'---|' * 9}"]
    for (case, way), courses in found.items():
        step_s, crossed = _medians(courses)
        beside, beside_bytes = _medians(found[case, DDP])
        figures = f"{1 / step_s:.2f} | {beside / step_s:.2f} | {crossed / 1e6:.2f} | {crossed / beside_bytes:.2f}"
        lines.append(f"| {' | '.join(map(str, case))} | {way.replace('_', ' ')} | {figures} |")
    return "\n".join(lines)


def _medians(courses: Sequence[Course]) -> tuple[float, float]:
    return statistics.median(each.step_s for each in courses), statistics.median(each.bytes for each in courses)


def draw(found: Mapping[tuple[Case, str], Sequence[Course]], path: Path) -> None:
    """A panel per condition and model, in it a group of bars per number of hosts and rate, a line where DDP is."""
    panels = list(dict.fromkeys((case.model, case.condition) for case, _ in found))
    groups = list(dict.fromkeys((case.hosts, case.rate) for case, _ in found))
    ways = [way for way in dict.fromkeys(way for _, way in found) if way != DDP]
    with pages.picture(path, len(panels), 3) as axes:
        for axis, (model, condition) in zip(axes, panels, strict=True):
            for number, way in enumerate(ways):
                cases = [Case(hosts, rate, model, condition) for hosts, rate in groups]
                ratios = [_medians(found[case, DDP])[0] / _medians(found[case, way])[0] for case in cases]
                places = [place + (number + 0.5) * 0.8 / len(ways) - 0.4 for place in range(len(groups))]
                axis.bar(places, ratios, 0.8 / len(ways), label=way.replace("_", " "))
            axis.axhline(1.0, color="black", linewidth=0.8)
            axis.set_xticks(range(len(groups)), [f"{hosts} hosts\n{rate} Gbit/s" for hosts, rate in groups], fontsize=7)
            axis.set_title(f"{model}, {condition}", fontsize=9)
        axes[0].set_ylabel("steps per second / DDP")
        axes[-1].legend(fontsize=7)


if __name__ == "__main__":
    sys.exit(main())
