"""The environment of a run on one node: `bits`, which may change the result, and `host`, which only describes.

Called by a process of the node (a worker, after its thread is prepared), and returned as plain data. Threads are a setting, so
*_NUM_THREADS is described and no more: Ray sets it as it likes. Names, users, folders, languages, time zones and devices chosen
are described, or not even that. No subprocess, no network; 0.1 s where torch is imported already.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.common.distributions import is_of_python
from orchestrator.numerics import cuda, inductor
from orchestrator.numerics.determinism import cpu_model
from orchestrator.provenance.environment import conda, libraries, packages, region
from orchestrator.records import redaction

_BITS = re.compile(
    r"(MKL|OMP|KMP|GOMP|ATEN|ONEDNN|DNNL|OPENBLAS|BLIS|NPY|CUBLAS|CUBLASLT|CUDA|CUDNN|NCCL|NVIDIA|TORCH|PYTORCH)_\w+"
    r"|PYTHONHASHSEED|PYTHONOPTIMIZE|LD_PRELOAD|GLIBC_TUNABLES|DISABLE_ADDMM_CUDA_LT"
)
_DESCRIBED = re.compile(rf"{region.VARIABLE.pattern}|LD_LIBRARY_PATH|RAY_\w+_THREADS")
_NO_BITS = re.compile(
    r"\w*(_NUM_THREADS|VISIBLE_DEVICES|DEVICE_ORDER|_HOME|_DIR|_PATH|_ROOT|_LOGS?|VERBOSE|_ALLOC_CONF|_CACHE\w*)"
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_CUSTOMIZE = ("sitecustomize", "usercustomize")
_INSTRUCTION_SETS = re.compile(r"sse4_[12]|avx\w*|fma|f16c|amx\w*|asimd\w*|neon|sve\w*|bf16|i8mm|vsx|rvv")


@dataclass(frozen=True)
class Environment:
    """The environment of a run on one node."""

    packages: dict[str, str]  # name -> version
    # name -> what tells two builds of a version apart: `sha256` of the files it installed, `commit`, or `editable` with
    # its `location`
    builds: dict[str, dict[str, Any]]
    # name -> where it came from, of what did not come from an index (packages.py, or `conda`)
    origins: dict[str, dict[str, Any]]
    bits: dict[str, Any]  # what may change the result
    host: dict[str, Any]  # what only describes
    conda: Sequence[conda.Package] = ()  # the packages of its environment (conda.py); empty where it is none of conda

    @property
    def packages_sha256(self) -> str:
        return packages.sha256_of(self.packages, self.builds)

    def as_dict(self) -> dict[str, Any]:
        """bits with the hashes of all packages in it: the environment's part of the identity (`records.identity`)."""
        of_conda = {"conda_sha256": conda.sha256_of(self.conda)} if self.conda else {}
        return {
            "bits": {**self.bits, "packages_sha256": self.packages_sha256, **of_conda},
            "packages": self.packages,
            "builds": self.builds,
            "origins": self.origins,
            "host": self.host,
            **({"conda": conda.as_record(self.conda)} if self.conda else {}),
        }


def capture(device: str = "cpu", *, portable: bool = False, compiled: bool = False) -> Environment:
    """This process's environment. device: what computes; only when it is `cuda` do GPUs belong to the bits. portable: whether
    the processor does not, as under `run.arithmetic: portable`; compiled: whether compilers do (`run.compile`)."""
    versions, builds = packages.installed()
    place = conda.prefix()
    brought = {} if place is None else conda.python_packages(place)
    linked = _libraries(place)
    bits = {
        **_interpreter(),
        **({} if portable else _processor()),
        **_torch(),
        "libraries": {name: libraries.sha256(file) for name, file in linked.items()},
        "orchestrator": packages.own_sha256(),
        "variables": variables(),
    }
    if device == "cuda":
        bits["gpu"] = cuda.describe()
    if compiled:
        bits["compiler"] = inductor.describe()
    return Environment(
        packages=versions,
        builds=builds,
        origins=packages.origins() | {name: {"conda": told} for name, told in brought.items() if name in versions},
        bits=bits,
        host={
            **_host(),
            "libraries": _described(linked),
            **(_processor() if portable else {}),
            **({"gpu_uuids": cuda.uuids()} if device == "cuda" else {}),
        },
        conda=() if place is None else conda.installed(place),
    )


