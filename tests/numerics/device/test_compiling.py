"""The kernels as NVRTC compiles them, for cards that are not here: `make kernels` brings it, and `make test-long` needs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.common import file_cache
from orchestrator.numerics.device import compiling
from orchestrator.numerics.device.compiling import CompilationFailed, compiled

KERNELS = Path(sys.prefix) / "kernels"
ARCHITECTURES = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
PROGRAM = """
import sys
from orchestrator.numerics.device.compiling import compiled
architecture, kind = sys.argv[1:]
sys.stdout.buffer.write(compiled(architecture, kind))
"""


def code(architecture: str, kind: str) -> bytes:
    """In a process of its own, which finds the library when it starts."""
    folders = os.pathsep.join(map(str, KERNELS.glob("nvidia/*/lib")))
    environment = {**os.environ, "PYTHONPATH": f"{KERNELS}", "LD_LIBRARY_PATH": folders}
    command = [sys.executable, "-c", PROGRAM, architecture, kind]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.slow
@pytest.mark.long
def test_a_card_that_nobody_knows_yet_gets_code_for_its_driver_to_compile() -> None:
    ptx = code("sm_999", "cubin")
    assert b".visible .entry absorb(" in ptx
    assert ptx.endswith(b"\0")  # as the driver wants it


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_operation_is_fused_and_each_rounds_to_nearest(architecture: str) -> None:
    assert code(architecture, "cubin").startswith(b"\x7fELF")
    ptx = code(architecture.replace("sm", "compute"), "ptx").decode()
    found = Counter(re.findall(r"\b(?:add|sub|mul|div|fma|mad|cvt)[.a-z0-9]*f64[.a-z0-9]*", ptx))
    rounding = {
        "add.rn.f64",
        "sub.rn.f64",
        "mul.rn.f64",
        "div.rn.f64",
        "cvt.rn.f32.f64",
        "cvt.rzi.s64.f64",
        "cvt.rn.f64.s64",
    }
    assert set(found) == rounding | {"cvt.f64.f32"}
    plain = set(re.findall(r"\b(?:add|sub|mul|div|fma|mad)[.a-z0-9]*f32[.a-z0-9]*", ptx))
    assert plain == {"add.rn.f32", "mul.rn.f32"}


def test_what_one_process_has_compiled_the_next_ones_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For each architecture by itself, and anew where the card does not take what is kept."""
    compiled_for: list[str] = []
    refused: list[bytes] = []

    def compile_for(architecture: str) -> bytes:
        compiled_for.append(architecture)
        return f"{architecture}, {len(compiled_for)}".encode()

    def load(code: bytes) -> bytes:
        if code in refused:
            raise RuntimeError("CUDA refuses: 209")
        return code

    monkeypatch.setattr(file_cache, "folders", lambda _module: iter([tmp_path]))
    monkeypatch.setattr(compiling, "compiled", compile_for)
    monkeypatch.setattr(compiling, "Launcher", load)
    loaded: list[object] = [compiling.launcher(each) for each in ("sm_90", "sm_90", "sm_80")]
    assert loaded == [b"sm_90, 1", b"sm_90, 1", b"sm_80, 2"]
    refused.append(b"sm_90, 1")
    loaded = [compiling.launcher("sm_90") for _ in range(2)]
    assert loaded == [b"sm_90, 3"] * 2
    assert compiled_for == ["sm_90", "sm_80", "sm_90"]


def nvrtc_up_to_90(asked: list[str]) -> ModuleType:
    """A double of `cuda.bindings.nvrtc`. asked: gets what it has compiled for."""

    def compiles(_program: int, _count: int, options: Sequence[bytes]) -> tuple[int]:
        asked.append(options[0].decode().partition("=")[2])
        return (int(asked[-1] == "sm_70"),)  # a card that is too old for it

    found = ModuleType("cuda.bindings.nvrtc")
    calls = {
        "CreateProgram": lambda *_: (0, 7),
        "GetSupportedArchs": lambda: (0, [75, 80, 90]),
        "CompileProgram": compiles,
    }
    calls |= {f"Get{each}Size": lambda _: (0, 1) for each in ("CUBIN", "PTX", "ProgramLog")}
    calls |= {f"Get{each}": lambda _program, _into: (0,) for each in ("CUBIN", "PTX", "ProgramLog")}
    vars(found).update({f"nvrtc{name}": call for name, call in calls.items()})
    return found


def test_for_a_card_that_is_newer_than_the_compiler_the_driver_compiles_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    nvrtc, package = nvrtc_up_to_90(asked), ModuleType("cuda.bindings")
    package.nvrtc = nvrtc  # type: ignore[attr-defined]
    for name, module in {"cuda": ModuleType("cuda"), "cuda.bindings": package, "cuda.bindings.nvrtc": nvrtc}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for architecture in ("sm_90", "sm_86", "sm_120"):
        compiled(architecture)
    assert asked == ["sm_90", "compute_80", "compute_90"]
    with pytest.raises(CompilationFailed, match=r"cannot compile sums\.cu for sm_70"):
        compiled("sm_70")


def test_where_the_compiler_is_missing_that_is_said() -> None:
    """As in an environment without torch's build for CUDA."""
    with pytest.raises(CompilationFailed, match=r"cuda\.bindings is not installed"):
        compiled("sm_90")
