"""How a private Ray is started; none is, here."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import _raylet
from ray._private import node, services, utils
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.thirdparty import pynvml

from orchestrator.cluster.sessions import folders as session_folders
from orchestrator.cluster.sessions import local
from orchestrator.cluster.sessions.local import LocalRay
from orchestrator.common.tested_versions import Tried
from orchestrator.errors import Interrupted
from tests.refusals import refused


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on by a second each time it is asked."""
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)), sleep=lambda _seconds: None)
    monkeypatch.setattr(local, "time", clock)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place at which the folders of Rays are made; nothing else of a Ray is started or ended."""
    numbers = itertools.count()

    def make() -> Path:
        folder = tmp_path / f"{next(numbers)}"
        folder.mkdir()
        return folder

    monkeypatch.setattr(local, "_new_folder", make)
    monkeypatch.setattr(local, "_remove_abandoned", lambda: None)
    monkeypatch.setattr(local, "prepare_environment", lambda _address: None)
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 1.0, 1.0))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return tmp_path


def started(outcomes: list[Exception | None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the Rays that are started. outcomes: of the starts, one after the other."""
    made: list[str] = []

    def enter(_address: str, **options: Any) -> None:
        made.append(Path(options["_temp_dir"]).parent.name)
        outcome = outcomes[len(made) - 1]
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(local, "enter", enter)
    return made


def test_this_ray_can_do_without_its_helpers_and_others_have_them() -> None:
    helpers: list[tuple[Any, str]] = [(node.Node, "start_monitor"), (node.Node, "start_log_monitor")]
    helpers += [(services, "start_api_server"), (utils, "get_dashboard_dependency_error")]
    usual = [getattr(place, name) for place, name in helpers]
    with local._fewer_processes():
        assert [getattr(place, name)("anything") for place, name in helpers[:3]] == [None, None, (None, None)]
        assert isinstance(utils.get_dashboard_dependency_error(), ImportError)
    assert [getattr(place, name) for place, name in helpers] == usual


@pytest.mark.parametrize(("lost", "kind"), [({0}, "A100"), (set(), "H100"), ({0, 1}, None)])
def test_the_type_of_a_card_is_that_of_the_first_that_answers(
    lost: set[int], kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml: Any = pynvml
    failure: Exception = nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)
    names = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"]

    def handle(number: int) -> int:
        if number in lost:
            raise failure
        return number

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": names.__getitem__,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    spec: Any = ResourceAndLabelSpec(num_cpus=1, memory=1 << 30, object_store_memory=1 << 27, resources={}, labels={})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    with local._type_of_a_card_that_answers(None):
        spec.resolve(is_head=True, node_ip_address="127.0.0.1")
    assert spec.num_gpus == 1
    assert [name for name in spec.resources if "accelerator_type" in name] == (
        [f"accelerator_type:{kind}"] * bool(kind)
    )


def test_a_ray_that_is_told_of_its_gpus_asks_no_driver_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> None:
        raise AssertionError("a driver that hangs takes the launch along")

    monkeypatch.setattr(pynvml, "nvmlInit", hang)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec: Any = ResourceAndLabelSpec(
        num_cpus=1, num_gpus=2, memory=1 << 30, object_store_memory=1 << 27, resources={}, labels={}
    )
    with local._type_of_a_card_that_answers("NVIDIA H100 80GB HBM3"):
        spec.resolve(is_head=True, node_ip_address="127.0.0.1")
    assert (spec.num_gpus, "accelerator_type:H100" in spec.resources) == (2, True)