def surroundings() -> dict[str, Any]:
    """The facts that another process of this environment can tell without torch, in the form of a record's node."""
    (versions, builds), place = packages.installed(), conda.prefix()
    return {
        "packages": versions,
        "builds": builds,
        "bits": {**_interpreter(), **_processor(), "orchestrator": packages.own_sha256()},
        "conda": [] if place is None else conda.as_record(conda.installed(place)),
    }


def variables() -> dict[str, str]:
    """The variables that may change bits, so that a rerun can set them as they were. Nothing that looks like a secret."""
    return _chosen(lambda name: bool(_BITS.fullmatch(name)) and not _NO_BITS.fullmatch(name))


def _chosen(wanted: Callable[[str], bool]) -> dict[str, str]:
    named = {name: value for name, value in sorted(os.environ.items()) if wanted(name) and not _SECRET.search(name)}
    return {name: str(redaction.setting(name, value)) for name, value in named.items()}


def _interpreter() -> dict[str, Any]:
    return {
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        **_customized(),
    }


def _customized() -> dict[str, Any]:
    """The hashes of modules of this Python's installation that it imports as it starts. One that lies elsewhere is judged as
    code (`provenance.code.imported`)."""
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in _CUSTOMIZE}
    own = {name: file for name, file in files.items() if file is not None and is_of_python(file)}
    found = {name: hashlib.sha256(_bytes(file)).hexdigest() for name, file in own.items()}
    return {"customized": found} if found else {}


def _processor() -> dict[str, Any]:
    """The model, and of what it can do the part that kernels are chosen by; a kernel's own list grows with its version."""
    text = _text("/proc/cpuinfo").partition("\n\n")[0]
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    found = {flag for flag in (flags.group(1).split() if flags else []) if _INSTRUCTION_SETS.fullmatch(flag)}
    return {"cpu": cpu_model(), "instruction_sets": sorted(found)}


def _torch() -> dict[str, Any]:
    import torch

    return {
        "torch": torch.__version__,
        "torch_commit": torch.version.git_version,
        "torch_config_sha256": hashlib.sha256(torch.__config__.show().encode()).hexdigest(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _libraries(place: Path | None) -> dict[str, Path]:
    """Those of the system that torch was linked to. place: of the environment of conda."""
    import torch

    return libraries.of_system(Path(torch._C.__file__), place)


def _described(linked: Mapping[str, Path]) -> dict[str, str]:
    """Name -> the package of the system that has brought it, where that is known."""
    owners = libraries.packages_of(linked.values())
    return {name: owners[file] for name, file in linked.items() if file in owners}


def _host() -> dict[str, Any]:
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text("/etc/os-release"), re.MULTILINE)
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [re.search(r"Model:\s*(.*)", _text(str(path))) for path in gpus]
    return {
        "name": platform.node(),
        "os": system.group(1) if system else platform.platform(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": int(memory.group(1)) * 1024 if memory else None,
        "gpus": [model.group(1) for model in models if model],
        "gpu_driver": cuda.driver(),
        "container": _container(),
        "executable": sys.executable,
        "time_zone": region.time_zone(),
        "variables": _chosen(
            lambda name: bool(_DESCRIBED.fullmatch(name) or (_BITS.fullmatch(name) and _NO_BITS.fullmatch(name)))
        ),
    }


def _container() -> dict[str, str] | None:
    """The kind of container this process is in and its image, as far as the inside can tell."""
    podman = _text("/run/.containerenv")
    singularity = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    if Path("/run/.containerenv").exists():
        found = dict(re.findall(r'^(image|imageid)="?([^"\n]*)', podman, re.MULTILINE))
        return {"kind": "podman", **found}
    if singularity:
        return {"kind": "apptainer", "image": singularity}
    kind = "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else "docker"
    if kind == "docker" and not Path("/.dockerenv").exists():
        return None
    image = os.environ.get("CONTAINER_IMAGE")
    return {"kind": kind, "image": image} if image else {"kind": kind}


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
