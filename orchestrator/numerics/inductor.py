"""torch's compiler for a model (`run.compile`): what it needs on a node, what keeps its bits, and what to record of it.

Bits may depend neither on what a process has computed before nor on who compiles:

- Shapes are static. By itself the compiler makes kernels for any size once it has seen two, so a worker that joins late would
  have others.
- No frame falls back to eager operations after too many shapes: that is an error.
- A call within a transform of torch.func or a dispatch mode is eager, and makes no later call eager.
- Nothing is chosen by a measurement. `torch.use_deterministic_algorithms` (`determinism.prepare_thread`) tells the compiler.
- The processor alone says how wide its vectors are. By itself the compiler tries to build and load a file for that. A full
  disk, a damaged cache or a machine on which loading it takes a minute then gives kernels of other bits.
- What is kept on a disk is kept by the versions of the compilers, since an upgrade leaves the files of the older one behind.

It compiles in the worker itself and starts no processes. Functions that a user has compiled are left as they are.
Sources: torch.compiler.config, https://docs.pytorch.org/docs/stable/torch.compiler.html
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from orchestrator.common import file_cache, temporary
from orchestrator.errors import ConfigurationError, coded

NOTE = (
    "run.compile: on processors compiled models were not faster, and compiling takes minutes where cores are busy; the next "
    "launches on a node find what it has made"
)
_SHAPES: Final = 1024  # of one frame, and so many of all; each takes seconds to compile
# Graphs of its own, as TORCHINDUCTOR_CUDAGRAPHS=1 asks for, would be captured within ours, and write gradients that still wait.
_OPTIONS: Final = {"triton.cudagraphs": False}
# Dispatch modes with a method of this name are told, as compiled code is called, which tensors it is given.
TOLD: Final = "compiled_code_reads"
_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
_OF_VECTORS: Final = "TORCHINDUCTOR_VEC_ISA_OK"  # of a user who knows more of this: it is recorded
_VARIABLES = re.compile(r"(TORCHINDUCTOR|TORCHDYNAMO|TRITON|TORCH_COMPILE)_\w+|CXX")
_NO_BITS = re.compile(r"\w*(_DIR|_PATH|_CACHE\w*|_THREADS|VERBOSE)")


def problem(device: str) -> str | None:
    """Why no process of this node can compile for `device`. Starts nothing."""
    lacking = []
    if shutil.which(_compiler()) is None:
        lacking.append(f"a C++ compiler ({_compiler()}, or the one that CXX names)")
    if not any((Path(folder) / "Python.h").exists() for folder in _includes()):
        lacking.append("Python.h, which python3-dev or python3-devel brings")
    if device == "cuda" and _triton() is None:
        lacking.append("triton, which torch's wheel for CUDA brings")
    given = os.environ.get(_CACHE)
    if not lacking and given and not _takes(Path(given)):
        return coded(
            "model.compiler-cache",
            f"run.compile: the compiler cannot write in {given}, which {_CACHE} names; name another folder, or none",
        )
    if not lacking:
        return None
    return coded(
        "model.compiler",
        f"run.compile: this node lacks {' and '.join(lacking)}; install that, or leave run.compile out",
    )


def describe() -> dict[str, Any]:
    """Versions and variables that may change the bits of compiled code, beside torch."""
    return {"triton": _triton(), "cxx": _cxx(), "variables": _variables()}


def prepare() -> None:
    """Have the compiler, which is imported later, keep its results in `folder`, or for this process alone if that cannot be
    written, and compile in this process. Variables that a user has set are kept."""
    if _CACHE not in os.environ:
        os.environ[_CACHE] = str(folder() if _takes(folder()) else _of_this_process())
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def folder() -> Path:
    """The folder for this user, node and versions."""
    import torch

    made_by = repr((torch.__version__, torch.version.git_version, describe()))
    *_, kept = file_cache.folders(__file__)
    return kept / "inductor" / f"{platform.node()}-{hashlib.sha256(made_by.encode()).hexdigest()[:16]}"


def _takes(place: Path) -> bool:
    """Whether files can be written there, or the folder made."""
    there = next((each for each in (place, *place.absolute().parents) if each.exists()), place)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _of_this_process() -> Path:
    until_the_end = contextlib.ExitStack()
    atexit.register(until_the_end.close)
    return until_the_end.enter_context(temporary.folder())


def compile_model(model: Any) -> None:
    """Have calls of the model run compiled code, which its first calls make. Names, parameters and structure stay. Raises
    what `prepare_thread` raises."""
    prepare_thread()
    if not is_compiled(model):
        model.compile(dynamic=False, backend=_compiled)
        _leave_out_transforms(model)


def _compiled(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend of torch's compiler: its own one, whose code tells modes that ask for it which tensors it reads, since no
    operation of torch does."""
    import torch

    code: Callable[..., Any] = torch._inductor.compile(graph, inputs, options=_options())

    def call(*given: Any) -> Any:
        for mode in _modes():
            if told := getattr(mode, TOLD, None):
                told(given)
        return code(*given)

    return call


