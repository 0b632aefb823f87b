"""Both sides of a job of Slurm, without Slurm and without Ray: stand-ins for `srun`, `scontrol` and `ray`."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.cluster.sessions import folders
from orchestrator.cluster.slurm import batch
from orchestrator.cluster.slurm import node as node_of_ray
from tests.projects import PATIENCE_S, Project

UP = """echo '{"node": "n1", "address": "10.0.0.1:7"}'; read address; echo "$address" > told; cat > rest; touch ended"""
ADDRESS = 'printf "%s " "$@" > ran'
COUNTING = """
import signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
Path("started").touch()
signal.sigwait([signal.SIGINT])
sys.exit(5 if signal.sigtimedwait([signal.SIGINT], 0.5) is None else 6)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On the first node of the allocation, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    stand_in(tmp_path, "scontrol", "echo n1")
    stand_in(tmp_path, "srun", UP)
    return tmp_path


def stand_in(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def run(command: Sequence[str], timeout_s: float = PATIENCE_S) -> int:
    return batch.run(2, timeout_s, command)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)])
def test_a_job_ends_as_its_command_does_and_then_its_ray_does(place: Path, body: str, code: int) -> None:
    stand_in(place, "command", f"{ADDRESS}; {body}")
    assert run(["command", "a b"]) == code
    assert (place / "ran").read_text() == "a b cluster.address=10.0.0.1:7 "
    assert (place / "told").read_text() == "10.0.0.1:7\n"
    assert (place / "rest").read_text() == ""
    assert (place / "ended").exists()


@pytest.mark.slow
def test_lines_of_the_sites_own_programs_are_passed_on(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A TaskProlog prints before the task does."""
    stand_in(place, "srun", f"echo Welcome to node n1; echo 7; {UP}")
    stand_in(place, "command", "exit 3")
    assert run(["command"]) == 3
    assert capfd.readouterr().err == "Welcome to node n1\n7\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("srun", "timeout_s", "message"),
    [
        ("""echo '{"node": "n1", "error": "no room"}'; cat""", PATIENCE_S, "Ray could not be started on n1: no room"),
        ("echo no such partition >&2; exit 1", PATIENCE_S, "srun ended with exit code 1 before the job's Ray was up"),
        ("exec cat", 0.2, "after 0.2 s the job's Ray was not up on n1"),
    ],
)
def test_a_job_whose_ray_is_not_up_fails_and_its_command_is_not_run(
    place: Path, capfd: pytest.CaptureFixture[str], srun: str, timeout_s: float, message: str
) -> None:
    stand_in(place, "srun", srun)
    stand_in(place, "command", ADDRESS)
    assert run(["command"], timeout_s) == 1
    assert f"error: {message}" in capfd.readouterr().err
    assert not (place / "ran").exists()


def test_all_nodes_of_a_job_have_to_be_up(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stand_in(
        place, "scontrol", """if [ "$2" = node ]; then echo " NodeAddr=127.0.0.1 X=1"; else echo n1; echo n2; fi"""
    )
    stand_in(place, "srun", f'printf "%s " "$@" > asked; {UP}')
    assert run(["true"], 0.5) == 1
    assert "after 0.5 s the job's Ray was not up on n2" in capfd.readouterr().err
    asked = (place / "asked").read_text()
    assert "--nodes=2 --ntasks=2 --cpus-per-task=2" in asked
    assert asked.endswith("orchestrator.cluster.slurm.node 127.0.0.1 2 0.5 ")


def test_a_node_that_cannot_be_reached_is_named(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stand_in(
        place, "scontrol", """if [ "$2" = node ]; then echo " NodeAddr=a.invalid X=1"; else echo n1; echo n2; fi"""
    )
    assert run(["true"]) == 1
    assert "no way from this node to n2, whose address is a.invalid to Slurm" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_however_often_the_job_is_asked_to_end_its_command_is_once(place: Path) -> None:
    """A second signal would end the command without a checkpoint."""
    job = started(shlex.join([sys.executable, "-c", COUNTING]), place)
    await_file(place / "started")
    for _ in range(3):
        job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 5


@pytest.mark.long
@pytest.mark.slow
def test_a_job_that_is_asked_to_end_before_its_ray_is_up_does_not_begin(place: Path) -> None:
    stand_in(place, "srun", "touch started; exec cat")
    stand_in(place, "command", ADDRESS)
    job = started("command", place)
    await_file(place / "started")
    job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 130
    assert not (place / "ran").exists()


def started(command: str, place: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "orchestrator.cluster.slurm", "2", "600", *shlex.split(command)]
    return subprocess.Popen(words, cwd=place, env={**os.environ, **Project(place).environment()})


def await_file(file: Path) -> None:
    async def there() -> None:
        while not file.exists():
            await asyncio.sleep(0.02)  # looks at what another process writes

    asyncio.run(asyncio.wait_for(there(), PATIENCE_S))


RAY = """
printf "%s\\n" "$@" > {place}/asked
for each in "$@"; do case "$each" in --temp-dir=*) folder="${{each#*=}}";; esac; done
echo $$ > {place}/pid
trap 'echo SIGTERM > {place}/died' TERM
mkdir -p "$folder"
printf 10.0.0.1:7 > "$folder/ray_current_cluster"
echo "$folder" > {place}/folder
while true; do sleep 0.05; done
"""


def node(place: Path, ray: str, **variables: str) -> subprocess.Popen[str]:
    stand_in(place, "ray", ray)
    environment = {
        **Project(place, temporary=str(place)).environment(),
        "SLURM_PROCID": "0",
        "PATH": os.environ["PATH"],
    }
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cluster.slurm.node", "127.0.0.1", "3", "60"],
        env={**environment, "SLURMD_NODENAME": "n1", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> dict[str, str]:
    """The node's report of its Ray."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert readable, "it says nothing"
    report: dict[str, str] = json.loads(process.stdout.readline())
    return report


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


