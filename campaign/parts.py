"""Carries out a part: a project, the undisturbed runs, the launches of a plan one after the other, and a line for all of it.

results/*.jsonl           what was found, one file for each part (`campaign.cells.read`)
results/undisturbed/      digests and traces of undisturbed runs, by mode and settings
results/failed/           the folders of launches in which something did not hold
results/slow/             and of those that went on late
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import yaml

import orchestrator
from campaign import checks, flips, leftovers, modes, moments
from campaign.checks import Ended, Undisturbed
from campaign.kinds import BY_NAME
from campaign.launches import Running, Stuck, conf_of, journal_of
from campaign.modes import Mode
from campaign.plans import Launch
from orchestrator.records.lines import LineFile, read
from tests.projects import Project

_SLOW_S = {"process": 2.0, "driver": 10.0}  # from a loss to the next step
PLAN: Final = "plan.json"  # of a launch whose folder is kept
Say = Callable[[str], None]


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def project() -> Iterator[Project]:
    """A project with a configuration for each mode; gone afterwards, with all of its processes."""
    with tempfile.TemporaryDirectory(prefix=f"{leftovers.mark()}-", dir="/tmp") as folder:
        found = Project(Path(folder) / "p")
        (Path(folder) / leftovers.TEMPORARY).symlink_to(found.temporary)
        (found.path / "conf").mkdir(parents=True)
        for mode in modes.MODES:
            file = found.path / "conf" / f"{conf_of(mode)}.yaml"
            file.write_text(yaml.safe_dump(modes.settings(mode)))
        found.variables["XDG_CONFIG_HOME"] = f"{folder}/config"
        secret = Path(folder) / "config" / "orchestrator" / "privacy.secret"
        secret.parent.mkdir(parents=True)
        secret.write_text("5" * 64 + "\n")
        secret.chmod(0o600)
        found.commit()
        yield found


class Part:
    """results: the folder; name: of this part's file there."""

    def __init__(self, project: Project, results: Path, name: str, say: Say = say) -> None:
        self._project = project
        self._results = results
        self._say = say
        results.mkdir(parents=True, exist_ok=True)
        self._lines = LineFile(results / f"{name}.jsonl")
        last = {line["id"]: line for line in every_line(results) if line["what"] == "launch"}
        self._done = {id for id, line in last.items() if not line["findings"]}
        self.failed: list[str] = []

    def close(self) -> None:
        self._lines.close()

    def carry_out(self, launches: Sequence[Launch]) -> None:
        """Those that were not carried out before, and once more those in which something did not hold."""
        for launch in launches:
            if launch.id not in self._done:
                self._one(launch)

    def _one(self, launch: Launch) -> None:
        mode = launch.played
        expected = self._undisturbed(mode, launch.alike) if mode.lockstep else None
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"{leftovers.mark()}-", dir=moments.PLACE) as temporary:
            folder = Path(temporary) / "told"
            with closing(Running(self._project, launch, folder)) as running:
                found = self._found(running, mode, expected)
            self._tell(launch, running, found, time.monotonic() - begun)
            if found or any(map(_is_slow, running.told)):
                self._keep(launch, running, found)

    def _found(self, running: Running, mode: Mode, expected: Undisturbed | None) -> list[str]:
        found: list[str] = []
        try:
            running.disturb()
        except Stuck as stuck:
            found.append(f"liveness: {stuck}")
        except BaseException:  # the campaign is ended; its launch would wait at the gate for ever
            running.kill()
            raise
        code = None if found else running.end()
        if code is None:
            running.kill()
        ended = self._ended(running, code)
        if code is None:
            return found or ["liveness: it did not end"]
        verdict, also = self._afterwards(running, ended, mode) if running.launch.flip is None else (None, [])
        if running.store is not None and ended.report.get("status") == "finished":
            also += running.store.lacks(ended.report, running.launch.steps)
        return checks.findings(ended, mode, expected, verdict) + also

    def _ended(self, running: Running, code: int | None) -> Ended:
        folder, faults = running.run_folder, running.told
        journal = [] if folder is None else journal_of(folder)
        for fault in faults:
            if running.launch.flip is not None and running.launch.flip.flip is not None and fault["struck"]:
                fault |= flips.outcome(fault, running.launch.flip.flip.every, running.log.kept, journal)
        trace = (folder or Path()) / "trace.jsonl"
        return Ended(
            code=code,
            report=checks.last_report(running.folder / "out"),
            err=(running.folder / "err").read_text(),
            faults=faults,
            journal=journal,
            trace=trace.read_bytes() if folder is not None and trace.exists() else b"",
            left=[] if code is None else self._project.leftovers(),
            fails=any(BY_NAME[fault["kind"]].effect == "fails" and fault["struck"] for fault in faults),
        )

    def _afterwards(self, running: Running, ended: Ended, mode: Mode) -> tuple[str | None, list[str]]:
        """The verdict of the repetition, where replicas ran free; and what is wrong with a run that was resumed."""
        run_id = ended.report.get("run_id")
        found: list[str] = []
        if run_id is None:
            return None, found
        if ended.report.get("status") != "finished":
            layout = (f"cluster.workers={mode.stages}", *running.arguments)
            again = running.project.run(f"resume={run_id}", *layout, "output=json")
            if again.code:
                return None, [f"resume: it ends with {again.code}: {again.err[-1500:]}"]
            if mode.lockstep:
                expected = self._undisturbed(mode, running.launch.alike)
                trace = (running.run_folder or Path()) / "trace.jsonl"
                if again.report["digest"] != expected.digest or trace.read_bytes() != expected.trace:
                    found.append("bits: the resumed run differs from the undisturbed one")
        if mode.lockstep:
            return None, found
        arguments = ("cluster.workers=2", "environment=ignore", *running.arguments)
        repeated = running.project.run(f"rerun={run_id}", *arguments, "output=json")
        verdict = repeated.report.get("verdict") if repeated.out.strip() else None
        return verdict if verdict == "exact" else f"{verdict}: {repeated.err[-1500:]}", found

    def _tell(self, launch: Launch, running: Running, found: Sequence[str], seconds: float) -> None:
        struck = [fault for fault in running.told if fault["struck"]]
        line = {
            "what": "launch",
            "id": launch.id,
            "seed": launch.seed,
            "mode": launch.mode,
            "layout": launch.layout,
            "storm": launch.storm,
            "supervised": launch.supervised,
            "planned": len(launch.faults) + sum(fault.partner is not None for fault in launch.faults),
            "struck": len(struck),
            "seconds": round(seconds, 1),
            "load": os.getloadavg()[0],
            "at": round(time.time()),
            "recoveries": self._recoveries(running),
            "findings": list(found),
        }
        self._lines.append([{"what": "fault", "id": launch.id, **fault} for fault in running.told])
        self._lines.append([line])
        times = sorted(fault["seconds"] for fault in struck if "seconds" in fault)
        middle = (
            f", next step after {times[len(times) // 2]:.2f} s in the median, {times[-1]:.2f} s at most"
            if times
            else ""
        )
        self._say(f"{launch.id}: {len(struck)} of {line['planned']} faults, {seconds:.0f} s{middle}")
        for finding in found:
            self._say(f"  FOUND: {finding}")

    def _recoveries(self, running: Running) -> dict[str, int]:
        """How many steps were computed again, by the kind of recovery."""
        told: dict[str, int] = {}
        for event in journal_of(running.run_folder) if running.run_folder else []:
            if event["event"] == "recovered":
                told[event["kind"]] = told.get(event["kind"], 0) + int(event["steps_lost"])
        return told

    def _keep(self, launch: Launch, running: Running, found: Sequence[str]) -> None:
        if found:
            self.failed.append(launch.id)
        kept = self._results / ("failed" if found else "slow") / f"{launch.id.replace(' ', '-')}-{int(time.time())}"
        shutil.copytree(running.folder, kept / "told", ignore=shutil.ignore_patterns("words"))
        if running.run_folder is not None:
            shutil.copytree(
                running.run_folder, kept / "run", ignore=shutil.ignore_patterns("checkpoints", "*.safetensors")
            )
        plan = json.dumps(asdict(launch), indent=1)
        (kept / PLAN).write_text(plan + "\n")
        (kept / "findings.txt").write_text("\n".join(found) + "\n")
        self._say(f"  its folder is kept in {kept}")

    def _undisturbed(self, mode: Mode, alike: Sequence[str] = ()) -> Undisturbed:
        """Made once for each mode and its settings, by a true launch of as few workers as may be."""
        text = json.dumps(modes.settings(mode), sort_keys=True) + (Path(__file__).parent / "trained.py").read_text()
        text += "".join(alike)
        if "privacy" in mode.settings:  # its noise is bound to all code
            text += "".join(_sources(Path(__file__).parent) + _sources(Path(orchestrator.__file__).parent))
        name = f"{conf_of(mode)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        kept = self._results / "undisturbed" / name
        if not (kept / "report.json").exists():
            self._say(f"the undisturbed run of {mode.name}")
            done = self._project.run(
                f"conf={conf_of(mode)}", *alike, *modes.alone(mode), "checkpoint.every=null", "output=json"
            )
            assert done.code == 0, done.err
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._project.folder(done.report["run_id"]) / "trace.jsonl", kept / "trace.jsonl")
            (kept / "report.json").write_text(json.dumps(done.report))
        report = json.loads((kept / "report.json").read_text())
        return Undisturbed(report["digest"], (kept / "trace.jsonl").read_bytes(), report["metrics"])


def _sources(folder: Path) -> list[str]:
    return [file.read_text() for file in sorted(folder.rglob("*.py"))]


def _is_slow(fault: Mapping[str, Any]) -> bool:
    return float(fault.get("seconds", 0.0)) > _SLOW_S.get(BY_NAME[fault["kind"]].family, math.inf)


def every_line(*results: Path) -> Iterable[Mapping[str, Any]]:
    for folder in results:
        for file in sorted(folder.glob("*.jsonl")):
            yield from read(file)


def kept(results: Path, name: str, lines: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """These lines, each written as it comes."""
    results.mkdir(parents=True, exist_ok=True)
    file = LineFile(results / f"{name}.jsonl")
    for line in lines:
        file.append([line])
        yield line


def complain(text: str) -> int:
    print(text, file=sys.stderr)
    return 2
