"""Calls that Pythons of conda and of uv lack: they do what Python's own do, and nothing here relies on Python's own."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.common import kernel_calls

PACKAGE = Path(orchestrator.__file__).parent
# Programs that import nothing of this package look for themselves whether Python has the call.
BY_THEMSELVES = {"cluster/sessions/agent.py", "driver/supervision/supervisor.py"}
LACKING = re.compile(r"os\.(memfd_create|MFD_|pidfd_)|signal\.pidfd_|fcntl\.F_(SEAL|ADD_SEALS|GET_SEALS)")


def test_no_code_relies_on_what_a_python_may_lack() -> None:
    found = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if LACKING.search(file.read_text())}
    assert found == BY_THEMSELVES


def test_a_memory_file_has_the_size_at_which_it_was_sealed() -> None:
    file = kernel_calls.memory_file("of-a-test")
    assert "of-a-test" in str(Path(f"/proc/self/fd/{file}").readlink())
    assert not os.get_inheritable(file)
    os.ftruncate(file, 100)
    assert not kernel_calls.has_fixed_size(file)
    kernel_calls.seal_size(file)
    assert kernel_calls.has_fixed_size(file)
    assert fcntl.fcntl(file, fcntl.F_GET_SEALS) == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    for size in (99, 101):
        with pytest.raises(PermissionError):
            os.ftruncate(file, size)
    os.close(file)


def test_a_process_is_known_by_its_descriptor_and_killed_by_it() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]) as child:
        descriptor = kernel_calls.process_descriptor(child.pid)
        assert not os.get_inheritable(descriptor)
        kernel_calls.kill(descriptor)
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            kernel_calls.kill(descriptor)
        os.close(descriptor)
    with pytest.raises(ProcessLookupError):
        kernel_calls.process_descriptor(child.pid)
