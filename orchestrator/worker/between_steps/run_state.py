"""The progress of a run, apart from its tensors: all that is needed to go on with the next step as if there had been no
interruption.

It is replaced as a whole, when a step commits and when the evaluation after it is done. It follows from what all members
agreed on, so it is the same at every member that is equally far, servers too. An interrupted member has the run state of one
of these two moments. It is sent with the tensors in state transfers and stored with them in checkpoints.

It does not know the time, the members, or the generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.config.plan import MonitoredMetric, Plan
from orchestrator.controller.events import FallbackPair
from orchestrator.numerics.grid import Grid
from orchestrator.optim.patience import Patience
from orchestrator.optim.ranking import Ranking
from orchestrator.records.progress import Progress
from orchestrator.records.trace import Line

SecondVote = tuple[tuple[int, ...], ...]  # the vectors on which it agreed


@dataclass(frozen=True)
class Clocks:
    """How far replicas that run free between sync barriers are, as of the last one.

    clocks: per shard, its updates. barriers: how many there have been. carry: loss (hexadecimal; None: an empty micro-batch)
    and fingerprint of each update that fills no line of the trace yet. fallbacks: (lost, fallback) pairs of shards since that
    sync barrier: the lost one goes on with what the fallback keeps. unpublished: the record of that sync barrier, until its
    evaluation is done.
    """

    clocks: tuple[int, ...]
    barriers: int = 0
    carry: tuple[tuple[str | None, int], ...] = ()
    fallbacks: tuple[FallbackPair, ...] = ()
    unpublished: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "clocks": list(self.clocks),
            "rests": self.barriers,
            "carry": [list(entry) for entry in self.carry],
            "heirs": [list(pair) for pair in self.fallbacks],
            "unpublished": None if self.unpublished is None else dict(self.unpublished),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Clocks:
        return cls(
            tuple(values["clocks"]),
            values["rests"],
            tuple((loss, fingerprint) for loss, fingerprint in values["carry"]),
            tuple((lost, fallback) for lost, fallback in values["heirs"]),
            values["unpublished"],
        )


@dataclass(frozen=True)
class RunState:
    """How far a run is."""

    grid: Grid  # for the next step
    steps: int = 0  # committed ones
    evaluation_due: bool = False  # after the last committed step
    save_due: bool = False  # a checkpoint, at the next boundary where it can be taken
    # the trace lines since the last boundary, without digest, until its evaluation is done
    unpublished: tuple[Line, ...] = ()
    stopping: Patience | None = None  # the evaluations that early stopping has seen; None: it is off
    plateau: Patience | None = None  # the evaluations that the plateau schedule has seen; None: there is none
    free: Clocks | None = None  # of replicas that run free; None in lockstep
    # of a model in stages, what it agreed on for the last step: with it a worker that missed its end applies the sum
    # that it holds. It is handed over, and no part of a checkpoint
    second_vote: SecondVote = ()
    best: Ranking | None = None  # the evaluations whose checkpoints stay; None: no ranking is kept
    archived: bool = False  # whether the checkpoint of these steps stays for ever
    save_here: bool = False  # the checkpoint has to be taken at this very boundary

    @classmethod
    def start(cls, plan: Plan, tensors: int) -> RunState:
        """The run state of a run that begins. tensors: how many its layout has."""
        grid = Grid.unset(tensors, plan.data.shards)
        free = None if plan.lockstep else Clocks((0,) * plan.data.shards)
        best = None if plan.checkpoints.best is None else Ranking(plan.checkpoints.best)
        stopping, plateau = _patience(plan.update.stopping), _patience(plan.update.plateau)
        return cls(grid, stopping=stopping, plateau=plateau, free=free, best=best)

    @property
    def progress(self) -> Progress:
        barriers = None if self.free is None else self.free.barriers
        return Progress(self.steps, evaluated=not self.evaluation_due and not self.unpublished, barriers=barriers)

    @property
    def advances(self) -> int:
        """How often all replicas have become equal: once a step in lockstep, otherwise at each sync barrier."""
        return self.steps if self.free is None else self.free.barriers

    @property
    def reductions(self) -> int:
        """How often the plateau schedule has lowered the rate by now."""
        return 0 if self.plateau is None else self.plateau.exhausted

    @property
    def stopped_early(self) -> bool:
        return self.stopping is not None and self.stopping.exhausted > 0

    @property
    def stays(self) -> bool:
        """Whether the checkpoint of these very steps stays, and no later one takes its place."""
        return self.archived or (self.best is not None and self.best.has(self.steps))

    def monitored(self) -> list[str]:
        """The metrics on which early stopping, the schedule or the best checkpoints depend."""
        patient = [patience.monitored.metric for patience in (self.stopping, self.plateau) if patience is not None]
        return patient if self.best is None else [*patient, self.best.of.metric]

    def committed(
        self,
        grid: Grid,
        steps: int,
        lines: tuple[Line, ...],
        free: Clocks | None,
        *,
        evaluation_due: bool,
        save_due: bool,
        archived: bool = False,
        second_vote: SecondVote = (),
    ) -> RunState:
        """steps: done in all; lines: of those done now (a server has none where replicas run free)."""
        return replace(
            self,
            grid=grid,
            steps=steps,
            unpublished=lines,
            free=free,
            evaluation_due=evaluation_due,
            save_due=self.save_due or save_due,
            archived=archived,
            save_here=archived,
            second_vote=second_vote,
        )

    def evaluated(self, metrics: Mapping[str, float]) -> RunState:
        best = None if self.best is None else self.best.after(metrics[self.best.of.metric], self.steps)
        return replace(
            self,
            best=best,
            save_here=self.save_here or (best is not None and best.has(self.steps)),
            evaluation_due=False,
            stopping=_after(self.stopping, metrics),
            plateau=_after(self.plateau, metrics),
        )

    def begun(self) -> RunState:
        """The first run state of another run that begins here: it has none of the kept checkpoints of this one, and if this
        one was stopped early, patience begins anew."""
        best = None if self.best is None else Ranking(self.best.of)
        stopping = self.stopping
        if stopping is not None and stopping.exhausted:
            stopping = Patience(stopping.monitored)
        return replace(self, best=best, archived=False, save_here=False, stopping=stopping)

    def with_fallbacks(self, fallbacks: tuple[FallbackPair, ...]) -> RunState:
        """If replicas run free: since the last sync barrier these lost shards have gone on with what their fallbacks keep."""
        return self if self.free is None else replace(self, free=replace(self.free, fallbacks=fallbacks))

    def published(self) -> RunState:
        free = None if self.free is None else replace(self.free, unpublished=None)
        return replace(self, unpublished=(), free=free)

    def saved(self) -> RunState:
        return replace(self, save_due=False, save_here=False)

    def untold(self) -> RunState:
        """The same where nobody has told that the checkpoint of these very steps is whole, since members may have died before
        their parts were written. One that stays has to be taken again."""
        return replace(self, save_here=self.save_here or self.stays)

    def as_dict(self) -> dict[str, Any]:
        """The run state as values for JSON, without loss."""
        return {
            "grid": list(self.grid.exponents),
            "steps": self.steps,
            "evaluation_due": self.evaluation_due,
            "save_due": self.save_due,
            "unpublished": list(self.unpublished),
            "stopping": _patience_as_dict(self.stopping),
            "plateau": _patience_as_dict(self.plateau),
            **({"watched": watched} if (watched := self._watched()) else {}),
            **({} if self.free is None else {"free": self.free.as_dict()}),
            **self._kept_checkpoints(),
        }

    def _watched(self) -> dict[str, list[str]]:
        """By what counts its patience and which evaluations are the best, the metric and whether less of it is better: another
        run may begin here, and a resume may rank by another metric."""
        patient = {"stopping": self.stopping, "plateau": self.plateau}
        metrics = {name: each.monitored for name, each in patient.items() if each is not None}
        ranked = {} if self.best is None else {"best": self.best.of}
        return {name: [each.metric, each.mode] for name, each in (metrics | ranked).items()}

    def _kept_checkpoints(self) -> dict[str, Any]:
        """The entry about checkpoints that stay; empty if only the newest stays."""
        if self.best is None and not self.archived:
            return {}
        best = [] if self.best is None else self.best.as_list()
        return {"kept": {"best": best, "archived": self.archived, "save_here": self.save_here}}

    def for_transfer(self) -> dict[str, Any]:
        """`as_dict`, with what only members of the present time have a use for."""
        second_vote = {"second_vote": [list(agreed) for agreed in self.second_vote]} if self.second_vote else {}
        return {**self.as_dict(), **second_vote}

    def resumed(self, values: Mapping[str, Any]) -> RunState:
        """The run state that `as_dict` or `for_transfer` described, in a run of this plan."""
        kept, own, theirs = values.get("kept", {}), self._watched(), values.get("watched", {})
        others = {name for name in own if theirs.get(name, own[name]) != own[name]}
        return replace(
            self,
            grid=Grid(tuple(values["grid"]), self.grid.shards),
            steps=values["steps"],
            evaluation_due=values["evaluation_due"],
            save_due=values["save_due"],
            unpublished=tuple(values["unpublished"]),
            stopping=_resumed(self.stopping, values["stopping"], is_other="stopping" in others),
            plateau=_resumed(self.plateau, values["plateau"], is_other="plateau" in others),
            free=None if self.free is None else Clocks.from_dict(values["free"]),
            second_vote=tuple(tuple(agreed) for agreed in values.get("second_vote", ())),
            best=None if self.best is None else self.best.resumed(() if "best" in others else kept.get("best", ())),
            archived=kept.get("archived", False),
            save_here=kept.get("save_here", False),
        )


def _after(patience: Patience | None, metrics: Mapping[str, float]) -> Patience | None:
    return None if patience is None else patience.after(metrics[patience.monitored.metric])


def _patience_as_dict(patience: Patience | None) -> dict[str, Any] | None:
    if patience is None:
        return None
    best = None if patience.best is None else patience.best.hex()  # JSON has no infinity
    cooling = {"cooling": patience.cooling} if patience.cooling else {}
    return {"best": best, "waited": patience.waited, "exhausted": patience.exhausted, **cooling}


def _resumed(patience: Patience | None, values: Mapping[str, Any] | None, *, is_other: bool) -> Patience | None:
    """is_other: whether another metric was watched, whose values say nothing of this one."""
    if patience is None or values is None:
        return patience
    if is_other:
        return replace(patience, exhausted=values["exhausted"])
    best = None if values["best"] is None else float.fromhex(values["best"])
    counts = {name: values.get(name, 0) for name in ("waited", "exhausted", "cooling")}
    return replace(patience, best=best, **counts)


def _patience(monitored: MonitoredMetric | None) -> Patience | None:
    return None if monitored is None else Patience(monitored)
