"""A small project under git and DVC, made once; tests work on copies of it, since each call into DVC takes a second.

data/imgs/{b.txt, deep/a.txt}   dvc add            made/numbers.txt   stage `count` of sub/dvc.yaml, wdir ..
raw.csv                         dvc add            notes.txt          in git           loose.txt   ignored by both
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import yaml

from orchestrator.provenance.data import hashing, versions

FILES = {
    "data/imgs/b.txt": "b",
    "data/imgs/deep/a.txt": "a\r\n",
    "raw.csv": "1,2\n",
    "notes.txt": "n",
    "loose.txt": "l",
}


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def capture(project: Path, paths: list[str]) -> list[versions.Input]:
    return versions.look_up(project, {path: hashing.scan_input(project, path) for path in paths})


def make(folder: Path, remote: Path) -> None:
    from dvc.repo import Repo

    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("loose.txt\n/made\n")
    (folder / "sub").mkdir()
    (folder / "made").mkdir()
    stage = {"cmd": "echo 123 > made/numbers.txt", "wdir": "..", "outs": ["made/numbers.txt"]}
    (folder / "sub" / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"count": stage}}))
    with Repo.init(str(folder)) as repository:
        with repository.config.edit() as settings:
            settings["remote"] = {"far": {"url": str(remote)}}
            settings["core"]["remote"] = "far"
        repository.add([str(folder / "data/imgs"), str(folder / "raw.csv")])
        repository.reproduce(str(folder / "sub" / "dvc.yaml"))
    with Repo(str(folder)) as repository:
        repository.push()
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")


def work_tree(project: Path, target: Path) -> Path:
    """The files that git would check out: everything but the data and DVC's cache."""
    shutil.copytree(
        project, target, symlinks=True, ignore=shutil.ignore_patterns(".git", "cache", "tmp", "imgs", "made")
    )
    for name in ("raw.csv", "loose.txt"):
        (target / name).unlink(missing_ok=True)
    return target


def listing(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and time, to see that nothing was touched."""
    found = (Path(place, name) for place, _, files in os.walk(folder) for name in files)
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in found if file.is_file()}
