"""The one way of calling git: a subprocess that inherits nothing of an outer git and takes no optional lock.

Variables of a hook or an outer command (`GIT_DIR`, `GIT_INDEX_FILE`, ...) are dropped; a user's choices for all repositories
are kept. `ALONE` sets aside the user's and the machine's configuration too, for repositories that are ours. Nothing here
writes unless its caller asks for that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_KEPT = frozenset(
    {
        "GIT_CEILING_DIRECTORIES",
        "GIT_CONFIG_GLOBAL",
        "GIT_CONFIG_NOSYSTEM",
        "GIT_CONFIG_SYSTEM",
        "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    }
)
_ALWAYS = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",  # a commit means its own tree, whatever refs/replace says
    "GIT_NO_LAZY_FETCH": "1",  # a partial clone asks nobody for what it lacks
}
_GIT = ("git", "-c", "core.fsmonitor=false")
_PIECE_BYTES = 1 << 16
# A process group: an interrupt typed at a terminal is for the command, which may still record its code. Git asks nothing there.
_OF_ITS_OWN = 0
ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull}


class GitMissing(Exception):
    """There is no git on this machine."""


class GitError(Exception):
    """git refused; the message is its own."""


def run(
    folder: Path,
    *arguments: str,
    stdin: bytes | IO[bytes] = b"",
    variables: Mapping[str, str] | None = None,
    stdout: IO[bytes] | None = None,
) -> bytes:
    """git's answer, or nothing where it goes to `stdout`. Raises GitMissing and GitError."""
    data, source = (stdin, None) if isinstance(stdin, bytes) else (None, stdin)
    try:
        done = subprocess.run(
            [*_GIT, *arguments],
            cwd=folder,
            env=_environment(variables),
            input=data,
            stdin=source,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=_OF_ITS_OWN,
            check=False,
        )
    except FileNotFoundError as error:
        if error.filename != "git":  # the folder is what is not there
            raise
        raise GitMissing("git is not installed, or not on the PATH") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise GitError(f"git {_verb(arguments)}: {said}")
    return done.stdout or b""


def _verb(arguments: Sequence[str]) -> str:
    """`status` of `-c NAME=VALUE status -z`."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[2 if arguments[0] == "-c" else 1 :]
    return arguments[0] if arguments else ""


@contextmanager
def entries(folder: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Iterator[Iterator[bytes]]:
    """The entries of an answer that ends each with NUL, as they come: of one without end, too. git is ended with the block."""
    with subprocess.Popen(
        [*_GIT, *arguments],
        cwd=folder,
        env=_environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=_OF_ITS_OWN,
    ) as process:
        assert process.stdout is not None
        try:
            yield _entries(process.stdout)
        finally:
            process.kill()


def _entries(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while piece := stream.read(_PIECE_BYTES):
        *whole, rest = (rest + piece).split(b"\0")
        yield from whole


def _environment(variables: Mapping[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    return {**kept, **_ALWAYS, **(variables or {})}


def line(folder: Path, *arguments: str) -> str | None:
    """The one line that git answers; None where it refuses."""
    try:
        return os.fsdecode(run(folder, *arguments).removesuffix(b"\n"))
    except GitError:
        return None


def is_on_a_remote(folder: Path, commit: str) -> bool:
    """Whether a branch of a remote has the commit, as far as the last fetch or push knew."""
    return bool(line(folder, "for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes"))


def records(answer: bytes) -> list[bytes]:
    """The entries of an answer that ends each with NUL (`-z`)."""
    return answer.split(b"\0")[:-1]


def known_files(folder: Path) -> list[str] | None:
    """The files below `folder`, relative to it, that git tracks or would if they were added; None without git or repository."""
    try:
        listed = run(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except (GitError, GitMissing):
        return None
    return sorted({os.fsdecode(name) for name in records(listed)})
