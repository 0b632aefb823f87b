"""The particulars of CUDA, as far as they can be tried without a GPU: refusals, switches, what is recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.common import card_faults, gpu_memory
from orchestrator.errors import ConfigurationError
from orchestrator.numerics import cuda, image_losses
from orchestrator.numerics.determinism import machine, prepare_thread
from tests.refusals import refused

BACKENDS: Any = torch.backends
COMPUTING = [BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn]
KINDS = [BACKENDS, BACKENDS.cudnn, *COMPUTING]


@pytest.fixture
def switches() -> Iterator[Any]:
    """torch's own for cuDNN, put back afterwards."""
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    precisions = [(kind, kind.fp32_precision) for kind in KINDS]
    yield cudnn
    for kind, precision in precisions:
        kind.fp32_precision = precision
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)


def refusal() -> str:
    with pytest.raises(ConfigurationError) as caught:
        cuda.start()
    return caught.value.message


def test_a_torch_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert refusal() == (
        f"the configuration is wrong: run.device: torch {torch.__version__} is built without CUDA; "
        "install a build with CUDA, or launch a new run with run.device=cpu"
    )


def test_an_answer_of_cuda_is_its_values_or_an_error() -> None:
    assert [cuda.answered(answer) for answer in (0, (0,), (0, 5), (0, 5, 6))] == [[], [], 5, [5, 6]]
    with pytest.raises(RuntimeError, match="CUDA refuses: 2"):
        cuda.answered((2, 5))


@pytest.mark.usefixtures("built")
def test_no_visible_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "init", fail)
    with refused("gpu.not-visible") as caught:
        cuda.start()
    assert "no GPU is visible to this process (CUDA_VISIBLE_DEVICES=, driver " in str(caught.value)
    assert card_faults.of(caught.value) is None  # such as others would take over


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("given", [None, ":0:0"])
def test_a_workspace_that_is_not_deterministic_is_refused(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    if given is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", given)
    assert f"CUBLAS_WORKSPACE_CONFIG={given}" in refusal()


@pytest.mark.usefixtures("built")
def test_kernels_that_are_chosen_by_the_clock_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
    assert "PYTORCH_TUNABLEOP_ENABLED=1 chooses the kernels" in refusal()


@pytest.mark.usefixtures("built")
def test_cuda_is_started_where_nothing_speaks_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append("CUDA"))
    monkeypatch.setattr(cuda, "_compute", lambda: started.append("a kernel"))
    cuda.start()
    assert started == ["CUDA", "a kernel"]


