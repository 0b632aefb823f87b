"""Simulated lives: the true controller against the simulated world of its tests, with the rates of all faults drawn per seed.

    python -m campaign --lives 10000 --first 0       of each kind of run so many, from this seed on

A life is one run from its first member to its end, in which members die, stall, lag, lose contact, find no room and are told to
stop, in any order (`tests.controller.simulated` says what is checked at each command). It takes some milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from orchestrator.common import card_faults
from orchestrator.controller.fault_attribution import LOSSES
from orchestrator.controller.rendezvous.watching import LISTEN_S
from orchestrator.errors import OrchestratorError, WorkerLost
from tests.controller.test_elastic import STEP_TIMEOUT_S, Run

KINDS: Final[dict[str, dict[str, bool]]] = {
    "whole replicas": {},
    "shards keep state": {"shard_state": True},
    "lost shards inherit": {"inherits": True},
    "stages": {"stages": True},
    "cards that fail": {"cards": True},
}
_FAULTS: Final = [fault.code for fault in card_faults.FAULTS if fault.elsewhere]
_CHUNK: Final = 1000


def live(kind: str, seed: int) -> str | None:
    """The life of this seed. None: it ended as if nothing had happened; else why it ended before, in order and by a rule that
    users are told of. Raises AssertionError where something does not hold."""
    dice = Random(f"{kind} {seed}")
    run = Run()
    asked = dict(KINDS[kind])
    stages = dice.randint(2, 3) if asked.pop("stages", False) else 1
    cards = dice.randint(2, 8) if asked.pop("cards", False) else 0
    run.launch_any(dice, stages=stages, **asked)
    run.world.cards = cards
    acts = _acts(run, dice)
    rates = [dice.expovariate(1.0) * (dice.random() < 0.8) for _ in acts]
    longest = dice.choice([1, 5, 20, 60])
    for _ in range(dice.randint(3, 30)):
        run.go_on(dice, dice.randint(1, longest))
        run.time_passes(dice.uniform(0.05, 1.5))
        able = [index for index, (later, _) in enumerate(acts) if run.world.begins or not later]
        weights = [rates[index] for index in able]
        if any(weights):
            acts[dice.choices(able, weights)[0]][1]()
    try:
        run.finish()
    except AssertionError:
        why = None if run.world.end is None else _by_rule(run.world.end.error, run.world.reasons, _deaths(run))
        if why is None:
            raise
        return why
    return None


def _by_rule(error: Exception | None, reasons: str, deaths: int) -> str | None:
    """The reason why a run may end early. Chance killed so many that computed one shard that it counts as what kills them; or
    so many newcomers that no more are tried for some minutes, and too few are left to go on. Or cards failed where nobody else
    could go on."""
    text = str(error)
    if isinstance(error, WorkerLost) and "workers in a row were lost while they computed" in text and deaths >= LOSSES:
        return text
    if isinstance(error, WorkerLost) and "the run cannot go on" in text and "starts in a row failed" in reasons:
        return text
    if isinstance(error, OrchestratorError) and error.code.startswith("gpu."):
        return text
    return None


def _deaths(run: Run) -> int:
    return sum(not process.alive for process in run.world.processes.values())


def _acts(run: Run, dice: Random) -> list[tuple[bool, Callable[[], Any]]]:
    """The acts that may happen, and whether only once a generation has begun."""
    return [
        (False, partial(run.die, dice, True)),
        (False, partial(run.die, dice, False)),
        (False, partial(_wait_for_stalls, run)),
        (False, run.save),
        (True, partial(run.stall, dice)),
        (True, partial(run.lose_contact, dice)),
        (True, partial(run.find_no_room, dice)),
        (True, partial(run.report_times, dice, 2)),
        (True, lambda: run.interrupt(dice.random() < 0.05)),
        *([(False, partial(_card_fails, run, dice))] if run.world.cards else []),
    ]


def _card_fails(run: Run, dice: Random) -> None:
    """It is that of a ready worker. A card that fails twice is left out; where no other is left, the run ends over it."""
    ready = [process for process in run.world.living("worker") if process.state != "starting"]
    process = run.pick(dice, ready)
    if process is not None and run.may_lose(process):
        run.world.card_fails(process, dice.choice(_FAULTS))


def _wait_for_stalls(run: Run) -> None:
    """Every member that stands still is found. In the longest ticks that count in full. Nobody else does anything in this
    time and may be taken for one who stands still, so it does not pass without need."""
    if not any(process.stopped for process in run.world.living()):
        return
    for _ in range(int(STEP_TIMEOUT_S / LISTEN_S) + 2):
        if not run.world.end:
            run.world.tick(LISTEN_S)


def hunt(first: int, count: int) -> Iterator[dict[str, Any]]:
    """A line for each thousand lives of a kind, in turn."""
    for start in range(first, first + count, _CHUNK):
        for kind in KINDS:
            begun, failed, ended = time.monotonic(), [], []
            seeds = range(start, min(start + _CHUNK, first + count))
            for seed in seeds:
                try:
                    if (why := live(kind, seed)) is not None:
                        ended.append({"seed": seed, "why": why})
                except AssertionError as error:
                    failed.append({"seed": seed, "why": str(error)[:400]})
            yield {
                "what": "lives",
                "kind": kind,
                "first": start,
                "count": len(seeds),
                "failed": failed,
                "ended": ended,
                "seconds": round(time.monotonic() - begun, 1),
            }
