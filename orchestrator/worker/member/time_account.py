"""An account of a member's time: each moment of its compute thread belongs to one kind (`records.times`), which a heartbeat
tells.

    turn(activity)             from now on it does this; heartbeats call it
    waits(), goes_on(before)   around a wait for slower members
    hold(kind), release()      until then all belongs to this kind, whatever heartbeats tell: an evaluation has votes of its own
    stepped(steps)             so many steps are committed
    computed(shards, others)   in a step, so many of them dealt to other workers; told where shards are claimed
    take()                     the window that has passed, once it is long enough to be worth a message

Windows grow with the run, from a quarter of a second to a hundredth of what has passed, so that a long run has some hundreds
of them. A turn reads two clocks, around a wait one, and one that changes nothing none; `benchmarks/times.py` measures what that
costs.

The account also times each micro-batch, from the turn that begins computing (step, shard) to the next turn, without the waits
in between. The parts of one micro-batch in a step are added up (a stage goes forward and backward at different times). A
window tells the median, which a stall or a first step that computes twice does not move.

Moments are stamps (`stamps.py`), and a ledger adds up what lies between them (`time_ledger.py`). On a card, a kind lasts from
the moment at which the card reaches the stamp of its beginning to the moment at which it reaches that of the next kind; the
thread may have gone on long ago. So a wait begins when the card is done with all that was launched before. Each step looks at
what the card has told meanwhile and waits for nothing; the report at the end of a generation waits for the card. The seconds
of a processor ("busy", "process") are counted as the thread spends them.

It takes no lock. Only the compute thread calls it.
"""

from __future__ import annotations

from time import process_time, thread_time
from typing import Any, Final

from orchestrator.records.progress import Activity
from orchestrator.records.times import KINDS
from orchestrator.worker.member.stamps import HostStamps, Stamps
from orchestrator.worker.member.time_ledger import Ledger, MicroBatch, by_kind

_KIND: Final[dict[Activity, int]] = {
    "compute": KINDS.index("compute"),
    "exchange": KINDS.index("exchange"),
    "update": KINDS.index("update"),
    "evaluate": KINDS.index("evaluate"),
    "checkpoint": KINDS.index("checkpoint"),
    "prepare": KINDS.index("connect"),
    "admission": KINDS.index("connect"),
    "state_transfer": KINDS.index("connect"),
    "idle": KINDS.index("connect"),
}
_WAIT: Final = KINDS.index("wait")
_COMPUTE: Final = KINDS.index("compute")
MOST_SPANS: Final = 200_000  # of one member, some 20 MB of its driver's disk


