"""Kinds of faults: one line of a table for each, and one file for each family.

A kind of the process family is suffered by the process that meets the moment, which calls `strike`. The others are done by
the file of their family, or by the traps. Faults of a run's surroundings have no moment; tests try them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Family = Literal["process", "driver", "storage", "node", "network", "clock", "memory", "version"]
Effect = Literal["ends", "asks", "delays", "stalls", "fails"]


@dataclass(frozen=True)
class Kind:
    """effect: it ends its process at once; asks it to end, which may come late or never; delays it, and nothing is lost; or
    stalls it until the step's timeout, or the lease, ends it. Or the run says why it cannot go on, and is resumed. signal: by
    which others can do it to a process; tests: which try it where the campaign does not."""

    name: str
    family: Family
    effect: Effect
    what: str
    signal: str | None = None
    tests: str | None = None

    @property
    def built(self) -> bool:
        return self.tests is None

    @property
    def has_moments(self) -> bool:
        return self.family in ("process", "driver", "clock", "version")


KINDS: Final = (
    Kind("SIGKILL", "process", "ends", "killed from outside, or by the kernel", "SIGKILL"),
    Kind("SIGTERM", "process", "asks", "told to end: Ray lets a worker that is busy go on", "SIGTERM"),
    Kind("SIGSEGV", "process", "ends", "native code reads where nothing is"),
    Kind("abort", "process", "ends", "native code calls abort()", "SIGABRT"),
    Kind("os._exit", "process", "ends", "the user's code ends the process"),
    Kind("short stop", "process", "delays", "SIGSTOP, and SIGCONT before the step's timeout", "SIGSTOP"),
    Kind("long stop", "process", "stalls", "SIGSTOP for longer than the step's timeout", "SIGSTOP"),
    Kind("GIL held", "process", "stalls", "native code keeps the interpreter for longer than the step's timeout"),
    Kind("out of memory", "process", "fails", "an allocation fails at the limit of the process (RLIMIT_AS)"),
    Kind("out of descriptors", "process", "fails", "no descriptor is left (RLIMIT_NOFILE)"),
    Kind("driver SIGKILL", "driver", "ends", "the driver is killed; run.supervised goes on", "SIGKILL"),
    Kind("driver stop", "driver", "stalls", "the driver is stopped for longer than the lease", "SIGSTOP"),
    Kind("damaged file", "storage", "fails", "a bit is flipped, or the end is cut off, of a file that a resume reads"),
    Kind("disk full", "storage", "delays", "the disk of the checkpoints has no room for some seconds"),
    Kind("MLflow away", "storage", "delays", "an MLflow server is killed, and started again seconds later"),
    Kind("S3 hangs", "storage", "delays", "the S3 server of the checkpoints answers nothing for some seconds"),
    Kind(
        "bucket errors",
        "storage",
        "delays",
        "the S3 server of the checkpoints answers 500, or breaks off in the middle",
    ),
    Kind("node lost", "node", "delays", "all processes of a host are killed, and a node starts there again"),
    Kind("node stopped", "node", "delays", "all processes of a host stand still"),
    Kind("cut", "network", "delays", "nothing passes between two hosts"),
    Kind("cut one way", "network", "delays", "nothing passes from the second host to the first"),
    Kind(
        "cut between workers", "network", "delays", "nothing passes between two hosts; both reach the driver on a third"
    ),
    Kind("flapping wire", "network", "delays", "the wire comes and goes by itself, each for 0.1 to 1.5 s"),
    Kind("slow wire", "network", "delays", "each frame takes 0.2 s"),
    Kind("lossy wire", "network", "delays", "a tenth of all frames is lost"),
    Kind("shuffled frames", "network", "delays", "a tenth of all frames comes twice, a fifth late"),
    Kind("jam", "network", "delays", "frames are held, and then released in one moment"),
    Kind("clock", "clock", "delays", "the wall clock of the machine jumps an hour forward, the next time back"),
    Kind("flipped gradients", "memory", "fails", "a bit of every gradient that a worker computes from a step on"),
    Kind("flipped parameter", "memory", "fails", "one bit of the parameters of one worker, once"),
    Kind("version", "version", "ends", "a worker that comes is of another build, and has prepared another run"),
)
AROUND: Final = ("storage", "node", "network")  # done to the surroundings of a launch, some times
BY_NAME: Final = {kind.name: kind for kind in KINDS}


def of_family(*families: str) -> tuple[str, ...]:
    """The names of the kinds that are built, of these families."""
    return tuple(kind.name for kind in KINDS if kind.family in families and kind.built)


WITH_MOMENTS: Final = tuple(kind.name for kind in KINDS if kind.has_moments)