def test_a_start_that_failed_is_tried_again_in_a_new_folder(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = started([RuntimeError("the raylet ended"), None], monkeypatch)
    with LocalRay(2.0, 60.0):
        assert made == ["0", "1"]
        assert [folder.name for folder in folders.iterdir()] == ["1"]
    assert list(folders.iterdir()) == []


def test_what_goes_on_failing_is_told_with_the_load(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = started([RuntimeError(f"no {number}\nmore") for number in range(9)], monkeypatch)
    with refused("ray.not-started") as caught:
        LocalRay(2.0, 60.0).__enter__()
    assert caught.value.remedy is not None
    assert "this machine is busy (load 1000000 on " in caught.value.remedy
    assert "raise cluster.start_timeout_s" in caught.value.remedy
    assert "error.txt" not in caught.value.remedy
    assert len(made) == 3
    assert list(folders.iterdir()) == []


def test_the_last_words_of_a_ray_that_did_not_start_are_kept(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(_address: str, *, _temp_dir: str, **_options: Any) -> None:
        logs = Path(_temp_dir, "session_1", "logs")
        logs.mkdir(parents=True)
        (logs / "raylet.err").write_text("no room\n")
        raise RuntimeError("the raylet ended")

    monkeypatch.setattr(local, "enter", enter)
    with refused("ray.not-started") as caught:
        LocalRay(2.0, 60.0).__enter__()
    assert "error.txt of the run has the last lines" in str(caught.value.remedy)
    assert caught.value.details == "the raylet ended\n\nraylet.err:\nno room"
    assert list(folders.iterdir()) == []


def test_a_name_that_is_no_text_is_told_at_once(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.fsdecode(b"/home/caf\xe9")
    made = started([UnicodeEncodeError("utf-8", path, 9, 10, "surrogates not allowed")], monkeypatch)
    with refused("ray.not-text", r"/home/caf\udce9"):
        LocalRay(2.0, 60.0).__enter__()
    assert len(made) == 1
    assert list(folders.iterdir()) == []


@pytest.mark.parametrize(
    ("room", "told"),
    [
        ({"f_bavail": 100}, "has room for 410 kB"),
        ({"f_favail": 40}, "has room for 40 files"),
        ({"f_files": 0, "f_favail": 0}, None),  # as of btrfs, which does not count them
    ],
)
def test_a_place_without_room_for_a_ray_is_told(
    room: dict[str, int], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"f_frsize": 4096, "f_bavail": 10**6, "f_files": 10**6, "f_favail": 10**6}
    monkeypatch.setattr(os, "statvfs", lambda _place: SimpleNamespace(**usual | room))
    if told is None:
        session_folders.remove(session_folders.new())
        return
    with refused("ray.no-room", told):
        session_folders.new()


@pytest.mark.parametrize("name", ["e" * 20, "café", os.fsdecode(b"caf\xe9")])
def test_a_place_for_temporary_files_that_ray_does_not_take_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes ASCII alone, and few of it."""
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{name}")
    folder = session_folders.new()
    session_folders.remove(folder)
    assert str(folder.parent) == "/tmp"


def test_of_the_users_of_a_folder_only_those_that_write_there_are_killed() -> None:
    """Another launch may remove the folder at the same moment, and has its subfolders open then."""
    folder = session_folders.new()
    log = folder / "raylet.out"
    with log.open("w") as stream:
        helper = subprocess.Popen(["sleep", "100"], stdout=stream)
    with log.open() as stream:
        reader = subprocess.Popen(["sleep", "100"], stdin=stream)
    try:
        session_folders.remove(folder)
        assert helper.wait(10) == -signal.SIGKILL
        assert reader.poll() is None
    finally:
        for each in (helper, reader):
            each.kill()
            each.wait()


@pytest.mark.usefixtures("clock")
def test_after_the_time_of_the_start_there_is_no_other_try(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started([TimeoutError("slow")] * 3, monkeypatch)
    with refused("ray.not-started"):
        LocalRay(2.0, 1.0).__enter__()
    assert list(folders.iterdir()) == []


def test_an_interrupted_start_is_not_tried_again(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = started([Interrupted("interrupted by SIGINT"), None], monkeypatch)
    with pytest.raises(Interrupted):
        LocalRay(2.0, 60.0).__enter__()
    assert made == ["0"]
    assert list(folders.iterdir()) == []


def test_a_machine_that_is_not_busy_is_not_called_so() -> None:
    assert local._busy(2.0, 2) == ""


def ray_node(**dead: int | None) -> Any:
    """dead: their exit status, None where it is not known."""
    ended = [(kind, SimpleNamespace(returncode=code)) for kind, code in dead.items()]
    return SimpleNamespace(gcs_address="here:1", _node_id="n", dead_processes=lambda: ended)


def registers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The raylet is registered at the 80th look; at the first one the head is too busy to say."""
    looks = itertools.count(1)

    def is_registered(_node: Any) -> bool:
        look = next(looks)
        if look == 1:
            raise RuntimeError("the head is too busy to say")
        return look >= 80

    monkeypatch.setattr(local, "_is_registered", is_registered)


@pytest.mark.usefixtures("clock")
def test_a_slow_raylet_is_waited_for_within_the_start_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    registers_late(monkeypatch)
    started: list[Any] = []
    monkeypatch.setattr(node.Node, "start_ray_processes", started.append)
    ours = ray_node()
    with local._awaited_raylet(90.0, lambda: None):
        node.Node.start_ray_processes(ours)  # type: ignore[no-untyped-call]
    assert started == [ours]
    registers_late(monkeypatch)
    with pytest.raises(TimeoutError, match=r"^the raylet of the private Ray was not up after 60 s$"):
        local._await("raylet", ours, lambda: local._is_registered(ours), 60.0, lambda: None)


def test_a_ray_that_was_not_tested_waits_for_its_raylet_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = node.Node.start_ray_processes
    monkeypatch.setattr(Tried, "is_here", False)
    with local._awaited_raylet(90.0, lambda: None):
        assert node.Node.start_ray_processes is usual


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("code", "how"), [(None, ""), (-signal.SIGXFSZ, ", killed by SIGXFSZ")])
def test_a_raylet_that_ended_is_not_waited_for(code: int | None, how: str) -> None:
    with pytest.raises(RuntimeError, match=f"^the raylet of the private Ray ended while it started{how}$"):
        local._await("raylet", ray_node(reaper=0, raylet=code), lambda: False, 60.0, lambda: None)


@pytest.mark.usefixtures("clock")
def test_the_wait_for_a_raylet_can_be_interrupted() -> None:
    with pytest.raises(Interrupted):
        local._await("raylet", ray_node(), lambda: False, 60.0, interrupted)


def interrupted() -> None:
    raise Interrupted("interrupted by SIGTERM")


PORTS: Any = _raylet
HEAD = PORTS.GCS_SERVER_PORT_NAME


def started_head(ours: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[], None]) -> int:
    """The port that Ray finds. It starts as Ray's own code has it."""
    found: list[int] = []

    def start(_node: Any) -> None:
        ray_insides: Any = node
        found.append(ray_insides.wait_for_persisted_port(str(folder), "n", HEAD, timeout_ms=60000))

    monkeypatch.setattr(node.Node, "start_gcs_server", start)
    with local._awaited_head(check):
        node.Node.start_gcs_server(ours)  # type: ignore[no-untyped-call]
    return found[0]


@pytest.mark.usefixtures("clock")
def test_a_head_is_waited_for_until_it_ends_or_somebody_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Interrupted):
        started_head(ray_node(), tmp_path, monkeypatch, interrupted)
    with pytest.raises(RuntimeError, match=r"^the head .* ended while it started, killed by SIGXFSZ$"):
        started_head(ray_node(gcs_server=-signal.SIGXFSZ), tmp_path, monkeypatch, lambda: None)
    with pytest.raises(TimeoutError, match=r"^the head .* was not up after 60 s$"):
        started_head(ray_node(), tmp_path, monkeypatch, lambda: None)
    (tmp_path / PORTS.get_port_filename("n", HEAD)).write_text("6379")
    assert started_head(ray_node(), tmp_path, monkeypatch, interrupted) == 6379
