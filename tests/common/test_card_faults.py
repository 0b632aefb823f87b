"""Failures of a GPU are told by words: those of torch, CUDA, NVML and the kernel's log, and such as say nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.common import card_faults, gpu_memory
from orchestrator.errors import CardFailed, PipelineRaised, UsageError
from orchestrator.pipeline import naming

SAID = {
    "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported": "gpu.assertion",
    "CUresult.CUDA_ERROR_ASSERT": "gpu.assertion",
    "CUDA error: an illegal memory access was encountered": "gpu.illegal-access",
    "CUDA error: misaligned address": "gpu.illegal-access",
    "CUDA error: unspecified launch failure": "gpu.illegal-access",
    "the driver of the GPU refuses: CUresult.CUDA_ERROR_ILLEGAL_ADDRESS": "gpu.illegal-access",
    "CUDA error: uncorrectable ECC error encountered": "gpu.ecc",
    "CUDA error: uncorrectable NVLink error detected during the execution": "gpu.ecc",
    "NVRM: Xid (PCI:0000:65:00): 94, pid=1, Contained: SM": "gpu.ecc",
    "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.": "gpu.fell-off",
    "CUDA error: cuInit failed": "gpu.fell-off",
    "Unable to determine the device handle for GPU0000:65:00.0: GPU is lost": "gpu.fell-off",
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.86": "gpu.driver-mismatch",
    "Error 803: system has unsupported display driver / cuda driver combination": "gpu.driver-mismatch",
    "The NVIDIA driver on your system is too old (found version 11040)": "gpu.driver-old",
    "CUDA error: CUDA driver version is insufficient for CUDA runtime version": "gpu.driver-old",
    "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized": "gpu.not-set-up",
    "CUDA refuses cuMemCreate: CUDA_ERROR_SYSTEM_NOT_READY (802)": "gpu.not-set-up",
    "CUDA driver initialization failed, you might not have a CUDA gpu.": "gpu.fell-off",
    "Failed to initialize NVML: Unknown Error": "gpu.taken-away",
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable": "gpu.fell-off",
    "CUDA error: no CUDA-capable device is detected": "gpu.taken-away",
    "CUDA error: the launch timed out and was terminated": "gpu.kernel-timeout",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`": "gpu.failed",
    "CUDA error: unknown error": "gpu.failed",
    "CUDA driver error: unknown error": "gpu.failed",
    "CUDA unknown error - this may be due to an incorrectly set up environment": "gpu.failed",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR": "gpu.failed",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUBLAS": "gpu.failed",
    "Triton Error [CUDA]: an illegal memory access was encountered": "gpu.illegal-access",
}
NOTHING = [
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "CUDA error: out of memory",
    "CUDA error: invalid argument",
    "CUDA error: no kernel image is available for execution on the device",
    "CUDA error: unspecified",
    "CUDA error: operation not permitted when stream is capturing",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "NVRM: Xid (PCI:0000:48:00): 13, pid=79, name=python, Graphics Exception",  # numbers of a bus and of a process
]
NO_MEMORY = [
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
]


@pytest.mark.parametrize("text", SAID)
def test_a_failure_is_known_by_its_words(text: str) -> None:
    for error in (torch.AcceleratorError(text), RuntimeError(text)):
        fault = card_faults.of(error)
        assert fault is not None
        assert fault.code == SAID[text]


TORCHS_ADVICE = """
Search for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize("text", [*SAID, *NOTHING])
def test_what_torch_advises_behind_each_error_of_cuda_changes_no_meaning_and_is_not_told(text: str) -> None:
    for name in ("cudaErrorAssert", "cudaErrorECCUncorrectable"):
        error = torch.AcceleratorError(text + TORCHS_ADVICE.format(name))
        fault = card_faults.of(error)
        assert (fault and fault.code) == SAID.get(text)
        assert card_faults.words(error) == text.partition("\nCUDA kernel")[0]


@pytest.mark.parametrize("text", NOTHING)
def test_what_is_refused_before_it_starts_and_memory_are_no_failures_of_a_card(text: str) -> None:
    assert card_faults.of(torch.AcceleratorError(text)) is None