class TimeAccount:
    """The account of one member's time. spans: whether each turn is kept for a timeline, up to MOST_SPANS."""

    def __init__(self, *, spans: bool = False) -> None:
        self.use(HostStamps())
        self._spans = MOST_SPANS if spans else 0
        self._kind = -1  # before the first generation nothing counts
        self._held = 0  # so many holds are open, the outermost counts
        self._before = -1  # the kind that it interrupts
        self._full_told = not spans
        self._step: int | None = None
        self._shard: int | None = None
        self._steps = 0  # committed
        self._micro_batch: MicroBatch | None = None  # that is computed now, and since when
        self._micro_batch_since: Any = None
        self._last_micro_batch: MicroBatch | None = None  # which a wait may interrupt
        self._shards: list[int] | None = None

    def use(self, stamps: Stamps) -> None:
        """Take time by these, before the first generation."""
        self._stamps, self._mark = stamps, stamps.mark

    def turn(self, activity: Activity, step: int | None = None, shard: int | None = None, together: int = 0) -> None:
        """Begin a turn of another kind. together: so many micro-batches are computed as one, each for an equal part of the
        time."""
        kind = _KIND[activity]
        if self._kind < 0:
            if activity != "state_transfer":
                return
            self._begin(kind)
        if activity in ("state_transfer", "idle"):
            self._held = 0  # whatever was under way is over
        elif self._held:
            return
        computing = shard is not None or together > 0 or self._micro_batch is not None
        turning = kind != self._kind or self._ledger.spans_left > 0
        if not computing and not turning:
            return
        now = self._mark()
        if computing:
            begins = activity == "compute" and (shard is not None or together > 0)
            self._compute(MicroBatch(step, shard, max(1, together)) if begins else None, now)
        if turning:
            self._turn(kind, step, shard, now)

    @property
    def kind(self) -> int:
        """The present kind, as a place in KINDS; negative before the first generation."""
        return self._kind

    def waits(self) -> int:
        """Returns the kind that it leaves."""
        before = self._kind
        if before >= 0 and not self._held:
            now = self._mark()
            if self._micro_batch is not None:
                self._compute(None, now)
            self._turn(_WAIT, self._step, None, now, busy=False)
        return before

    def goes_on(self, before: int) -> None:
        if before >= 0 and not self._held:
            now = self._mark()
            if before == _COMPUTE and self._last_micro_batch is not None:
                self._compute(self._last_micro_batch, now)
            self._turn(before, self._step, None, now, busy=False)

    def hold(self, kind: str) -> None:
        if self._kind < 0:
            return
        if not self._held:
            self._before = self._kind
            self._turn(KINDS.index(kind), self._steps - 1, None, self._mark())
        self._held += 1

    def release(self) -> None:
        if not self._held:
            return
        self._held -= 1
        if not self._held:
            self._turn(self._before, self._steps, None, self._mark())

    def stepped(self, steps: int) -> None:
        """Note that steps are done. steps: of the run, from its beginning on."""
        self._steps = steps

    def computed(self, shards: int, others: int) -> None:
        before = self._shards or (0, 0)
        self._shards = [before[0] + shards, before[1] + others]

    def begins_at(self, steps: int) -> None:
        """This member has a state with so many committed steps, which are not its own work."""
        if self._kind >= 0:
            self._ledger.begins_at(steps, self._steps)
        self._steps = steps

    def take(self, *, at_once: bool = False) -> dict[str, Any] | None:
        """Close the window if it is long enough, or `at_once`, and begin a new one. Returns the event of the closed one, with
        its spans; None if none was closed."""
        if self._kind < 0:
            return None
        self._ledger.settle()
        if not at_once and not self._ledger.is_long:
            return None
        self._turn(self._kind, self._step, self._shard, self._mark())
        if at_once:
            self._ledger.wait(self._since)
        process = process_time()
        window = {
            "event": "times",
            **self._ledger.close(self._micro_batch),
            "busy": by_kind(self._busy),
            "process": round(process - self._process, 6),
        }
        if self._shards is not None:
            window["shards"], self._shards = self._shards, None
        if not self._ledger.spans_left and not self._full_told:
            self._full_told = window["timeline_full"] = True
        self._open(process)
        return window

    def _begin(self, kind: int) -> None:
        self._kind = kind
        self._ledger = Ledger(self._stamps, self._steps, self._spans)
        self._since = self._mark()
        self._busy_since = thread_time()
        self._open(process_time())

    def _open(self, process: float) -> None:
        self._process, self._busy = process, [0.0] * len(KINDS)

    def _compute(self, micro_batch: MicroBatch | None, now: Any) -> None:
        """From now on this micro-batch is computed, or none."""
        if self._micro_batch is not None:
            self._last_micro_batch = self._micro_batch
            self._ledger.micro_batch(self._micro_batch, self._micro_batch_since, now)
        self._micro_batch, self._micro_batch_since = micro_batch, now

    def _turn(self, kind: int, step: int | None, shard: int | None, now: Any, *, busy: bool = True) -> None:
        """busy: whether the thread's own clock is read, which takes a system call. If not, its time counts for the kind that
        follows: a wait has little, and is part of an exchange."""
        before = self._kind
        if busy:
            own = thread_time()
            self._busy[before] += max(0.0, own - self._busy_since)
            self._busy_since = own
        self._ledger.span(self._steps, before, self._step, self._shard, self._since, now)
        self._kind, self._since = kind, now
        self._step, self._shard = step, shard
