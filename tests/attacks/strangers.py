"""Records as a stranger sends them, made by hand, whole and true to their statement, and a watch over what is done with them.

The watch sees what Python does in this process: files opened for writing, folders made, processes started, connections.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.provenance.crates import archive, crate

TARGET = "stranger_module:Net"  # of a module that is beside the victim: who imports it leaves EXECUTED
EXECUTED = "executed"
SETTINGS: dict[str, Any] = {
    "run": {"steps": 2},
    "pipeline": {"target": TARGET},
    "optimizer": {"name": "sgd", "lr": 0.1},
}
RUN: dict[str, Any] = {
    "run_id": "a" * 32,
    "name": "a gift",
    "experiment": "default",
    "status": "FINISHED",
    "started_ms": 1,
    "steps": 2,
    "metrics": {},
    "digest": "d" * 64,
    "verdict": None,
    "user": "mallory",
}
NODE: dict[str, Any] = {"packages": {}, "builds": {}, "origins": {}, "bits": {"variables": {}}}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PLACES = {  # event -> which of its arguments are places that are written
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.chmod": (0,),
    "os.truncate": (0,),
}
_STARTS = ("subprocess.Popen", "os.exec", "os.system", "os.posix_spawn", "os.fork", "pty.spawn")
_EXECUTES = ("pickle.find_class", "marshal.loads")


@dataclass
class Seen:
    """written: places; started: command lines; connected: addresses; unpickled: names that pickles ask for."""

    written: list[Path] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    unpickled: list[str] = field(default_factory=list)

    def outside(self, *folders: Path) -> list[Path]:
        """The files that were written in none of these folders."""
        real = [folder.resolve() for folder in (*folders, Path(os.devnull))]
        return [place for place in self.written if not any(place.is_relative_to(folder) for folder in real)]


_watching: list[Seen] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    seen = _watching[-1]
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
        _note(seen, arguments[0])
    elif event in _PLACES:
        for number in _PLACES[event]:
            _note(seen, arguments[number])
    elif event in _STARTS:
        seen.started.append(str(arguments[1] if event == "subprocess.Popen" else arguments[0]))
    elif event == "socket.connect":
        seen.connected.append(str(arguments[1]))
    elif event == "pickle.find_class":
        seen.unpickled.append(f"{arguments[0]}.{arguments[1]}")


def _note(seen: Seen, place: Any) -> None:
    """Notes a written path. A bare name beside an open folder, and a descriptor, are left out: the folder or file was opened
    before."""
    if isinstance(place, str | bytes | os.PathLike):
        path = os.fsdecode(place)
        if "/" in path:
            seen.written.append(Path(os.path.realpath(os.path.dirname(path))) / os.path.basename(path))  # noqa: PTH119, PTH120


sys.addaudithook(_hook)


@contextlib.contextmanager
def watched() -> Iterator[Seen]:
    seen = Seen()
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def record(
    settings: Mapping[str, Any] | str = SETTINGS,
    node: Mapping[str, Any] = NODE,
    code: Mapping[str, Any] | None = None,
    bundle: bytes = b"a bundle\n",
    **more: Any,
) -> dict[str, bytes]:
    """The files of a record's folder by name; more: other ones, such as reads={...} of reads.json."""
    text = settings if isinstance(settings, str) else yaml.safe_dump(settings)
    told = {
        "code": {"origin": "c" * 40, "tree": "t" * 40, "modules": {}, **(code or {})},
        "data": {"inputs": []},
        "environment": {"nodes": {"n": dict(node)}},
        **more,
    }
    lines = "".join(f'{{"step": {step}, "loss": "0x1p+0", "gradient": "00"}}\n' for step in range(2))
    return {
        "settings.yaml": text.encode(),
        "code.bundle": bundle,
        "trace.jsonl": lines.encode(),
        **{f"{name}.json": json.dumps(value).encode() for name, value in told.items()},
    }


def sent(target: Path, files: Mapping[str, bytes], run: Mapping[str, Any] = RUN) -> Path:
    """A crate with this record, whose statement is right."""
    named: dict[str, archive.Content] = {f"{crate.RECORD}/{name}": content for name, content in files.items()}
    archive.write(crate.make({**named, crate.LOCK: b""}, run, {}).files, target)
    return target


def victim(folder: Path) -> Path:
    """The folder in which the command is typed; of the module that records name there is one here, and who imports it leaves a
    file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stranger_module.py").write_text(
        f"import pathlib\npathlib.Path({str(folder / EXECUTED)!r}).touch()\nclass Net: ...\ndef few(*_, **__): ...\n"
    )
    return folder
