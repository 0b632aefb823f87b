"""The Dockerfile of a run: from an image with the recorded Python to the verdict of a repetition. Pure.

It is built in a folder that `export=RUN_ID to=FOLDER data=true` makes, which holds code, data, the list of packages and a wheel
of this package. Packages come from where pip takes them while the image is built; the repetition needs no network.
Source of the instructions: docs.docker.com/reference/dockerfile; of the images: hub.docker.com/_/python.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.provenance.environment.interpreters import release_of

FILE = "Dockerfile"
WHEELS = "wheels"
_DEBIAN = {"2.31": "bullseye", "2.36": "bookworm", "2.41": "trixie"}  # by the version of its glibc
_NEWEST = "bookworm"
_TORCH = "https://download.pytorch.org/whl"
_REFERENCE = re.compile(r"[\w.:/@-]+")


def dockerfile(run_id: str, environments: Sequence[Mapping[str, Any]]) -> str | None:
    """The text; None of a run whose workers never told of an environment, and of one of conda, which micromamba makes anew.
    environments: per node; the first one counts."""
    if not environments or environments[0].get("conda"):
        return None
    node = environments[0]
    head = f"# Builds the environment of training run {run_id}, and repeats the run in it.\n" + _usage(run_id, node)
    return head + "\n" + "\n".join(_instructions(node)) + "\n"


def local_folders(node: Mapping[str, Any]) -> dict[str, bool]:
    """The folders of the repository that packages were installed from -> whether in editable mode."""
    origins = node.get("origins", {})
    return {
        str(each["path"]): bool(each.get("editable"))
        for name, each in sorted(origins.items())
        if "path" in each and name != "orchestrator"
    }


def _usage(run_id: str, node: Mapping[str, Any]) -> str:
    name = f"run-{run_id[:8]}"
    gpus = " --gpus all" if "gpu" in node.get("bits", {}) else ""
    lines = [
        f"python -m orchestrator export={run_id} to={name} data=true",
        f"docker build --file {name}/record/{FILE} --tag {name} {name}",
        f"docker run --rm{gpus} {name}",
    ]
    return "".join(f"#   {line}\n" for line in lines) + (
        "# The last command ends with the verdict. Python in an image is another build than elsewhere, which a verdict names,\n"
        "# as it names every package that differs; with environment=ignore behind it the traces alone decide.\n"
        "# From another index: docker build --build-arg PIP_INDEX_URL=URL; from a folder of wheels: export=... wheels=FOLDER.\n"
    )


def _instructions(node: Mapping[str, Any]) -> list[str]:
    local = local_folders(node)
    lines = [
        f"FROM {_image(node)}",
        "ARG PIP_INDEX_URL",  # one a line: Podman 4 reads no second name
        "ARG PIP_FIND_LINKS",
        f"ARG PIP_EXTRA_INDEX_URL={_extra_index(node)}",
        "RUN command -v git || (apt-get update && apt-get install --yes --no-install-recommends git)",
        "WORKDIR /repeat",
        f"COPY requirements.txt {WHEELS}* ./{WHEELS}/",
        f"RUN python -m pip install --no-deps --find-links {WHEELS} --requirement {WHEELS}/requirements.txt orchestrator",
    ]
    if local:
        installed = " ".join(
            f"{'--editable ' if editable else ''}{shlex.quote(f'./code/{path}')}" for path, editable in local.items()
        )
        lines += [
            "COPY record/code.bundle ./",
            "RUN git init --quiet code && git -C code fetch --quiet ../code.bundle 'refs/*:refs/bundle/*' "
            "&& git -C code checkout --quiet $(git -C code for-each-ref --format='%(objectname)' refs/bundle)",
            f"RUN python -m pip install --no-deps {installed}",
        ]
    return [*lines, "COPY . crate", 'ENTRYPOINT ["python", "-m", "orchestrator", "rerun=crate/", "trust=true"]']


def _image(node: Mapping[str, Any]) -> str:
    """The image of the run if it was told, else the official one of its Python, with a libc as near as there is."""
    known = (node.get("host", {}).get("container") or {}).get("image")
    if known and _REFERENCE.fullmatch(known):
        return str(known)
    bits = node.get("bits", {})
    libc = str(bits.get("libc", "")).rpartition(" ")[2]
    return f"python:{release_of(str(bits.get('python', '')))}-slim-{_DEBIAN.get(libc, _NEWEST)}"


def _extra_index(node: Mapping[str, Any]) -> str:
    """Builds of torch for one kind of processor, `2.13.0+cpu`, are on an index of their own."""
    label = str(node.get("packages", {}).get("torch", "")).partition("+")[2]
    return f"{_TORCH}/{label}" if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", label) else ""
