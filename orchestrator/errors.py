"""The errors a user can meet, each with the exit code of the command line.

    OrchestratorError                 1   anything below; never raised itself
    +-- UsageError                    2   the command line asks for something that does not exist
    |   +-- ConfigurationError        2   settings that are wrong; carries every problem found
    +-- RunFailed                     1   the run started and could not go on
    |   +-- PipelineRaised            1   the user's code raised
    |   +-- NonFinite                 1   a loss or a gradient is not a number, or infinite
    |   +-- Inconsistent              1   replicas, shards or attempts disagree where they must not
    |   +-- WorkerLost                1   a worker or a server died
    |   +-- Stalled                   1   nothing moved for `cluster.step_timeout_s`
    |   +-- CheckpointDamaged         1   a checkpoint is incomplete, or not what was written
    |   +-- DataDamaged               1   a data file is missing, or not what its manifest says
    |   +-- OutOfDeviceMemory         1   a GPU has no memory left
    |   +-- ClusterUnavailable        1   Ray cannot start, or cannot give what the run asks for
    +-- NotRerunnable                 4   the run cannot be repeated exactly, and exactness was asked for
    +-- Interrupted                 130   SIGINT, SIGTERM or SIGHUP

An error says what and where in its message and what to do about it in its remedy. Its code, such as `topology.fast-layout`,
says the same to programs, and stays when the sentence changes; `docs/errors.md` lists all of them. An error is an ordinary
value: a worker sends it to the driver as the dictionary `as_dict` gives, because an exception that crosses processes must not
need pickle.
"""

from __future__ import annotations

import base64
import errno
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

Status = Literal["finished", "failed", "killed"]
# A name alone in front of a host of ssh, as in ssh://git@host, is part of where to go, and tells nothing.
_USER_INFO = re.compile(r"(?<=://)(?<!ssh://(?=[\w.-]+@))[^/\s\"'<>]*@")


class StopsWaiting(Exception):
    """No error: whoever waits is to stop, and passes this on through the user's code."""


class CardFailed(Exception):
    """The GPU of this process failed while the user's code computed on it. No error of the run: it passes by whoever tells the
    other members of one, since this process can do nothing more, and another one may go on. error: what the run ends with
    where it cannot."""

    def __init__(self, error: OrchestratorError) -> None:
        super().__init__(error.message)
        self.error = error


class Coded(str):
    """A sentence that knows the code of what it says."""

    __slots__ = ("code",)
    code: str


def coded(code: str, sentence: str) -> Coded:
    """A problem of a ConfigurationError. If another sentence is made of it, `code_of` passes its code on."""
    found = Coded(sentence)
    found.code = code
    return found


def code_of(sentence: str) -> str:
    return getattr(sentence, "code", "")


def without_users(text: str) -> str:
    """A text whose addresses have neither names nor passwords. The name alone stays in one of ssh, which needs it."""
    return _USER_INFO.sub("", text) if "://" in text else text


def said_of(address: str, said: str) -> str:
    """The words of a library about an address, of which it may quote a part."""
    user = _USER_INFO.search(address)
    return without_users(said if user is None else said.replace(user[0], ""))


class OrchestratorError(Exception):
    """An error that a user can cause or meet: one message, one remedy, one exit code. Logs and notebooks keep them, so they
    are without names and passwords of addresses. recurs: whoever goes on with the run, with its code, data and settings, meets
    it again."""

    exit_code: ClassVar[int] = 1
    recurs = False
    more: Mapping[str, object] = {}  # what the JSON object of a refused command says besides
    run_id: str | None = None  # of the run or sweep that it ended, for who has launched it from Python

    def __init__(self, message: str, remedy: str = "", details: str = "", *, code: str = "") -> None:
        self.message = without_users(message)
        self.remedy = without_users(remedy)
        super().__init__(self.message)
        self.details = details  # a full traceback, for the run's folder; never shown
        self.codes: tuple[str, ...] = (code,)  # of each of its problems; "": of a version that had no codes

    @property
    def kind(self) -> str:
        return type(self).__name__

    @property
    def code(self) -> str:
        """The code of its first problem, if it has several."""
        return self.codes[0]

    def as_dict(self) -> dict[str, Any]:
        fields = {**self.told(), "details": self.details}
        return {**fields, "recurs": "true"} if self.recurs else fields

    def told(self) -> dict[str, Any]:
        """The error as JSON tells it to a user."""
        told: dict[str, Any] = {"kind": self.kind, "code": self.code, "message": self.message, "remedy": self.remedy}
        return {**told, "codes": [*self.codes]} if len(self.codes) > 1 else told

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class UsageError(OrchestratorError):
    exit_code = 2


