"""A Slurm of two nodes on this machine, for as long as the tests of a module need it: its own munge, folders and ports."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.projects import PATIENCE_S, Project

NODES = ("n1", "n2")
CPUS = 8  # of each node, whatever the machine has
# A submitted job starts at once, an ended one is remembered, and a cancelled one is not killed while it saves.
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=86400
KillWait=600
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000\n"


@dataclass(frozen=True)
class Slurm:
    folder: Path

    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str, project: Project | None = None, given: str = "") -> str:
        """The output of one of Slurm's commands, called in the project as its user would."""
        place = None if project is None else project.path
        environment = {**(os.environ if project is None else project.environment()), **self.variables()}
        done = subprocess.run(
            command, cwd=place, env=environment, input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def submit(self, project: Project, script: str, *options: str) -> str:
        """The job's number."""
        return self.call("sbatch", "--parsable", *options, project=project, given=script).strip()

    def show(self, job: str) -> dict[str, str]:
        told = self.call("scontrol", "show", "job", job)
        return dict(re.findall(r"(\S+?)=(\S*)", told)) | dict(re.findall(r"^\s*(Std\w+)=(.*)$", told, re.MULTILINE))

    def log(self, job: str) -> str:
        file = Path(self.show(job)["StdOut"])
        return file.read_text() if file.exists() else ""

    def end_of(self, job: str) -> dict[str, str]:
        """Slurm's description of the job after its end. Its log is whole."""
        self.wait(lambda: self.show(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), job)
        return self.show(job)

    def wait(self, there: Callable[[], bool], job: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not there():
            assert time.monotonic() < deadline, (self.show(job), self.log(job))
            time.sleep(0.1)  # looks at what other processes do


@contextmanager
def slurm_of_two_nodes() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    slurm = Slurm(folder)
    _configure(folder)
    conf = str(folder / "slurm.conf")
    munge = [f"--{name}={folder}/munge.{name}" for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
    try:
        with ExitStack() as stack:
            stack.enter_context(_program(folder, "munged", "--foreground", "--force", *munge))
            _await(lambda: (folder / "munge.socket").exists())
            stack.enter_context(_program(folder, "slurmctld", "-D", "-i", "-f", conf))
            for name in NODES:
                stack.enter_context(_program(folder, "slurmd", "-D", "-N", name, "-f", conf))
            _await(lambda: _idle(slurm))
            yield slurm
            slurm.call("scancel", "--user=root", "--signal=KILL", "--full")
            _await(lambda: not slurm.call("squeue", "--noheader"))
    finally:
        shutil.rmtree(folder)


def _configure(folder: Path) -> None:
    (folder / "state").mkdir()
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
    key = folder / "munge.key-file"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    host, (controller, *ports) = socket.gethostname(), _free_ports(1 + len(NODES))
    nodes = [NODE.format(name=name, host=host, port=port, cpus=CPUS) for name, port in zip(NODES, ports, strict=True)]
    general, partition = CONFIGURATION.rsplit("PartitionName", 1)
    text = (
        general.format(host=host, controller=controller, folder=folder) + "".join(nodes) + "PartitionName" + partition
    )
    (folder / "slurm.conf").write_text(text)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


@contextmanager
def _program(folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{command[0]}.out").open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _idle(slurm: Slurm) -> bool:
    """Whether the controller answers and has heard of both nodes."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%t"],
        env={**os.environ, **slurm.variables()},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split() == ["idle"] * len(NODES)


def _await(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)  # looks at what other processes do
