"""The driver meets the operating system: a refusal that nobody has foreseen ends a run with one message."""

from __future__ import annotations

import traceback

from orchestrator.errors import OF_DESCRIPTORS, OF_THREADS, RunFailed, is_out_of_descriptors


def unrecorded(error: OSError) -> RunFailed:
    """The error of a run whose driver cannot go on. Called while the exception is being handled."""
    where = f" ({error.filename})" if error.filename is not None else ""
    return RunFailed(
        f"the driver could not go on: {error.strerror or error}{where}",
        OF_DESCRIPTORS if is_out_of_descriptors(error) else "see to the run's folder and its disk",
        traceback.format_exc(),
        code="run.driver-failed",
    )


def without_threads() -> RunFailed:
    """The error where this process may start no further thread. Called while the exception is being handled."""
    return RunFailed(
        "the driver could not go on: it may start no further thread",
        OF_THREADS,
        traceback.format_exc(),
        code="run.no-threads",
    )