@pytest.mark.usefixtures("built")
def test_a_gpu_that_does_not_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is too old raises at the start, a build without kernels for this GPU at the first one."""

    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(cuda, "_compute", fail)
    assert "the GPU does not compute: CUDA error: no kernel image is available" in refusal()


@pytest.mark.parametrize("tf32", [False, True])
def test_a_thread_that_computes_on_a_gpu_is_set_up(switches: Any, tf32: bool) -> None:
    switches.benchmark, switches.allow_tf32 = True, not tf32
    found = prepare_thread(1, "cuda", tf32=tf32)
    assert image_losses._installed
    assert (found["device"], found["tf32"], found["cudnn_benchmark"]) == ("cuda", tf32, False)
    assert (switches.benchmark, switches.deterministic, switches.allow_tf32) == (False, True, tf32)
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_pipeline_that_set_the_precision_changes_nothing(kind: int, tf32: bool) -> None:
    """torch has switches for all, for cuDNN and for each kind of product; and older ones, which it reads too as it computes."""
    KINDS[kind].fp32_precision = "ieee" if tf32 else "tf32"
    prepare_thread(1, "cuda", tf32=tf32)
    assert [each.fp32_precision for each in COMPUTING] == ["tf32" if tf32 else "ieee"] * 3
    assert (BACKENDS.cudnn.allow_tf32, BACKENDS.cuda.matmul.allow_tf32) == (tf32, tf32)


def test_the_gpu_is_named_where_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "describe", lambda: {"models": ["X"], "driver": "1.2"})
    assert {"GPU: models": "['X']", "GPU: driver": "1.2"}.items() <= machine("cuda").items()
    assert not any("GPU" in name for name in machine())


class Properties:
    major, minor, multi_processor_count = 9, 0, 132

    def __init__(self, name: str, uuid: str | None = None) -> None:
        self.name = name
        if uuid is not None:
            self.uuid = uuid


def put_in(monkeypatch: pytest.MonkeyPatch, *cards: Properties) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cards[index])


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, Properties("X 100", "2b"), Properties("X 100", "1a"))
    found = cuda.describe()
    assert found["models"] == ["X 100, compute capability 9.0"]
    assert (found["multiprocessors"], found["mig"], found["cublas"]) == ([132], False, None)
    assert cuda.uuids() == ["GPU-1a", "GPU-2b"]
    put_in(monkeypatch, Properties("X 100 MIG 1g.10gb"))
    assert (cuda.describe()["mig"], cuda.uuids()) == (True, [])


def test_the_card_of_this_process_is_named_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, Properties("X 100", "2b"), Properties("X 100"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert cuda.uuid() == "GPU-2b"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert cuda.uuid() == ""


def test_what_is_free_on_the_card_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, Properties("X 100", "2b"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (500, 800))
    assert cuda.card_memory() == {"name": "X 100", "free_bytes": 500, "total_bytes": 800}


@pytest.mark.usefixtures("built")
def test_a_driver_that_does_not_match_is_told_with_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch sees no GPU then (`is_available`), and only the start of CUDA says why."""

    def fail() -> None:
        raise RuntimeError(
            "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver"
        )

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    with refused("gpu.driver-mismatch") as caught:
        cuda.start()
    assert "reboot, or reload the module" in str(caught.value)


def test_memory_is_told_with_the_largest_block_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [("active_allocated", 90), ("inactive", 20), ("active_pending_free", 70), ("inactive", 30)]
    segments: list[dict[str, Any]] = [
        {"blocks": [{"state": state, "size": size}], "total_size": size, "allocated_size": size // 2}
        for state, size in blocks
    ]
    segments[1]["segment_pool_id"], segments[2]["segment_pool_id"] = (0, 0), (3, 1)
    backend = "native"
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments if backend == "native" else 1 / 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (500, 800))
    for name, value in (("max_memory_allocated", 200), ("memory_allocated", 150), ("memory_reserved", 210)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert cuda.memory() == {"peak": 200, "reserved": 210, "largest_free": 30, "graphs": 70}
    assert gpu_memory.memory_use() == gpu_memory.MemoryUse(800, 500, 150, 200, 210, 30, 70, 35)
    segments.clear()
    assert cuda.memory()["largest_free"] == 0
    backend = "cudaMallocAsync"  # that of CUDA tells no blocks, and torch raises where it is asked for them
    assert cuda.memory() == {"peak": 200, "reserved": 210, "largest_free": 0, "graphs": 0}


def test_cublas_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(number: int, part: Any) -> int:
        part._obj.value = (13, 1, 7)[number]
        return 0

    loaded = {"libcublas.so.13": SimpleNamespace(cublasGetProperty=ask)}
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ctypes, "CDLL", loaded.__getitem__)
    assert cuda.cublas() == "13.1.7"
    del loaded["libcublas.so.13"].cublasGetProperty
    assert cuda.cublas() is None


VERSIONS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023": "535.104.05",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build": "570.86.15",
    "something else": None,
}


@pytest.mark.parametrize("text", VERSIONS)
def test_the_driver_is_read_from_what_its_module_says(text: str) -> None:
    assert cuda.driver(text) == VERSIONS[text]


@pytest.mark.parametrize(("size", "fraction"), [(20, 0.25), (80, 1.0), (100, 1.0), (-1, 0.0)])
def test_the_allocator_is_limited_to_a_part_of_the_card(
    size: int, fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[float] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_to.append)
    cuda.limit(size)
    assert set_to == [fraction]