def _options() -> dict[str, bool]:
    return _OPTIONS if _OF_VECTORS in os.environ else {**_OPTIONS, "cpp.vec_isa_ok": True}


def _modes() -> list[Any]:
    """The dispatch modes that are active."""
    import torch

    if not torch._C._len_torch_dispatch_stack():
        return []
    modes: list[Any] = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return modes


def _leave_out_transforms(model: Any) -> None:
    """Have calls run eagerly within a transform of torch.func or a dispatch mode that would see each operation. The compiler
    runs them so, too, but then all later calls in this process as well. A worker that came later had other bits."""
    import torch

    compiled = model._compiled_call_impl

    def call(*given: Any, **more: Any) -> Any:
        if not torch.compiler.is_compiling() and (
            any(not mode.ignore_compile_internals() for mode in _modes())
            or torch._C._functorch.peek_interpreter_stack() is not None
        ):
            return model._call_impl(*given, **more)
        return compiled(*given, **more)

    model._compiled_call_impl = call


def prepare_thread() -> None:
    """Keep the compiler from falling back in this thread: torch has such settings by thread. Raises ConfigurationError where
    it has not the names for that."""
    import torch

    config: Any = torch.compiler.config
    public = ("fail_on_recompile_limit_hit", "wrap_top_frame")
    lacking = [f"torch.compiler.config.{name}" for name in public if not hasattr(config, name)]
    if not hasattr(torch._inductor, "compile"):
        lacking.append("torch._inductor.compile")
    if lacking:
        raise ConfigurationError(
            [f"run.compile: torch {torch.__version__} has no {lacking[0]}"],
            "take a later torch, or leave run.compile out",
            code="model.compiler-limits",
        )
    config.recompile_limit = config.accumulated_recompile_limit = _SHAPES
    config.fail_on_recompile_limit_hit = True
    # Or random numbers within activation checkpoints come from states that no seed sets, and follow from the calls before.
    with contextlib.suppress(AttributeError):
        torch._functorch.config.graphsafe_rng_functionalization = False
    config.wrap_top_frame = True  # or a model of a class of torch, such as Sequential, is left as it is without a word


def start(device: str) -> None:
    """Prepare the compiler, once in a worker, before its model is built. Raises ConfigurationError where this node cannot
    compile for `device`."""
    prepare()
    found = problem(device)
    if found is not None:
        raise ConfigurationError([found])


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    """Within the block calls of compiled models run eagerly, as where they are served."""
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


def is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _VARIABLES.fullmatch(name) and not _NO_BITS.fullmatch(name)
    }


def _includes() -> list[str]:
    """The folders in which the compiler looks for Python's headers."""
    given = ":".join(os.environ.get(name, "") for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"))
    return [sysconfig.get_path("include"), *filter(None, given.split(":"))]


def _compiler() -> str:
    """The C++ compiler that torch chooses on Linux."""
    return os.environ.get("CXX") or "g++"


def _cxx() -> str | None:
    """The first line of what the compiler says of its version; None where there is none."""
    found = shutil.which(_compiler())
    return None if found is None else _said(found)


@functools.cache
def _said(compiler: str) -> str | None:
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return said.stdout.partition("\n")[0] or None


def _triton() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None
