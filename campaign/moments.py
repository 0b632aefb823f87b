"""When a fault strikes: the moments of a run, as places of the program, and the words through which they are armed.

Nobody waits for a moment from outside. Each process of a run under test tells where it is (`orchestrator.common.injection`),
and looks there into one word of memory that all processes of the campaign share (`campaign.traps`). When its moment is armed,
the process itself, being exactly there, claims the fault and suffers it. So a fault of the moment "vote" strikes in the midst
of a vote, and one of "held sum" between a sum and the second vote that commits it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True)
class Moment:
    """name: in plans and tables; where: the place of the program; joins: it is met only by a worker that comes, or by one that
    gives it the state; once: only the end of a run has it."""

    name: str
    where: str
    joins: bool = False
    once: bool = False


MOMENTS: Final = (
    Moment("prepare", "while the model is built", joins=True),
    Moment("admission", "prepared and proved alike, before the first generation", joins=True),
    Moment("compute", "before a micro-batch"),
    Moment("vote", "before a message of the vote"),
    Moment("sum", "before a message of the sum"),
    Moment("held sum", "after the sum, before a message of the second vote"),
    Moment(
        "apply", "as the update begins; where replicas run free, when a rest has been applied and is not counted yet"
    ),
    Moment("state transfer", "before a message of a state that is handed over", joins=True),
    Moment("checkpoint copy", "at the boundary of a checkpoint"),
    Moment("checkpoint write", "in the thread that writes a part"),
    Moment("manifest", "in the driver: the manifest is there, and the parts before it are not removed yet"),
    Moment("sprint", "before a message of a sprint"),
    Moment("rest", "before a message of a rest"),
    Moment("evaluation", "while a part of the validation set is evaluated"),
    Moment("end", "in the exchange after the last step", once=True),
    Moment("anywhen", "from outside, wherever it is"),
)
NAMES: Final = tuple(moment.name for moment in MOMENTS)
BY_NAME: Final = {moment.name: moment for moment in MOMENTS}
FROM_OUTSIDE: Final = "anywhen"

# The folder of the words, in the environment of processes under test. By its name, and as long as it lies below `PLACE`, it is
# none of what a pipeline reads and a record has to tell of (`orchestrator.data.input_auditing`).
VARIABLE: Final = "XDG_CAMPAIGN_DIR"
PLACE: Final = "/dev/shm"
_GATE, _STEP, _STEP_NS, _DRIVER, _CLOCK, _FLIP, _SHIFT = range(7)
_FIRST: Final = 8  # the word of the first moment
_SIZE_BYTES: Final = mmap.PAGESIZE
NOTHING: Final = 0


class Words:
    """The shared memory: which fault each moment is armed with, how far the run may go and has come, and who drives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "words"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < _SIZE_BYTES:
                os.ftruncate(descriptor, _SIZE_BYTES)
            self._words = memoryview(mmap.mmap(descriptor, _SIZE_BYTES)).cast("q")
        finally:
            os.close(descriptor)

    def armed(self, moment: int) -> int:
        """The number of the fault that this moment is armed with; NOTHING where it is not."""
        return self._words[_FIRST + moment]

    def arm(self, moment: str, fault: int) -> None:
        self._words[_FIRST + NAMES.index(moment)] = fault

    def disarm(self) -> None:
        for moment in range(len(NAMES)):
            self._words[_FIRST + moment] = NOTHING

    @property
    def gate(self) -> int:
        """No micro-batch of this step or a later one begins."""
        return self._words[_GATE]

    @gate.setter
    def gate(self, step: int) -> None:
        self._words[_GATE] = step

    @property
    def steps(self) -> int:
        """How many steps some worker has committed."""
        return self._words[_STEP]

    @property
    def clock(self) -> int:
        """The highest step that some worker wanted to compute: where shards run free, far ahead of `steps`."""
        return self._words[_CLOCK]

    def wants(self, step: int) -> None:
        if step > self._words[_CLOCK]:
            self._words[_CLOCK] = step

    @property
    def committed_ns(self) -> int:
        """When the last commit was, on the monotonic clock."""
        return self._words[_STEP_NS]

    def committed(self, steps: int, now_ns: int) -> None:
        if steps > self._words[_STEP]:
            self._words[_STEP], self._words[_STEP_NS] = steps, now_ns

    def begin(self) -> None:
        """For a run from its beginning."""
        for word in (_GATE, _STEP, _STEP_NS, _DRIVER, _CLOCK, _FLIP, _SHIFT):
            self._words[word] = 0
        self.disarm()

    @property
    def flip(self) -> int:
        """The number of the fault that flips bits; NOTHING where none does."""
        return self._words[_FLIP]

    @flip.setter
    def flip(self, fault: int) -> None:
        self._words[_FLIP] = fault

    @property
    def shift_s(self) -> int:
        """By how much the wall clock of the machine is wrong."""
        return self._words[_SHIFT]

    @shift_s.setter
    def shift_s(self, seconds: int) -> None:
        self._words[_SHIFT] = seconds

    @property
    def driver(self) -> int:
        return self._words[_DRIVER]

    @driver.setter
    def driver(self, pid: int) -> None:
        self._words[_DRIVER] = pid