@pytest.mark.parametrize("text", NO_MEMORY)
def test_memory_that_runs_out_is_known_by_the_words_of_each_library(text: str) -> None:
    assert gpu_memory.ran_out(RuntimeError(text))
    assert card_faults.of(RuntimeError(text)) is None


LIBRARIES = [
    "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`",
]


@pytest.mark.parametrize("text", LIBRARIES)
def test_behind_a_library_that_fails_the_card_is_asked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    error = RuntimeError(f"CUDA error: {text}")
    fault = card_faults.of(error)
    assert fault is not None
    assert (fault.code, gpu_memory.ran_out(error)) == ("gpu.assertion", False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert gpu_memory.ran_out(error) is ("NOT_INITIALIZED" in text)


@pytest.mark.parametrize("text", ["an illegal memory access", "RuntimeError: launch_failed", "uncorrectable ECC error"])
def test_words_of_the_users_code_are_none(text: str) -> None:
    assert card_faults.of(ValueError(f"CUDA: {text}")) is None
    assert card_faults.of(KeyError("CUDA_ERROR_ASSERT")) is None
    assert card_faults.of(RuntimeError("illegal instruction in the recipe of the pipeline")) is None


def raised_within(error: Exception, kind: type[Exception]) -> BaseException:
    with pytest.raises(kind) as caught, naming("loss() (step 1, shard 3)"):
        raise error
    return caught.value


def test_it_is_known_through_what_was_made_of_it() -> None:
    asserted = torch.AcceleratorError("CUDA error: device-side assert triggered")
    fault = card_faults.of(raised_within(asserted, CardFailed))
    assert fault is not None
    assert (fault.code, fault.by_code, fault.card_suspected) == ("gpu.assertion", True, False)
    assert card_faults.of(raised_within(KeyError("x"), PipelineRaised)) is None


def test_a_circle_of_causes_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert card_faults.of(one) is None


LIBSTDCXX = "terminate called after throwing an instance of '{}'\n  what():  {}\n"
RAY = "[2026-11-27 22:19:49,117 E 8789 8789] logging.cc:118: Unhandled exception: {}. what(): {}\n"
TORCHS = [*((LIBSTDCXX, each) for each in ("c10::AcceleratorError", "c10::Error")), (RAY, "N3c1016AcceleratorErrorE")]


@pytest.mark.parametrize(("words", "kind"), TORCHS)
@given(st.sampled_from([*SAID]), st.text(max_size=40), st.text(max_size=40))
def test_what_has_aborted_a_process_is_known_by_its_last_words(
    words: str, kind: str, text: str, before: str, after: str
) -> None:
    found = card_faults.aborted(f"{before}\n{words.format(kind, text)}{after}")
    if card_faults._OF_A_CARD.search(first := text.partition("\n")[0]) is None:
        assert found is None
    else:
        assert found is not None
        assert (found[0], found[1]) == (card_faults.named_in(first), first)


@pytest.mark.parametrize("words", [LIBSTDCXX, RAY])
@pytest.mark.parametrize("kind", ["std::bad_alloc", "St9bad_alloc", "MyError"])
@given(st.sampled_from([*SAID]))
def test_words_behind_other_exceptions_and_of_no_abort_are_none(words: str, kind: str, text: str) -> None:
    assert card_faults.aborted(words.format(kind, text)) is None
    assert card_faults.aborted(text) is None


@given(st.text())
def test_what_a_process_has_said_names_a_failure_or_none(said: str) -> None:
    found = card_faults.aborted(said)
    assert found is None or found[0] in card_faults.FAULTS


@given(st.text(max_size=40))
def test_any_text_has_at_most_one_meaning(text: str) -> None:
    fault = card_faults.named_in(text)
    assert fault is None or fault in card_faults.FAULTS


def test_each_kind_is_told_with_a_remedy_and_what_a_machine_lacks_is_no_failure_of_a_run() -> None:
    assert len(card_faults.BY_CODE) == len(card_faults.FAULTS)
    for fault in card_faults.FAULTS:
        assert fault.remedy
        assert fault.code.startswith("gpu.")
        assert (fault.error.exit_code == UsageError.exit_code) is not fault.elsewhere