@pytest.mark.slow
def test_a_node_hears_no_sigterm_and_ends_with_its_stdin(place: Path) -> None:
    process = node(place, RAY.format(place=place))
    assert told(process) == {"node": "n1", "address": "10.0.0.1:7"}
    ray = int((place / "pid").read_text())
    for each in (process.pid, ray):
        os.kill(each, signal.SIGTERM)
    await_file(place / "folder")
    folder = Path((place / "folder").read_text().strip())
    assert folder.exists()
    assert ended(process) == 0
    assert not (place / "died").exists()
    assert not Path(f"/proc/{ray}").exists()
    assert not folder.exists()
    asked = (place / "asked").read_text().split()
    assert {"--head", "--port=0", "--node-ip-address=127.0.0.1", "--num-cpus=3", "--min-worker-port=0"} <= {*asked}


@pytest.mark.slow
def test_another_node_joins_the_head_once_it_has_its_address(place: Path) -> None:
    process = node(place, RAY.format(place=place), SLURM_PROCID="1")
    assert process.stdin is not None
    process.stdin.write("127.0.0.1:7\n")
    process.stdin.flush()
    assert told(process)["node"] == "n1"
    assert ended(process) == 0
    assert {"--address=127.0.0.1:7", "--node-ip-address=127.0.0.1"} <= {*(place / "asked").read_text().split()}


@pytest.mark.slow
@pytest.mark.parametrize(("allotted", "told_of"), [("MIG-aa,MIG-bb,MIG-cc", ["--num-gpus=3"]), ("0,1", [])])
def test_ray_is_told_how_many_mig_devices_slurm_has_allotted(place: Path, allotted: str, told_of: list[str]) -> None:
    """Cards it counts itself, by the same variable."""
    process = node(place, RAY.format(place=place), CUDA_VISIBLE_DEVICES=allotted)
    assert told(process)["node"] == "n1"
    assert ended(process) == 0
    asked = (place / "asked").read_text().split()
    assert [word for word in asked if word.startswith("--num-gpus")] == told_of


def test_an_address_that_is_not_written_yet_is_none(tmp_path: Path) -> None:
    """Ray makes the file, and then writes it: a head without an address had the other nodes end at once."""
    file = folders.of_ray(tmp_path) / "ray_current_cluster"
    assert node_of_ray._address(tmp_path) == ""
    file.parent.mkdir()
    file.touch()
    assert node_of_ray._address(tmp_path) == ""
    file.write_text("10.0.0.1:7")
    assert node_of_ray._address(tmp_path) == "10.0.0.1:7"


@pytest.mark.slow
def test_what_ray_says_of_a_start_that_failed_is_passed_on(place: Path) -> None:
    process = node(place, "echo this is no Ray; exit 3")
    assert told(process) == {
        "node": "n1",
        "error": "`ray start` ended with exit code 3\nthis is no Ray",
    }
    assert ended(process) == 1
    assert not list(place.glob("orc-*"))


@pytest.mark.long
@pytest.mark.slow
def test_a_node_that_is_killed_takes_its_ray_along_and_the_next_one_removes_its_folder(place: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as own:  # in /tmp other tests' starts would remove it
        _is_killed_and_followed(place, own)


def _is_killed_and_followed(place: Path, temporary: str) -> None:
    first = node(place, RAY.format(place=place), TMPDIR=temporary)
    told(first)
    await_file(place / "folder")
    ray, folder = int((place / "pid").read_text()), Path((place / "folder").read_text().strip())
    first.kill()
    first.communicate()
    wait_for_end(ray)
    assert folder.exists()
    assert folder.is_relative_to(temporary)
    second = node(place, "exit 3", TMPDIR=temporary)
    assert "error" in told(second)
    assert not folder.exists()
    assert ended(second) == 1


def wait_for_end(process: int) -> None:
    async def gone() -> None:
        while Path(f"/proc/{process}").exists():
            await asyncio.sleep(0.02)  # the kernel ends it

    asyncio.run(asyncio.wait_for(gone(), PATIENCE_S))
