"""A true launch under faults: it is started, let go on step by step, and struck by one fault after the other.

The next fault is armed as soon as a step was taken after the last one, and enough workers are there that no stage loses its
last. One that waits for a newcomer (`Moment.joins`) is armed when nobody is missing, and then a SIGKILL from outside makes room
for one. In a storm the clock decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from campaign import checks, modes, moments, stores
from campaign.kinds import BY_NAME, process, storage
from campaign.modes import Mode
from campaign.moments import Words
from campaign.plans import STORM_EVERY_S, Fault, Launch
from campaign.stores import Store
from orchestrator.records.lines import read
from tests.projects import Project

_TICK_S: Final = 0.005
_LOOK_S: Final = 0.1  # between two looks at all processes of the machine
_PACE_S: Final = 0.008  # a step
_TRICKLE_S: Final = 0.6  # a step, while a newcomer is waited for
_SLOW_TRICKLE_S: Final = 2.0  # where workers come to nodes that copy the project first
_AWAY_PACE_S: Final = 0.15
_SAVE_S: Final = 30.0  # for a checkpoint, once its store is back
_STALL_PACE_S: Final = 0.1  # a step, which others may do while one that stalls is given its time
_STORM_PACE_S: Final = 60.0 / 600  # a step, so that some are left at the end of its minute
_WINDOW: Final = 3  # steps that nobody has begun
_RESERVE: Final = 40  # steps that are left for what comes at the end
_MEET_S: Final = 10.0  # for a moment that every few steps have
_MEET_STEPS: Final = 60  # at most, so that some are left for the next faults
_SETTLE_S: Final = 1.0  # in which all of a generation have told that they are there
_BEGIN_S: Final = 300.0  # for the first step, on a busy machine
_JOIN_S: Final = 90.0  # for a newcomer there
_END_S: Final = 240.0
_RECOVER_S: Final = 2 * modes.STEP_TIMEOUT_S  # twice the stated timeout, beside how long a fault holds
_ASKED_S: Final = 3.0  # after which who was asked to end is killed
_OPEN: Final = 1 << 40
_MOST_FAILED_STARTS: Final = 1  # in a row: with the third no more are tried (`controller.rendezvous.scaling`)


@dataclass
class Log:
    """The log of the traps, read as it grows. hosts: of each generation, its workers' stages by process; kept: the steps that
    whoever flips bits has committed."""

    path: Path
    struck: dict[int, dict[str, Any]] = field(default_factory=dict)
    running: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    hosts: dict[int, dict[int, int]] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    _read: int = 0

    def look(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        if told["what"] == "struck":
            self.struck[told["fault"]] = told
        elif told["what"] == "kept":
            self.kept.append(told["step"])
        elif told["what"] == "lost":
            self.lost.append(told)
        elif told["what"] == "running":
            self.running.append(told)
            self.hosts.setdefault(told["generation"], {})[told["pid"]] = told["stage"]

    def living(self) -> dict[int, int]:
        """The stages of the living workers of the newest generation, by process; nobody before each of them has told that it
        did a step of it, for who has not may be the only one of its stage."""
        if not self.hosts or len(self.hosts[max(self.hosts)]) < self.running[-1]["workers"]:
            return {}
        doomed = {told["victim"] for told in self.struck.values() if self._ends_by(told)}
        newest = self.hosts[max(self.hosts)]
        return {pid: stage for pid, stage in newest.items() if pid not in doomed and is_alive(pid)}

    def _ends_by(self, told: Mapping[str, Any]) -> bool:
        """Whether this fault ends its victim. A newcomer may be through with a stall before it is given up."""
        effect = BY_NAME[told["kind"]].effect
        if effect != "stalls":
            return effect != "delays"
        return not any(each["pid"] == told["victim"] and each["ns"] > told["ns"] for each in self.running)

    @property
    def seen(self) -> int:
        """How many processes have ever done a step."""
        return len({told["pid"] for told in self.running})

    def goes_on_after(self, ns: int) -> int | None:
        """When a generation did its first step after that."""
        return next((told["ns"] for told in self.running if told["ns"] > ns), None)

    def lost_between(self, ns: int, until: int | None = None) -> int | None:
        """When the driver told of the last loss in this time."""
        return max(
            (told["ns"] for told in self.lost if ns < told["ns"] and (until is None or told["ns"] < until)),
            default=None,
        )


def is_alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


class Stuck(Exception):
    """No progress where there has to be some."""


class Running:
    """A launch under way. folder: of the words, the log, and what the drivers say."""

    def __init__(self, project: Project, launch: Launch, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.launch = launch
        self.mode = launch.played
        self.folder = folder
        self.words = Words(folder)
        self.words.begin()
        self.log = Log(folder / "log.jsonl")
        self.project = replace(project, variables={**project.variables, moments.VARIABLE: str(folder)})
        self.told: list[dict[str, Any]] = []  # of each fault
        self.dice = Random(launch.id)
        self._before = set(run_folders(project))
        self._run_folder: Path | None = None
        self._paced_at = 0.0
        self._driver: tuple[int, int] = (0, 0)  # which process drives the run, and since when
        self._driven, self._looked_at = False, 0.0
        self._said = 0  # of what drivers said that have ended, and were looked at
        self._extra = 1000  # numbers of faults that the plan does not have
        self._failed_starts: tuple[int, int] = (0, 0)  # in a row, and how many processes had done a step by then
        supervised = ("run.supervised=true",) if launch.supervised else ()
        self.store = (
            None if launch.store is None else stores.of(launch.store, launch, folder, project.path, Random(launch.id))
        )
        self.arguments = () if self.store is None else self.store.arguments
        if self.store is not None:
            variables = {**self.project.variables, **self.store.variables}
            self.project = replace(self.project, variables=variables, before=self.store.before)
        self.process = start(
            self.project,
            folder,
            f"conf={conf_of(self.mode)}",
            *launch.alike,
            *launch.layout,
            *supervised,
            *self.arguments,
            "output=json",
        )

    @property
    def run_folder(self) -> Path | None:
        if self._run_folder is None:
            self._run_folder = next(iter(set(run_folders(self.project)) - self._before), None)
        return self._run_folder

    def disturb(self) -> None:
        """All faults of the plan, as far as steps are left for them. Raises Stuck."""
        pace_s = _TRICKLE_S if self.store is None else _SLOW_TRICKLE_S
        self._until(lambda: len(self.log.living()) >= self.mode.workers, _BEGIN_S, "it does not begin", pace_s)
        assert self.run_folder is not None or self.process.poll() is not None
        if self.launch.flip is not None:
            self._flip(self.launch.flip)
        elif self.launch.damage is not None:
            self._damage(self.launch.damage)
        elif self.store is not None:
            self._away(self.store)
        elif self.launch.storm:
            self._storm()
        else:
            self._one_by_one()
        for fault in (each for each in self.launch.faults if moments.BY_NAME[each.moment].once):
            self._at_the_end(fault)
        self.words.gate = _OPEN

    def end(self) -> int | None:
        """The exit code of the first driver, once no driver is left; None where it does not end."""
        self.words.gate = _OPEN
        deadline = time.monotonic() + _END_S
        while self._is_running():
            self.log.look()
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        self.log.look()
        return self.process.returncode

    def close(self) -> None:
        """The end of its store."""
        if self.store is not None:
            self.store.close()

    def kill(self) -> None:
        """All that the launch has started."""
        for pid in marked(self.project):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    # ---- one fault after the other

    def _one_by_one(self) -> None:
        left = [fault for fault in self.launch.faults if not moments.BY_NAME[fault.moment].once]
        while left:
            self._go_on_again()
            if not self._has_steps():
                break
            self._finish_off()
            fault = next((each for each in left if self._is_fit(each)), None)
            if fault is not None:
                left.remove(fault)
            elif len(self.log.living()) >= self.mode.workers:
                # A start has failed, and who came after it is a spare: its first step lets the next start fail.
                fault = self._one_more()
            else:
                self._tick(_TRICKLE_S)
                continue
            self._one(fault)
        self._go_on_again()
        for fault in left:
            self._tell(fault, None, missed="no steps were left")

    def _one(self, fault: Fault) -> None:
        if moments.BY_NAME[fault.moment].joins:
            self._one_who_replaces(fault)
            return
        if not self._arm(fault):
            self._tell(fault, None, missed="nobody was there to be struck")
            return
        struck = self._struck(fault, _MEET_S)
        if struck is None:
            self._tell(fault, None, missed="the moment did not come")
            return
        self._recover(fault, struck)

    def _go_on_again(self) -> None:
        """If the last fault has ended the run, it is resumed. Raises Stuck."""
        if self._is_running() or not self.process.returncode or self.run_folder is None:
            return
        if "ended" in self.told[-1]:
            raise Stuck("what was resumed ended once more, and nothing was done to it")
        error = checks.last_report(self.folder / "out").get("error") or {}
        said = (self.folder / "err").read_text()[self._said :]
        self.told[-1]["ended"] = {
            "code": self.process.returncode,
            "why": error.get("message"),
            "says_how": "resume=" in said,
            "saved": self._saved > 0,
        }
        self._said += len(said)
        self.log.look()
        self.log.hosts.clear()
        self.words.disarm()
        resume = (f"resume={self.run_folder.name}", *self.arguments, "output=json")
        self.process = start(self.project, self.folder, *resume)
        complete = lambda: len(self.log.living()) >= self.mode.workers  # noqa: E731
        self._until(complete, _BEGIN_S, "it does not begin again", _TRICKLE_S)

    def _one_who_replaces(self, fault: Fault) -> None:
        """A newcomer, or who gives it the state: armed before one is killed, so that whoever comes cannot be too early."""
        deadline = time.monotonic() + _JOIN_S
        while not self._is_complete() and time.monotonic() < deadline and self._has_steps():
            self._finish_off()
            self._tick(_TRICKLE_S)
        found = victims(self.log.living(), paired=False)
        if found is None or not self._is_complete() or not is_alive(self.words.driver):
            self._tell(fault, None, missed="too few were there")
            return
        victim = self.dice.choice(found[0])
        first = self._one_more()
        if not self._arm(fault, without=victim) or not self._strike_from_outside(first, [victim]):
            self.words.disarm()
            self._tell(fault, None, missed="nobody was there to be struck")
            return
        told = self.log.struck[first.number]
        struck = self._struck(fault, _JOIN_S)
        if struck is None:
            self._recover(first, told)
            self._tell(fault, None, missed="the moment did not come")
            return
        went_on = self.log.goes_on_after(int(told["ns"]))
        overlaps = went_on is None or went_on > int(struck["ns"])
        self._tell(first, told, went_on=None if overlaps else went_on, pair=overlaps or None)
        self._recover(fault, struck)

    def _one_more(self) -> Fault:
        """One that the plan does not have, to make room for who comes."""
        self._extra += 1
        return Fault(self._extra, "SIGKILL", moments.FROM_OUTSIDE)

    def _is_complete(self) -> bool:
        """Whether no newcomer is awaited."""
        deadline = time.monotonic() + _SETTLE_S
        while len(self.log.living()) < self.mode.workers and time.monotonic() < deadline:
            self._tick(_TRICKLE_S)
        return len(self.log.living()) >= self.mode.workers

    def _flip(self, fault: Fault) -> None:
        """From a step on that nobody has begun; then the run goes on by itself."""
        assert fault.flip is not None
        told = {**asdict(fault.flip), "number": fault.number, "kind": fault.kind}
        self._tell_traps(fault.number, {**told, "step": self.words.gate + fault.skip})
        self.words.flip = fault.number
        self.words.gate = _OPEN
        struck = self._struck(fault, _END_S)
        self._tell(fault, struck, missed="nobody was there to be struck")

    def _away(self, store: Store) -> None:
        """The store goes away and comes back, one time after the other; meanwhile steps are taken, and some are left."""
        whole_s = sum(fault.hold_s for fault in self.launch.faults)
        pace_s = max(_AWAY_PACE_S, whole_s / (self.launch.steps - 2 * _RESERVE))
        for fault in self.launch.faults:
            if not self._has_steps():
                self._tell(fault, None, missed="no steps were left")
                continue
            told = {"ns": time.monotonic_ns(), "fault": fault.number, "kind": fault.kind, "moment": fault.moment}
            failed = len(self._steps_of("checkpoint_failed"))
            store.go()
            steps, until = self.words.steps, time.monotonic() + fault.hold_s
            begun_at, still_s = time.monotonic(), 0.0
            while time.monotonic() < until:
                self._tick(pace_s)
                last = max(begun_at, self.words.committed_ns / 1e9)
                still_s = max(still_s, time.monotonic() - last)
            meanwhile = self.words.steps - steps
            store.come()
            self._goes_on_after(fault)
            if store.has_checkpoints:
                self._until(
                    lambda steps=self.words.steps: self._saved > steps,  # type: ignore[misc]
                    _SAVE_S,
                    f"no checkpoint after {fault}",
                    _TRICKLE_S,
                )
            self._tell(fault, {**told, "step": steps, "victim": 0})
            failed = len(self._steps_of("checkpoint_failed")) - failed
            self.told[-1] |= {"failed_checkpoints": failed, "meanwhile": meanwhile, "still_s": round(still_s, 1)}
            self.told[-1] |= {"met": dict(store.met)} if store.met else {}

    def _goes_on_after(self, fault: Fault) -> None:
        """Soon, or once workers are there for a stage that has lost all of its own."""
        steps = self.words.steps
        goes_on = lambda: self.words.steps > steps + 1  # noqa: E731
        try:
            self._until(goes_on, _RECOVER_S, f"no step after {fault}")
        except Stuck:
            if self.run_folder is None or not checks.lacks_stage(journal_of(self.run_folder)):
                raise
            self._until(goes_on, _JOIN_S, f"no step after {fault}, and nobody for its stage")

    @property
    def _saved(self) -> int:
        """The step of the newest checkpoint of which the journal tells."""
        return max(self._steps_of("checkpoint_saved"), default=0)

    def _steps_of(self, event: str) -> list[int]:
        """Those of which the journal tells this."""
        journal = [] if self.run_folder is None else journal_of(self.run_folder)
        return [told["step"] for told in journal if told["event"] == event]

    def _damage(self, fault: Fault) -> None:
        """The driver is killed, a file of the run damaged, and the run resumed; where that is refused, it is resumed once more
        with the file as it was."""
        damage, run = fault.damage, self.run_folder
        assert damage is not None
        assert run is not None
        ready = lambda: self.words.steps >= fault.skip and len(storage.manifests(run)) > 1  # noqa: E731
        self._until(ready, _END_S, "it has no two checkpoints")
        told = {"ns": time.monotonic_ns(), "victim": self.process.pid, "step": self.words.steps}
        self.process.kill()
        self.process.wait()
        self._wait(lambda: not marked(self.project), _END_S, "the members of a killed driver stay")
        path = storage.find(run, damage.what, damage.part)
        whole = path.read_bytes()
        path.write_bytes(storage.damaged(whole, damage.how, damage.place, damage.bit))
        said = (self.folder / "err").stat().st_size
        self.words.gate = _OPEN
        resume = (f"resume={run.name}", "output=json")
        self.process = start(self.project, self.folder, *resume)
        self._wait(lambda: self.process.poll() is not None, _BEGIN_S, "the resume does not end")
        seen = {"code": self.process.returncode, "said": (self.folder / "err").read_text()[said:], "file": path.name}
        self._tell(fault, told)
        self.told[-1]["damage"] = {**asdict(damage), **seen}
        if self.process.returncode:
            path.write_bytes(whole)
            self.process = start(self.project, self.folder, *resume)

    def _wait(self, is_so: Callable[[], bool], patience_s: float, else_: str) -> None:
        """For what is nobody's step."""
        deadline = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > deadline:
                raise Stuck(f"{else_}, within {patience_s:g} s")
            time.sleep(0.05)

    def _storm(self) -> None:
        """By the clock; what was not met within its two seconds is passed over."""
        due = time.monotonic()
        for fault in self.launch.faults:
            self._finish_off()
            if not self._has_steps():
                self._tell(fault, None, missed="no steps were left")
                continue
            while time.monotonic() < due or not self._is_fit(fault):
                self._tick(_STORM_PACE_S if time.monotonic() < due else _TRICKLE_S)
                if time.monotonic() > due + STORM_EVERY_S or self.process.poll() is not None:
                    break
            due += STORM_EVERY_S
            met = self._is_fit(fault) and self._arm(fault)
            struck = self._struck(fault, STORM_EVERY_S, _STORM_PACE_S) if met else None
            if struck is None:
                self._tell(fault, None, missed="not met within two seconds")
            else:
                self._tell(fault, struck, storm=True)
                self._release(fault, struck)
        last = max((told["ns"] for told in self.log.struck.values()), default=0)
        steps = self.words.steps
        self._until(
            lambda: self.log.goes_on_after(last) is not None or self.words.steps > steps + 2,
            _RECOVER_S,
            "no step after the storm",
        )

    def _at_the_end(self, fault: Fault) -> None:
        """Strike when a few steps are left; whatever is lost there, the last exchange is done again."""
        if self.words.gate < _OPEN:
            deadline = time.monotonic() + _JOIN_S
            while not self._is_complete() and time.monotonic() < deadline and self._is_running():
                self._finish_off()
                self._tick(_TRICKLE_S)
        self.words.gate = _OPEN
        if not self._arm(fault):
            self._tell(fault, None, missed="nobody was there to be struck")
            return
        struck = self._struck(fault, _END_S)
        if struck is None:
            self._tell(fault, None, missed="the moment did not come")
            return
        self._tell(fault, struck)
        self._release(fault, struck)

    def _finish_off(self) -> None:
        """A process that was asked to end and goes on is killed in the end, as those that ask do. So is one that goes on
        without memory or descriptors: the next fault meets whole workers."""
        late = time.monotonic_ns() - int(1e9 * _ASKED_S)
        for told in self.log.struck.values():
            lasts = BY_NAME[told["kind"]].effect in ("asks", "fails")
            if lasts and told["ns"] < late and is_alive(int(told["victim"])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(told["victim"]), signal.SIGKILL)

    def _is_fit(self, fault: Fault) -> bool:
        """Whether each stage keeps a worker, whoever is struck."""
        return self._victims(fault) is not None

    def _victims(self, fault: Fault, without: int | None = None) -> tuple[list[int], list[int]] | None:
        """The workers that the fault may strike, and those that its partner may; empty for any newcomer. None where it has to
        wait."""
        if fault.moment in ("prepare", "admission") and self._failed_starts == (_MOST_FAILED_STARTS, self.log.seen):
            return None
        if BY_NAME[fault.kind].family == "driver" or fault.moment in ("prepare", "admission"):
            return ([], []) if self.log.living() and is_alive(self.words.driver) else None
        living = {pid: stage for pid, stage in self.log.living().items() if pid != without}
        found = victims(living, paired=fault.partner is not None)
        if found is not None and BY_NAME[fault.kind].effect == "delays":
            return list(living), []
        return found

    def _arm(self, fault: Fault, without: int | None = None) -> bool:
        """without: a process that is about to be killed."""
        found = self._victims(fault, without)
        if found is None:
            return False
        if fault.partner is not None:
            self._write(fault.partner, found[1], None)
        self._write(fault, found[0], fault.partner)
        if fault.moment != moments.FROM_OUTSIDE:
            self.words.arm(fault.moment, fault.number)
            return True
        return self._strike_from_outside(fault, found[0])

    def _strike_from_outside(self, fault: Fault, pids: Sequence[int]) -> bool:
        kind = BY_NAME[fault.kind]
        victim = self.words.driver if kind.family == "driver" else self.dice.choice(pids)
        told = {"ns": time.monotonic_ns(), "what": "struck", "fault": fault.number, "kind": kind.name}
        try:
            process.send(kind.signal or "", victim)
        except ProcessLookupError:
            return False
        self.log.struck[fault.number] = {**told, "moment": fault.moment, "step": self.words.steps, "victim": victim}
        return True

    def _write(self, fault: Fault, pids: Sequence[int], partner: Fault | None) -> None:
        then = {"then": partner and partner.number, "then_at": partner and partner.moment}
        told = {
            "number": fault.number,
            "kind": fault.kind,
            "skip": fault.skip,
            "hold_s": fault.hold_s,
            "pids": list(pids),
            "spared": [pid for pid in self.log.living() if pids and pid not in pids],
        }
        self._tell_traps(fault.number, {**told, **then})

    def _tell_traps(self, number: int, told: Mapping[str, Any]) -> None:
        path = self.folder / f"fault-{number}.json"
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").replace(path)

    def _struck(self, fault: Fault, patience_s: float, pace_s: float = _PACE_S) -> dict[str, Any] | None:
        """The victim's message, as soon as it was struck; None if the moment did not come."""
        deadline, last = time.monotonic() + patience_s, self.words.steps + _MEET_STEPS
        pace_s = _TRICKLE_S if moments.BY_NAME[fault.moment].joins else pace_s
        while fault.number not in self.log.struck:
            claimed = (self.folder / f"claim-{fault.number}").exists()
            over = not self._is_running()
            late = time.monotonic() > deadline or (self.words.steps > last and not moments.BY_NAME[fault.moment].once)
            if (late and not claimed) or over:
                self.words.disarm()
                self.log.look()
                break
            self._tick(pace_s)
        return self.log.struck.get(fault.number)

    def _recover(self, fault: Fault, struck: Mapping[str, Any]) -> None:
        """Until a step was taken after it, and after its partner."""
        self._release(fault, struck)
        partner = None
        if fault.partner is not None:
            partner = self._partner_struck(fault, struck)
        last = struck if partner is None else partner
        hold_s = 0.0 if BY_NAME[fault.kind].effect == "delays" else fault.hold_s
        after, patience_s = self._went_on(fault, last), _RECOVER_S + hold_s + self._patience_with(fault)
        pace_s = _STALL_PACE_S if BY_NAME[fault.kind].effect == "stalls" else _PACE_S
        self._until(lambda: after() is not None, patience_s, f"no step after {fault}", pace_s)
        self._tell(fault, struck, went_on=after(), since=int(last["ns"]))
        if fault.partner is not None:
            overlaps = partner is not None and (self.log.goes_on_after(int(struck["ns"])) or 0) > int(partner["ns"])
            self._tell(fault.partner, partner, went_on=after(), missed="the run was faster", pair=overlaps)

    def _patience_with(self, fault: Fault) -> float:
        """For the process that goes on with a driver's run, or the end of a run that cannot go on."""
        kind = BY_NAME[fault.kind]
        return _BEGIN_S if kind.family == "driver" else _END_S if kind.effect == "fails" else 0.0

    def _partner_struck(self, fault: Fault, struck: Mapping[str, Any]) -> dict[str, Any] | None:
        """The partner's message, if it was struck before the first one was over."""
        partner = fault.partner
        assert partner is not None
        ended = lambda: (  # noqa: E731
            partner.number in self.log.struck or self.log.goes_on_after(int(struck["ns"])) is not None
        )
        self._until(ended, _RECOVER_S + self._patience_with(fault), f"no step after {fault}")
        self.words.disarm()
        self._tick(_PACE_S)
        return self.log.struck.get(partner.number)

    def _went_on(self, fault: Fault, struck: Mapping[str, Any]) -> Callable[[], int | None]:
        """When the next step was taken after this."""
        ns, effect = int(struck["ns"]), BY_NAME[fault.kind].effect
        steps, victim = self.words.steps, int(struck["victim"])
        if BY_NAME[fault.kind].family == "driver" and effect == "ends":  # its members go on until they hear of it
            return lambda: None if self._driver[0] in (0, victim) else self.log.goes_on_after(max(ns, self._driver[1]))
        if fault.moment not in ("prepare", "admission"):
            if (
                effect == "stalls" and BY_NAME[fault.kind].family == "process"
            ):  # until it is ended, the others may do some steps
                return lambda: None if (lost := self.log.lost_between(ns)) is None else self.log.goes_on_after(lost)
            if effect in ("ends", "stalls"):
                return lambda: self.log.goes_on_after(ns)
        return lambda: self.words.committed_ns if self.words.steps > steps else None

    def _release(self, fault: Fault, struck: Mapping[str, Any]) -> None:
        """Have whoever was stopped for some time go on."""
        kind = BY_NAME[fault.kind]
        if kind.effect == "delays" or (kind.family == "driver" and kind.effect == "stalls"):
            until = time.monotonic() + fault.hold_s
            pace_s = (
                _TRICKLE_S if kind.family == "driver" else _PACE_S
            )  # without a driver they would do all steps in the time
            while time.monotonic() < until:
                self._tick(pace_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(struck["victim"]), signal.SIGCONT)

    # ---- time and steps

    def _tick(self, pace_s: float) -> None:
        """Let the run go on at this pace, and see what it has told."""
        time.sleep(_TICK_S)
        now = time.monotonic()
        if self.launch.supervised and not is_alive(self.words.driver):
            self.words.driver = self._successor() or self.words.driver
        if self.words.driver != self._driver[0]:
            self._driver = (self.words.driver, time.monotonic_ns())
        reached = self.words.steps if self.mode.lockstep else self.words.clock
        if now - self._paced_at >= pace_s and self.words.gate - reached < _WINDOW:
            self.words.gate, self._paced_at = self.words.gate + 1, now
        self.log.look()

    def _until(self, is_so: Callable[[], bool], patience_s: float, else_: str, pace_s: float = _PACE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > deadline:
                raise Stuck(f"{else_}, within {patience_s:g} s")
            if not self._is_running():
                return
            self._tick(pace_s)

    def _has_steps(self) -> bool:
        return self._is_running() and self.words.steps < self.launch.steps - _RESERVE

    def _is_running(self) -> bool:
        return self.process.poll() is None or self._is_driven()

    def _successor(self) -> int | None:
        """The process that drives the run now, which the kernel knows as who holds the run's lock."""
        if self.run_folder is None:
            return None
        inode = (self.run_folder / "lock").stat().st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            found = [int(line.split()[4]) for line in locks if line.split()[5].endswith(f":{inode}")]
        return next((pid for pid in found if pid > 0 and is_alive(pid)), None)

    def _is_driven(self) -> bool:
        """Whether a process goes on with the run, or is about to."""
        if self.launch.supervised and time.monotonic() > self._looked_at + _LOOK_S:
            self._driven = any(command_has(pid, b"orchestrator") for pid in marked(self.project))
            self._looked_at = time.monotonic()
        return self.launch.supervised and self._driven

    def _tell(
        self,
        fault: Fault,
        struck: Mapping[str, Any] | None,
        *,
        went_on: int | None = None,
        since: int | None = None,
        missed: str = "",
        storm: bool = False,
        pair: bool | None = None,
    ) -> None:
        """since: of the last one that overlaps it, where that is not this one."""
        told: dict[str, Any] = {"number": fault.number, "kind": fault.kind, "moment": fault.moment}
        told["struck"] = struck is not None
        if struck is None:
            told["missed"] = missed
        else:
            since = int(struck["ns"]) if since is None else since
            if BY_NAME[fault.kind].effect == "stalls":
                since = self.log.lost_between(since, went_on) or since
            told |= {"pid": struck["victim"], "step": struck["step"], "since_ns": since}
            if fault.moment in ("prepare", "admission"):
                count, seen = self._failed_starts
                self._failed_starts = (count + 1 if seen == self.log.seen else 1, self.log.seen)
            if went_on is not None and BY_NAME[fault.kind].effect in ("ends", "stalls"):
                told["seconds"] = round((went_on - since) / 1e9, 4)
        told |= {"storm": True} if storm else {}
        told |= {"pair": pair} if pair is not None and struck is not None else {}
        self.told.append(told)


def victims(living: Mapping[int, int], *, paired: bool) -> tuple[list[int], list[int]] | None:
    """The workers that a fault may end, and those that its partner may, so that each stage keeps a worker; None if somebody
    has to come first. living: stages by process."""
    hosts = Counter(living.values())
    spare = {stage: count - 1 for stage, count in hosts.items() if count > 1}
    if sum(spare.values()) < (2 if paired else 1):
        return None
    if not paired:
        return _hosting(living, *spare), []
    first, second, *_ = [stage for stage, count in spare.items() for _ in range(2 if count > 1 else 1)]
    return _hosting(living, first), _hosting(living, second)


def _hosting(living: Mapping[int, int], *stages: int) -> list[int]:
    return [pid for pid, stage in living.items() if stage in stages]


def conf_of(mode: Mode) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in mode.name)


def start(project: Project, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A command whose output goes to files, which a driver that goes on with the run writes to as well."""
    with (folder / "out").open("ab") as out, (folder / "err").open("ab") as err:
        return subprocess.Popen(
            [*project.before, sys.executable, "-m", "orchestrator", *arguments],
            cwd=project.path,
            env=project.environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
        )


def run_folders(project: Project) -> Iterator[Path]:
    for journal in (project.path / ".orchestrator").glob("*/journal.jsonl"):
        yield journal.parent


def marked(project: Project) -> list[int]:
    """The processes that commands of this project have started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if project.mark.encode() in (folder / "environ").read_bytes() and is_alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def command_has(pid: int, part: bytes) -> bool:
    try:
        return part in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def journal_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "journal.jsonl"
    return list(read(path)) if path.exists() else []
