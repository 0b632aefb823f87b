"""One run's record: its MLflow run and its folder, opened before the first step and closed with the right status.

The parts of the run are files, which are artifacts too:

    code.bundle           the exact work tree
    code.patch            the changes since the last commit, to be read
    data.json             the inputs
    settings.yaml         the settings; settings_from.json: what came from where
    environment.json      the environment of each node
    identity.json         a hash over all of it
    card.md               all of it for a person
    Dockerfile            all of it for those who rebuild it
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator import errors
from orchestrator.checkpoint import stream_log
from orchestrator.checkpoint.state import TrainingState
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import Settings, determining, identifying, redactor, shown
from orchestrator.driver.folders import RunFolder, put, read_json, write_json
from orchestrator.driver.preflight.checks import code_in
from orchestrator.driver.preflight.private import COMMITMENT, commitment_in
from orchestrator.driver.recording import lineage
from orchestrator.driver.recording.comparisons import Comparisons
from orchestrator.driver.recording.project_files import ProjectFiles
from orchestrator.driver.recording.recorded_checkout import checked_out
from orchestrator.driver.recording.trained_model import UNTRIED, MadeOf, TrainedModel, when_served
from orchestrator.driver.report import card, description, few
from orchestrator.driver.report.description import Layout
from orchestrator.driver.report.layout import layout
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.driver.report.page import as_html, cleaned, markdown
from orchestrator.driver.terminal import console
from orchestrator.errors import NotRerunnable, OrchestratorError, OutOfDeviceMemory, RunFailed
from orchestrator.provenance.code import imported, worktree
from orchestrator.provenance.data.versions import Input
from orchestrator.provenance.environment import container, lock
from orchestrator.provenance.tracking import DIGEST_OF_BEST, ERROR, STATUS, TRACE, Store, Tracker
from orchestrator.records import barriers, files_read, identity, input_audit, lines, merkle, times, trace
from orchestrator.records.comparison import LISTING, Run, compare
from orchestrator.records.hash_seal import Seal, of_barriers, of_trace
from orchestrator.records.input_audit import InputAudit
from orchestrator.records.lines import LineFile
from orchestrator.records.loggers.feed import LoggerFeed
from orchestrator.worker.member.generation import Generation

_SHOWN = 3  # names in a sentence
# Keys of the run manifest that tell of the data -> their change in words.
_OF_THE_DATA = {
    "samples": "another number of training samples",
    "evaluation_batches": "another number of batches to validate on",
    "files": "another list of training files",
    "partition": "other owners or weights of samples",
    "subset": "another subset of samples",
}


@dataclass(frozen=True)
class Contents:
    """The parts of a run, as they were recorded."""

    inputs: list[Input]
    obstacles: list[str]  # to an exact rerun
    work: worktree.WorkTree | None  # None where the code could not be recorded
    unshared: Sequence[str] = ()  # what others lack who are to repeat the run
    project_files: ProjectFiles | None = None  # None where nobody looks whether they change


class Record:
    """The record of one run, opened by `open_record` or `reopen_record`. `journal`, `trace` and `barriers` are appended
    while it runs."""

    def __init__(
        self,
        settings: Settings,  # of the run
        store: Store,  # the MLflow store that the run is in
        tracker: Tracker,  # of its MLflow run
        files: RunFolder,  # the folder of the run
        earlier: Sequence[str],  # sentences on what was found of earlier runs
        contents: Contents,  # what the run is made of
        logger_feed: LoggerFeed,  # to the writers beside MLflow
    ) -> None:
        self.store = store
        self.tracker = tracker
        self.files = files
        self.earlier = earlier
        self._redactor = redactor(settings)
        self.journal = LineFile(files.journal, self._redactor.text)
        self.trace = LineFile(files.trace)
        self._settings = settings
        self._plan = resolve(settings)
        self.barriers = None if self._plan.lockstep else LineFile(files.barriers)  # None in lockstep
        self._seals = {"trace": Seal(self.trace, of_trace)}
        if self.barriers is not None:
            self._seals["rests"] = Seal(self.barriers, of_barriers)
        self.obstacles = list(contents.obstacles)  # to an exact rerun, as far as they are known
        self.unshared = list(contents.unshared)  # as in Contents
        self.run_manifest: Mapping[str, Any] = {}  # what the workers agreed on, once they have
        # The `profile` of the training data and their `partition`, as far as a worker could tell them.
        self.described: Mapping[str, Any] = {}
        self.answers: Mapping[str, Any] = UNTRIED
        self._inputs = contents.inputs
        self._project_files = contents.project_files
        self.comparisons = Comparisons(settings.pipeline.target, store, tracker, files)
        # Why the model answers a whole request at once, as it was said at the start.
        self.served_told: str | None = None
        self._work = contents.work
        self._nodes: dict[str, Any] = read_json(files.environment).get("nodes", {})
        self._nodes_before = dict(self._nodes)  # of earlier drivers
        self._code = read_json(files.code)
        self.logger_feed = logger_feed
        self._input_audit = input_audit.from_dict(read_json(files.input_audit))
        self.has_failover = False  # by somebody on another machine, who has to find it in the store
        self._is_code = code_in(contents.work)
        self._model = TrainedModel(settings, files, self._redactor)

    @property
    def history(self) -> list[LineFile]:
        """The files that have to be on the disk before a checkpoint of what they tell."""
        return [self.trace, *([] if self.barriers is None else [self.barriers])]

    def seals(self, steps: int) -> dict[str, str]:
        """The seals of the lines that belong to a checkpoint of so many steps; none if the files cannot be opened now."""
        try:
            return {name: seal.of(steps) for name, seal in self._seals.items()}
        except OSError:
            return {}

    def restored(self) -> bool:
        """Make files of this run anew that somebody has removed; returns whether there were any. Their earlier lines are lost.
        Raises OSError."""
        removed = [file for file in (*self.history, self.journal) if file.is_removed]
        for file in removed:
            file.restore()
        return bool(removed)

    def changed_inputs(self) -> list[str]:
        """The inputs that have other bytes now than were recorded."""
        return [] if self._project_files is None else self._project_files.changed_inputs()

    def inputs_at_the_end(self) -> str | None:
        """Record, as an obstacle to a rerun, which inputs were changed while the run trained. Returns it; None if none was."""
        changed = self.changed_inputs()
        if not changed:
            return None
        what = f"{errors.few(changed, _SHOWN)} changed while the run trained: what it read after that is not what was recorded"
        self._code["obstacles"] = [*self._code.get("obstacles", []), what]
        self.obstacles.append(what)
        self.journal.append([{"event": "inputs_changed", "inputs": changed}])
        return what

    def changed(self) -> list[str]:
        """The inputs, and the files of imported modules, that have other bytes now than were recorded."""
        if self._project_files is None:
            return []
        return [*self.changed_inputs(), *self._project_files.changed_modules(self._code.get("modules", {}))]

    def checked_out(self) -> AbstractContextManager[Path]:
        """A checkout of what was recorded, for as long as it is held. Raises NotRerunnable."""
        assert self._project_files is not None
        source, folder = self._project_files.project, self.files.path.parent
        tree, names = self._code.get("tree"), self._project_files.names
        return checked_out(self.files.bundle, tree, self._inputs, self._settings, source, folder, names)

    def files_in(self, checkout: Path) -> ProjectFiles:
        """The inputs in that checkout."""
        assert self._project_files is not None
        return self._project_files.of(checkout)

    def search_path(self) -> tuple[str, ...]:
        """The folders, relative to the project's in a checkout, from which modules of the snapshot were imported, apart from
        the project's own."""
        project = PurePosixPath(self._code.get("project", "."))
        return tuple(os.path.relpath(each, project) for each in self._code.get("search_path", []))

    @property
    def origin(self) -> str | None:
        """The commit that the code was made from, where there is one."""
        return None if self._work is None else self._work.origin

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts on code, data and settings that are known before anything is computed."""
        return {
            "code": None if self._work is None else self._work.tree,
            "data": self.data,
            "settings": determining(self._settings),
        }

    @property
    def memory(self) -> str | None:
        """How much memory a worker needs, in words, once that is known."""
        from orchestrator.worker import memory_needs  # a launch would wait for all that it imports

        return memory_needs.sentence(self.run_manifest, self._plan)

    def needed_at_once(self, generation: Generation) -> list[int]:
        """By rank, the bytes of its GPU that a member needs beside activations, for certain; empty where nobody knows."""
        from orchestrator.worker import memory_needs  # as above

        begin, schedule = generation.begin, generation.schedule
        if "parameters" not in begin.run_manifest:
            return []
        of_workers = memory_needs.at_once(begin.run_manifest, self._plan, schedule, begin.stages)
        return [*of_workers, *memory_needs.of_servers(begin.run_manifest, self._plan, schedule)]

    def needed_by_a_spare(self, generation: Generation) -> int:
        """Likewise, of a worker that is ready and has no place; 0 where nobody knows."""
        from orchestrator.worker import memory_needs  # as above

        run_manifest = generation.begin.run_manifest
        return memory_needs.of_a_spare(run_manifest, self._plan) if "parameters" in run_manifest else 0

    def other_data(self, run_manifest: Mapping[str, Any]) -> NotRerunnable | None:
        """Why a resumed run may not go on with the data of its workers: in another order samples would be lost
        and repeated. The run begins with a note of them. A private run is bound to more
        (`driver.preflight.private`)."""
        if self._settings.is_private:
            return None
        now = {name: run_manifest[name] for name in _OF_THE_DATA if name in run_manifest}
        recorded = read_json(self.files.data)
        then = recorded.get("begun_with")
        if then is None:
            write_json(self.files.data, {**recorded, "begun_with": now})
        if then is None or then == now:
            return None
        changed = [what for name, what in _OF_THE_DATA.items() if then.get(name) != now.get(name)]
        if then.get("samples") != now.get("samples"):
            changed[0] = f"{now.get('samples')} training samples, and {then.get('samples')} then"
        return NotRerunnable(
            f"the data are not those that the run began with: {', '.join(changed)}",
            "put back what was there; begin=RUN_ID@STEP begins a new run with the state of a checkpoint",
            code="resume.other-data",
        )

    def other_bits(self, run_manifest: Mapping[str, Any]) -> str | None:
        """How the bits of a resumed run's workers are others than those it began with, in words; None where they are not, or it
        is not known. The first workers are recorded."""
        reference, machine = run_manifest.get("reference"), run_manifest.get("machine", {})
        if self._settings.is_private or not reference:  # it follows from samples that are secret; or there is none
            return None
        plan, recorded = self._plan, read_json(self.files.data)
        kind = "stages" if plan.cluster.members.stages > 1 else "sites" if plan.data.sites else "whole"
        known = recorded.get("computed_first", {})
        then = known.get(kind)
        if then is None:
            first = {"reference": reference, "machine": machine}
            write_json(self.files.data, {**recorded, "computed_first": {**known, kind: first}})
        if then is None or then["reference"] == reference:
            return None
        was = then["machine"]
        apart = [f"{key} {was.get(key)} then and {machine[key]} now" for key in machine if machine[key] != was.get(key)]
        why = "; ".join(apart) or "on like machines"
        return f"workers compute other bits from the first micro-batch than those that the run began with ({why})"

    def goes_on_with_other_bits(self, what: str) -> NotRerunnable | None:
        """Record it as an obstacle to a rerun; why a strict run may not go on so, instead."""
        if self._settings.strict:
            return NotRerunnable(
                f"strict: this run could not be repeated exactly: {what}",
                "go on with it where it began, or with strict=false",
                code="resume.other-bits",
            )
        self._keep_obstacle(what)
        return None

    def was_read(self, audit: InputAudit) -> tuple[list[str], list[str]]:
        """Record what the user's code has read in a process of a worker. Returns the obstacles to a rerun and the notes that
        are new."""
        obstacles, notes = input_audit.obstacles(self._undeclared), input_audit.notes(self._undeclared)
        self._input_audit |= input_audit.elsewhere(audit, self._is_code)
        after = input_audit.obstacles(self._undeclared)
        if self._input_audit:
            write_json(self.files.input_audit, {**self._input_audit.as_dict(), "obstacles": after})
        self.obstacles = [each for each in self.obstacles if each not in obstacles] + after
        also = input_audit.notes(self._undeclared)
        return [each for each in after if each not in obstacles], [each for each in also if each not in notes]

    def refusal_of_inputs(self) -> NotRerunnable | None:
        """Why a strict run may not go on with what was read."""
        return input_audit.refusal(self._undeclared) if self._settings.strict else None

    @property
    def _undeclared(self) -> InputAudit:
        return input_audit.undeclared(self._input_audit, self._settings.environment.variables)

    def keep_tuning(self, tuning: Mapping[str, Any]) -> None:
        """How settings of the execution were chosen by a measurement."""
        write_json(self.files.tuning, tuning)
        self.journal.append([{"event": "tuned", "chosen": tuning["chosen"], "reason": tuning["reason"]}])

    def describe(
        self, node: str, environment: Mapping[str, Any], modules: list[dict[str, Any]]
    ) -> tuple[list[str], list[str]]:
        """The environment of a node, and the modules that a worker there imported. Returns obstacles to a rerun, and notes."""
        first = not self._nodes
        self._nodes[node] = dict(environment) if self._work is None else lock.placed(environment, str(self._work.root))
        write_json(self.files.environment, {"nodes": self._nodes})
        if not first and not self._nodes_before:
            return [], []
        judged = imported.judge([imported.from_dict(module) for module in modules], self._work, imported.ORCHESTRATOR)
        named = {
            each.module.name: {"kind": each.kind, "sha256": each.module.sha256, "path": each.path}
            for each in judged.findings
            if each.module.name.split(".")[0] not in imported.ORCHESTRATOR
        }
        if not first:
            apart = self._apart_from_before(self._nodes[node], named)
            for what in apart:
                self._keep_obstacle(what)
            return apart, []
        packages = environment["packages"]
        chosen = {f"package.{name}": packages[name] for name in ("torch", "ray", "numpy") if name in packages}
        for key, value in {"packages_sha256": environment["bits"]["packages_sha256"], **chosen}.items():
            self.tracker.tag(key, value)
        obstacles = [*self._code.get("obstacles", []), *judged.obstacles]
        self._code.update({"search_path": list(judged.search_path), "modules": named, "obstacles": obstacles})
        write_json(self.files.code, self._code)
        self.obstacles += judged.obstacles
        return list(judged.obstacles), imported.unused(judged, self._work)

    def _apart_from_before(self, node: Mapping[str, Any], modules: Mapping[str, Any]) -> list[str]:
        """How a node on which a run goes on differs from each on which it was before, as an obstacle to a rerun; none where it
        is like one of them."""
        now: Run = {"environments": [node], "modules": modules}
        known = self._code.get("modules", {})
        befores: list[Run] = [{"environments": [each], "modules": known} for each in self._nodes_before.values()]
        apart = [compare(before, now).inputs(check_environment=True) for before in befores]
        least = min(apart, key=len, default=[])
        return (
            [f"it goes on with other code or packages than it began with: {errors.few(least, _SHOWN)}"] if least else []
        )

    def _keep_obstacle(self, what: str) -> None:
        """To an exact rerun; it is of the run, also where that goes on."""
        self.obstacles.append(what)
        if what not in self._code.get("obstacles", []):
            self._code["obstacles"] = [*self._code.get("obstacles", []), what]
            write_json(self.files.code, self._code)

    @property
    def data(self) -> dict[str, str]:
        """The declared inputs: path -> md5."""
        return {item.path: item.md5 for item in self._inputs}

    def compare_digest(self, digest: str | None) -> list[str]:
        """As `Comparisons.compare_digest`; nothing is said where the identity or the digest is not known."""
        self._identify()
        own = read_json(self.files.identity).get("identity")
        if own is None or digest is None:
            return []
        ordered = "" if self.barriers is None else ", whose updates came in the same order"
        return self.comparisons.compare_digest(own, digest, ordered)

    def keep_model(self, outcome: RunOutcome, state: TrainingState | None) -> str | None:
        """Put the trained model together as MLflow is to have it; what of that could not be done, or None. state: as the
        checkpoint of the last step holds it, if there is one."""
        node: Mapping[str, Any] = next(iter(self._nodes.values()), {})
        made_of = MadeOf(node.get("packages", {}), self._work, self._code.get("modules", {}), state)
        return self._model.keep(
            outcome, self.run_manifest["parameters"], self.described.get("layers"), self.answers, made_of
        )

    def answering(self) -> str | None:
        """A sentence for those who serve the model; None if there is nothing that was not told at the start."""
        return None if self.answers["why"] in (None, self.served_told) else when_served(self.answers)

    def close(self, outcome: RunOutcome) -> RunOutcome:
        """Write down how the run ended, here and in MLflow. Returns the outcome with what is known now: a file that is not
        whole, the head of the trace, the files that were read before a resume, its store, and what loggers lack."""
        with contextlib.suppress(OSError):
            self.restored()
        outcome = self._completed(outcome)
        status = outcome.status
        self.tracker.tag(TRACE, str(outcome.trace))
        ending: dict[str, object] = {"event": "run_ended", "status": status, "steps": outcome.steps}
        if outcome.error is not None:
            ending |= {"error": outcome.error.message, "code": outcome.error.code}
            self._put_error(outcome.error)
        self._tag_result(outcome)
        self._put_described(outcome)
        if self._nodes:  # the disk may have been full when they were written
            write_json(self.files.environment, {"nodes": self._nodes})
            write_json(self.files.code, self._code)
        self._identify()
        built = container.dockerfile(self.tracker.run_id, list(self._nodes.values()))
        if built is not None:
            put(self.files.dockerfile, built)
        self._model.log(self.tracker)
        self._put_card(outcome)
        self.journal.append([ending])
        self.journal.close()
        for file in self.history:
            file.close()
        self.upload()
        for picture in sorted(self.files.pictures.glob("*")):
            self.tracker.artifact(picture, "pictures")
        if self.files.weights.exists():
            self.tracker.artifact(self.files.weights, "model")
        self.tracker.end(STATUS[status])
        untold = self.logger_feed.end(status, {**_results(outcome), "digest": outcome.digest})
        outcome = replace(outcome, not_logged=(*outcome.not_logged, *untold))
        self.files.release()
        return replace(outcome, not_recorded=self.tracker.trouble)

    def _completed(self, outcome: RunOutcome) -> RunOutcome:
        """With a file that is not whole as its error, with the head of the trace, the files that were read before, and its
        store."""
        for file in self.history:
            try:
                file.sync()
            except OSError as error:
                lacking = RunFailed(
                    f"{file.path} is not whole: {error.strerror}", "make room on its disk", code="record.not-whole"
                )
                outcome = replace(outcome, error=outcome.error or lacking)
        head, read = merkle.head([merkle.leaf(line) for line in lines.each_raw(self.files.trace)]), outcome.files_read
        if read.of:
            read |= files_read.from_dict(read_json(self.files.data).get("files", {}))
        return replace(outcome, trace=head, files_read=read, store=self.store.name)

    def _put_error(self, error: OrchestratorError) -> None:
        whole = f"{error}\n\n{error.details}".rstrip() + "\n"
        put(self.files.error, self._redactor.text(whole))
        if isinstance(error, OutOfDeviceMemory) and error.snapshot:
            put(self.files.memory, error.snapshot)
        self.tracker.tag(ERROR, self._redactor.text(error.message))

    def _tag_result(self, outcome: RunOutcome) -> None:
        if outcome.steps:
            self.tracker.tag("steps", str(outcome.steps))
        if outcome.digest is not None:
            self.tracker.tag("digest", outcome.digest)
        if outcome.best is not None:
            self.tracker.tag(DIGEST_OF_BEST, outcome.best.digest)
            self.tracker.tag("best_step", str(outcome.best.step))

    def _put_described(self, outcome: RunOutcome) -> None:
        """Write down all that is known of the training data by now."""
        described = {
            key: self.described[key] for key in ("profile", "partition") if self.described.get(key) is not None
        }
        if self._listing is not None:
            described["listing"] = self._listing
        if outcome.files_read.of:
            described["files"] = outcome.files_read.as_dict()
        if described:
            write_json(self.files.data, {**read_json(self.files.data), **described})

    def upload(self) -> None:
        """A copy of the run's files for the store."""
        for path in self.files.artifacts():
            self.tracker.artifact(path, "run")

    def upload_history(self) -> None:
        """Send MLflow the files that grow with each step, and only those, at once. The journal comes last: the others reach
        the checkpoints that it tells of."""
        for path in (*(file.path for file in self.history), self.files.journal):
            self.tracker.artifact(path, "run")
        self.tracker.flush()

    def _put_card(self, outcome: RunOutcome) -> None:
        contents = self._card(outcome)
        on = Layout(layout(self._plan), len(outcome.recoveries))
        self.tracker.tag(description.TAG, self._redactor.text(description.description(contents, on)))
        page = cleaned(card.page(contents), self._redactor.text)
        put(self.files.card, markdown(page))
        with contextlib.suppress(OSError):  # of a picture; the page in Markdown names it
            put(self.files.page, as_html(page))

    def _card(self, outcome: RunOutcome) -> card.CardContents:
        found = determining(self._settings)
        public = shown(self._settings)
        began = lineage.sentence(lineage.chain(self.store, self._settings.begin))
        return card.CardContents(
            run_id=self.tracker.run_id,
            name=self.tracker.name,
            status=outcome.status,
            recurs=outcome.recurs,
            started=datetime.fromtimestamp(self.tracker.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            command=shlex.join(["python", "-m", "orchestrator", *self._typed()]),
            outcome=self._outcome_rows(outcome, read_json(self.files.identity).get("identity")),
            code=self._code,
            data=read_json(self.files.data),
            reads=input_audit.sentences(self._input_audit),
            nodes=self._nodes,
            settings={key: value for key, value in public.items() if key in found},
            execution={key: value for key, value in public.items() if key not in found},
            said=self.comparisons.said,
            obstacles=self.obstacles,
            trained=self._model.on_card(
                self.run_manifest.get("parameters"),
                self.described.get("layers"),
                self.answers,
                began,
                self.tracker.registered,
            ),
            events=self._events(),
            pictures=sorted(self.files.pictures.glob("*")),
            before=self.comparisons.drift,
            uri=self.store.name,
        )

    def _outcome_rows(self, outcome: RunOutcome, identity: str | None) -> dict[str, Any]:
        """The rows of the card on what the run came to."""
        note, tags = self._settings.run.note, self._settings.run.tags
        metrics = few.few(outcome.metrics, few.ON_A_CARD)
        results: dict[str, Any] = {"loss": outcome.loss, **metrics}
        if left := few.more(len(outcome.metrics) - len(metrics)):
            results["more"] = left[0]
        results["digest"] = outcome.digest
        if outcome.best is not None:
            results["model"] = f"of step {outcome.best.step}, the best; digest {outcome.best.digest}"
        lost = [f"{each['kind']} ({each['seconds']} s, {each['steps_lost']} steps lost)" for each in outcome.recoveries]
        rows = {
            **({} if note is None else {"note": note}),
            **({"tags": ", ".join(tags)} if tags else {}),
            "steps": outcome.steps,
            **results,
            **({} if outcome.epsilon is None else {"epsilon": outcome.epsilon}),
            "identity": identity,
            "trace": outcome.trace,
            "memory": self.memory,
            "time": times.sentence(outcome.times) or None,
            "shards": times.sentence_of_shards(outcome.shards) or None,
            "files from elsewhere": outcome.bytes_sentence or None,
            "error": None if outcome.error is None else outcome.error.message,
        }
        if lost:
            rows["recoveries"] = ", ".join(lost)
        if outcome.wrong:
            rows["computed wrongly"] = "; ".join(outcome.wrong)
        return rows

    def _typed(self) -> list[str]:
        """The arguments of the command, or of one that does the same as a launch from Python."""
        if console.was_typed():
            return self._redactor.arguments(sys.argv[1:])
        return [f"conf={self.files.path.parent.name}/{self.tracker.run_id}/settings.yaml"]

    def _events(self) -> list[dict[str, Any]]:
        try:
            return [event for event in lines.read(self.files.journal) if isinstance(event, dict) and "event" in event]
        except (OSError, ValueError):  # of a damaged file, which no card mends
            return []

    def _identify(self) -> None:
        """Write what determines the result, and one hash over it; it is only known once workers were ready, and of an
        asynchronous run at its end."""
        known: identity.Parts | None = read_json(self.files.identity).get("parts") or self._inputs_hashed()
        if known is None:
            return
        ordered = {} if self.barriers is None else {identity.BARRIERS: barriers.digest(lines.read(self.files.barriers))}
        given = {identity.STREAMS: stream_log.digest(self.files.streams)} if self.files.streams.exists() else {}
        away = identity.absences(trace.sat_out(self.files.trace)) if self.files.trace.exists() else {}
        parts = {**known, **ordered, **given, **away}
        write_json(self.files.identity, {"identity": identity.of(parts), "parts": parts})
        self.tracker.tag("identity", identity.of(parts))

    @property
    def _listing(self) -> str | None:
        """A digest of the list of the training files, where there is one."""
        found: str | None = self.run_manifest.get("files")
        return found

    def _inputs_hashed(self) -> identity.Parts | None:
        if "initial_parameters" not in self.run_manifest or not self._nodes:
            return None
        work, modules = self._work, self._code.get("modules", {})
        commitment = commitment_in(self.files)
        return identity.parts(
            "none" if work is None else work.tree,
            {name: each["sha256"] for name, each in modules.items() if each["kind"] != "snapshot"},
            {item.path: item.md5 for item in self._inputs}
            | ({} if self._listing is None else {LISTING: self._listing}),
            {
                **identifying(self._settings),
                **({} if commitment is None else {COMMITMENT: commitment}),
            },
            [
                *(node["bits"] for node in self._nodes.values()),
                *([{"reads": self._input_audit.identity()}] * bool(self._input_audit)),
            ],
            self.run_manifest["initial_parameters"],
        )


def _results(outcome: RunOutcome) -> dict[str, float]:
    return {**({} if outcome.loss is None else {"train/loss": outcome.loss}), **outcome.metrics}
