"""The instructions of a Dockerfile executed without Docker: in a root of its own, made of folders of this system.

The image of FROM is stood in for by this system's programs, which cannot be written to, and a new virtual environment as its
Python. So it is not shown that the named image exists and has a shell, git and pip, nor that apt-get installs git; each ARG,
COPY, WORKDIR, RUN and ENTRYPOINT is executed as Docker would.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.projects import PATIENCE_S, Done

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt")
_MADE_HERE = ("dev", "proc", "tmp", "home", "image")


@dataclass
class Image:
    """root: of its files; context: the folder of COPY; arguments: of --build-arg."""

    root: Path
    context: Path
    arguments: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    entry: list[str] = field(default_factory=list)

    def build(self, dockerfile: Path) -> None:
        for name in _MADE_HERE:
            (self.root / name).mkdir(parents=True)
        self.variables = {
            "PATH": "/image/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/home",
            "TMPDIR": "/tmp",
            "LANG": "C.UTF-8",
        }
        done = self.execute([f"{sys.base_prefix}/bin/python3", "-m", "venv", "/image"], self.variables)
        assert done.code == 0, done.err
        for line in dockerfile.read_text().splitlines():
            if line and not line.startswith("#"):
                word, _, rest = line.partition(" ")
                getattr(self, f"_{word.lower()}")(rest)

    def run(self, *arguments: str) -> Done:
        """Does what `docker run --network none` would do."""
        loopback = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
        return self.execute([*loopback, *self.entry, *arguments], self.variables)

    def execute(self, command: list[str], variables: dict[str, str]) -> Done:
        """In a mount namespace of its own, so that nothing stays mounted."""
        binds = [f"mount --rbind /dev {self.root}/dev && mount -t proc proc {self.root}/proc"]
        binds += [_bound(Path("/") / name, self.root) for name in _SYSTEM if (Path("/") / name).exists()]
        binds.append(_bound(Path(sys.base_prefix), self.root))
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"
        script = " && ".join([*binds, f"exec chroot {self.root} /bin/sh -c {shlex.quote(inside)}"])
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            env={**variables, "PATH": variables["PATH"] + ":/usr/local/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def _from(self, reference: str) -> None:
        assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", reference), reference

    def _arg(self, rest: str) -> None:
        for each in shlex.split(rest):
            name, equals, default = each.partition("=")
            if equals or name in self.arguments:
                self.arguments.setdefault(name, default)

    def _workdir(self, folder: str) -> None:
        self.folder = folder
        (self.root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        *sources, target = shlex.split(rest)
        found = (
            [self.context]
            if sources == ["."]
            else [path for each in sources for path in sorted(self.context.glob(each))]
        )
        assert found, rest
        place = self.root / self.folder.lstrip("/") / target
        for each in found:
            if each.is_dir():  # its content is copied
                shutil.copytree(each, place, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(each, place)

    def _run(self, command: str) -> None:
        done = self.execute(["/bin/sh", "-c", command], {**self.variables, **self.arguments})
        assert done.code == 0, (command, done.out[-3000:], done.err[-3000:])

    def _entrypoint(self, rest: str) -> None:
        self.entry = json.loads(rest)


def _bound(folder: Path, root: Path) -> str:
    """The command that shows a folder of this system at its own place below the root, read-only; a link is a link there,
    too."""
    place = root / str(folder).lstrip("/")
    if folder.is_symlink():
        return f"ln -sfn {folder.readlink()} {place}"
    return f"mkdir -p {place} && mount --bind {folder} {place} && mount -o remount,bind,ro {place}"