class ConfigurationError(UsageError):
    """Settings that are wrong. `problems` holds one sentence each, so that all are reported at once. code: of those problems
    that are not `coded` themselves."""

    def __init__(self, problems: Sequence[str], remedy: str = "", *, code: str = "") -> None:
        self.problems = tuple(coded(code_of(problem) or code, without_users(problem)) for problem in problems)
        heading = "the configuration is wrong:" if len(self.problems) > 1 else "the configuration is wrong: "
        body = bulleted(self.problems) if len(self.problems) > 1 else self.problems[0]
        super().__init__(heading + body, remedy)
        self.codes = tuple(dict.fromkeys(problem.code for problem in self.problems))

    def with_remedy(self) -> list[str]:
        """Its problems, to stand among those of others: each with the remedy."""
        return [coded(each.code, f"{each} ({self.remedy})") if self.remedy else each for each in self.problems]


class RunFailed(OrchestratorError):
    pass


class PipelineRaised(RunFailed):
    pass


class NonFinite(RunFailed):
    pass


class Inconsistent(RunFailed):
    pass


class WorkerLost(RunFailed):
    pass


class Stalled(RunFailed):
    pass


class CheckpointDamaged(RunFailed):
    pass


class DataDamaged(RunFailed):
    pass


class OutOfDeviceMemory(RunFailed):
    what = ""  # was being done
    frames = ""  # of the user's code, a line each
    taken: Any = None  # a `common.gpu_memory.MemoryUse` of that moment
    wanted = 0  # bytes that could not be had; 0 where nobody has told
    snapshot = b""  # of the allocator, for the run's folder

    def as_dict(self) -> dict[str, Any]:
        fields = super().as_dict()
        packed = base64.b64encode(zlib.compress(self.snapshot)).decode() if self.snapshot else ""
        return {**fields, "snapshot": packed} if packed else fields


class ClusterUnavailable(RunFailed):
    pass


class NotRerunnable(OrchestratorError):
    exit_code = 4


class Interrupted(OrchestratorError):
    exit_code = 130


def few(names: Sequence[str], most: int) -> str:
    """For a message: the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


def bulleted(problems: Sequence[str], most: int | None = None) -> str:
    """For the end of a message: a line for each problem, of at most so many, and how many more there are."""
    more = f"\n  and {len(problems) - most} more" if most is not None and problems[most:] else ""
    return "".join(f"\n  - {problem}" for problem in problems[:most]) + more


def ending(error: OrchestratorError | None) -> dict[str, Any]:
    """How a command ended, as every JSON object says it."""
    if error is None:
        return {"status": "finished"}
    return {"status": status_of(error), "error": error.told()}


def status_of(error: OrchestratorError | None) -> Status:
    if error is None:
        return "finished"
    return "killed" if isinstance(error, Interrupted) else "failed"


def from_dict(error: Mapping[str, Any]) -> OrchestratorError:
    """The error that `as_dict` described; a kind this version does not know becomes a RunFailed, and one that makes its message
    itself, such as ConfigurationError, what it is a kind of. An older version told no codes."""
    kinds = {kind.__name__: _plain(kind) for kind in _descendants(OrchestratorError)}
    found = kinds.get(error["kind"], RunFailed)(error["message"], error["remedy"], error["details"])
    found.codes = tuple(error.get("codes", [error.get("code", "")]))
    found.recurs = "recurs" in error
    if isinstance(found, OutOfDeviceMemory) and "snapshot" in error:
        found.snapshot = zlib.decompress(base64.b64decode(error["snapshot"]))
    return found


def _plain(kind: type[OrchestratorError]) -> type[OrchestratorError]:
    """The nearest kind that takes a message as it is."""
    return next(each for each in kind.__mro__ if each is OrchestratorError or "__init__" not in vars(each))


def _descendants(kind: type[OrchestratorError]) -> list[type[OrchestratorError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _descendants(child))]


def is_out_of_descriptors(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


# The code of replicas that differed (`driver.run.session`). Each writes a part of a checkpoint, so one may hold parts of both.
REPLICAS_DIFFERED = "record.two-ways"
COPIED_OTHERWISE = (
    "on several GPUs a copy from one to another may have arrived otherwise (look at dmesg of that machine for Xid, and let the "
    "workers share one GPU: cluster.gpus_per_worker); otherwise this is a fault of orchestrator"
)
NO_MEMORY = "can't allocate memory"  # in the plain RuntimeError that torch has for it


def is_out_of_memory(error: Exception) -> bool:
    """Whether host memory has ended."""
    return isinstance(error, RuntimeError) and NO_MEMORY in str(error)


def is_out_of_threads(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


OF_THREADS = (
    "let it have more processes and threads (ulimit -u; pids.max of its control group: --pids-limit of docker, TasksMax of "
    "systemd, podPidsLimit of Kubernetes), or use fewer workers on a machine"
)
OF_DESCRIPTORS = "let processes have more open files (ulimit -n), or use fewer workers on a machine"


def unusable(place: str, error: Exception, said: str) -> OrchestratorError:
    """The error for a place that the settings name, `KEY: PLACE`, and that could not be opened; the settings are not to blame
    if no descriptor was left. said: the error in words."""
    said = said_of(place, said)
    if is_out_of_descriptors(error):
        return RunFailed(f"{place} cannot be used: {said}", OF_DESCRIPTORS, code="run.no-descriptors")
    return ConfigurationError([f"{place} cannot be used: {said}"], code="settings.place")
