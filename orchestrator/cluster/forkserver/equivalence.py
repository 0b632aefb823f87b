"""Whether a process that is forked would be the one that its user would have started: the same libraries, imported with the
same variables, under the same rights.

The kernel tells the facts about the other process (`/proc`), so that nobody can claim them.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.common.frames import file_of

# Variables that libraries in C read when they are loaded, and Python when it starts; reads of others are seen.
_READ_BY_C = re.compile(
    r"(PYTHON|LC_|LD_|MALLOC_|MKL_|OMP_|KMP_|GOMP_|ATEN_|ONEDNN_|DNNL_|OPENBLAS_|BLIS_|NPY_|CUDA_|CUBLAS|CUDNN_|NCCL_|NVIDIA_"
    r"|TORCH|PYTORCH_)\w*|LANG|LANGUAGE|GLIBC_TUNABLES"
)
_RIGHTS = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_OF_GPUS = "/dev/nvidia"  # what the driver (CUDA) and the library that manages them (NVML) open
_LIMITS = sorted(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))

Files = dict[str, tuple[int, int]]


@contextlib.contextmanager
def variables_read() -> Iterator[dict[str, str | None]]:
    """Which variables Python code asks for inside the block, with their values; whoever takes all of them asks for none.
    `os.environ` is as it was afterwards."""
    found: dict[str, str | None] = {}
    kind: Any = type(os.environ)
    usual, usual_names = kind.__getitem__, kind.__iter__
    passed: deque[str] = deque()  # names that were given to who goes through all, and may ask for each of them now

    def noting(environment: Any, name: Any) -> Any:
        value = None
        try:
            value = usual(environment, name)
            return value
        finally:
            if passed and passed[0] == name:
                passed.popleft()
            elif isinstance(name, str):
                found.setdefault(name, value)

    def names(environment: Any) -> Iterator[str]:
        passed.clear()
        for name in usual_names(environment):
            passed.append(name)
            yield name

    kind.__getitem__, kind.__iter__ = noting, names
    try:
        yield found
    finally:
        kind.__getitem__, kind.__iter__ = usual, usual_names


def other_variables(
    own: Mapping[str, str], read: Mapping[str, str | None], theirs: Mapping[str, str], given: Mapping[str, str]
) -> list[str]:
    """The variables by which the asking process might have imported something else. own: of the server when it began; read:
    those that imports looked up; theirs: of the asking process; given: set by the server for its imports alone. Pure."""
    of_c = {name for name in (*own, *theirs) if _READ_BY_C.fullmatch(name)}
    before = {**{name: own.get(name) for name in of_c}, **read}
    other = {name for name, value in before.items() if name not in given and theirs.get(name) != value}
    return sorted(other | {name for name, value in given.items() if theirs.get(name, value) != value})


def imported_files() -> Files:
    """The file of each module that has one, with the time and the size that tell whether it has changed."""
    files = set(map(file_of, list(sys.modules.values())))
    return {file: found for file in files if isinstance(file, str) and (found := _looks(file)) is not None}


def changed(files: Files) -> str | None:
    """The first file that is another one now."""
    return next((file for file, before in files.items() if _looks(file) != before), None)


def _looks(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 (of thousands of files, for each process that is forked)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def shadowed(folder: int) -> str | None:
    """A file of the working directory that Python would import in place of a library that has been imported."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    for name in sorted(os.listdir(folder)):
        stem, _, suffix = name.partition(".")
        is_code = suffix.endswith(("py", "pyc", "so")) or (not suffix and _has_init(folder, name))
        if is_code and stem in loaded and not _is_ours(folder, stem):
            return name
    return None


def _has_init(folder: int, name: str) -> bool:
    try:
        os.stat(f"{name}/__init__.py", dir_fd=folder)
    except OSError:
        return False
    return True


def _is_ours(folder: int, name: str) -> bool:
    """Whether it is the module that has been imported: orchestrator itself, in its own checkout."""
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        return file is not None and os.path.samestat(os.stat(f"{name}/__init__.py", dir_fd=folder), Path(file).stat())
    except OSError:
        return False


def opened_gpu(descriptors: Path = Path("/proc/self/fd")) -> str | None:
    """The file of a GPU of NVIDIA's, or of its driver, that this process has open."""
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            if (file := str(descriptor.readlink())).startswith(_OF_GPUS):
                return file
    return None


def rights(process: int) -> dict[str, str]:
    """The rights of a process, and the namespaces and groups in which it lives. Raises OSError."""
    place = Path(f"/proc/{process}")
    lines = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
    found = {name: lines[name].strip() for name in _RIGHTS if name in lines}
    found |= {
        f"{name} namespace": str((place / "ns" / name).readlink())
        for name in _SPACES
        if (place / "ns" / name).is_symlink()
    }
    found["cgroup"] = (place / "cgroup").read_text()
    found["root"] = str((place / "root").readlink())
    found["hard limits"] = str([resource.prlimit(process, each)[1] for each in _LIMITS])
    return found


def other_rights(own: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))


def take_signals_over(process: int) -> None:
    """Ignore and block the signals that this process ignores (as under `nohup` or behind `&`) and blocks. Raises OSError."""
    status = Path(f"/proc/{process}/status").read_text()
    ignored, blocked = (
        {number for number in range(1, signal.NSIG) if int(found[1], 16) >> (number - 1) & 1} if found else set()
        for found in (re.search(rf"^{name}:\s*(\w+)", status, re.MULTILINE) for name in ("SigIgn", "SigBlk"))
    )
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def take_over(process: int) -> None:
    """Have this process be like that one in what rights leave open. Raises OSError where that cannot be."""
    status = Path(f"/proc/{process}/status").read_text()
    if found := re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE):
        os.umask(int(found[1], 8))
    for each in _LIMITS:
        resource.setrlimit(each, resource.prlimit(process, each))
    os.sched_setaffinity(0, os.sched_getaffinity(process))
    if (theirs := os.getpriority(os.PRIO_PROCESS, process)) != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, theirs)
    killed_first, own = Path(f"/proc/{process}/oom_score_adj").read_text(), Path("/proc/self/oom_score_adj")
    if own.read_text() != killed_first:
        own.write_text(killed_first)
