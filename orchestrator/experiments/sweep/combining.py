"""The members of an ensemble made one, once all have ended: in a process of its own (`worker/ensemble`), then into the record.

It depends on the members' models and on what the ensemble's file says alone, so who resumes an ensemble whose driver died
meanwhile does it again, with the same result.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from orchestrator.config.settings import Settings
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.terminal import child_process
from orchestrator.driver.terminal.signals import PendingSignal
from orchestrator.errors import RunFailed, coded
from orchestrator.experiments.search.described import Sweep
from orchestrator.experiments.search.members import Ensemble
from orchestrator.experiments.sweep.record import SweepRecord
from orchestrator.numerics.determinism import PORTABLE
from orchestrator.pipeline import Pipeline
from orchestrator.records import lines
from orchestrator.worker.ensemble.request import Combined, Computing, Request, answered
from orchestrator.worker.ensemble.saved import Blueprint

_MODULE = "orchestrator.worker.ensemble"


def problems(pipeline: type[Pipeline]) -> list[str]:
    """The reason why members of this class cannot be made one, found before they are trained."""
    from orchestrator.adapters.transformers import Model

    if getattr(pipeline, "model", None) is not Model.model:
        return []
    return [
        coded(
            "ensemble.of-transformers",
            "ensemble: a model of transformers returns a mapping, and an ensemble combines tensors of numbers; write a "
            "subclass whose model() returns a module that gives the logits, and whose loss() takes these",
        )
    ]


def combine(described: Sweep, record: SweepRecord, folder: Path, pending_signal: PendingSignal) -> None:
    """Save the whole in the folder of the ensemble, write down what it came to. Raises Interrupted, RunFailed and what the
    process raises."""
    try:
        found = _combined(described, record, folder, pending_signal)
    except OSError as error:
        raise RunFailed(
            f"the members cannot be combined in {record.files.path}: {error.strerror}",
            f"make room on its disk, and go on with resume={record.sweep_id}",
            code="ensemble.not-written",
        ) from error
    record.combined(found.as_dict())


def _combined(described: Sweep, record: SweepRecord, folder: Path, pending_signal: PendingSignal) -> Combined:
    ensemble, settings = described.ensemble, described.settings
    assert ensemble is not None
    weights, digests = _models(record, folder, ensemble)
    place = record.files.path / "combining"  # what a driver that was killed left there is of no use
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    request = Request(
        _blueprint(ensemble, settings),
        _computing(ensemble, settings, record, folder),
        weights,
        digests,
        str((place / "model").resolve()),
    )
    found = _asked(request, place, settings, pending_signal)
    shutil.rmtree(record.files.model, ignore_errors=True)
    (place / "model").rename(record.files.model)
    shutil.rmtree(place)
    return found


def _models(record: SweepRecord, folder: Path, ensemble: Ensemble) -> tuple[list[str], list[str]]:
    """(file, digest) of the model of each member."""
    files, digests = [], []
    for member in range(ensemble.members):
        ended = record.known.ended[member, 0]
        assert ended.run_id is not None
        run = RunFolder(folder, ended.run_id)
        if not run.weights.exists():
            record.store.fetch(ended.run_id, "model", run.path)
        if not run.weights.exists() or ended.digest is None:
            raise RunFailed(
                f"the model of member {member}, run {ended.run_id}, is not here",
                f"restore {run.weights} from the artifacts of that run",
                code="ensemble.member-missing",
            )
        files.append(str(run.weights.resolve()))
        digests.append(record.store.find(ended.run_id).best or ended.digest)
    return files, digests


def _blueprint(ensemble: Ensemble, settings: Settings) -> Blueprint:
    seeds = [int(point["run.seed"]) for point in ensemble.points()]
    source = settings.pipeline.source
    return Blueprint(
        *(
            source.target,
            source.args,
            seeds,
            ensemble.combine,
            dict(ensemble.options),
            ensemble.output,
            ensemble.classes,
        ),
        data=source.data,
        data_args=source.data_args,
    )


def _computing(ensemble: Ensemble, settings: Settings, record: SweepRecord, folder: Path) -> Computing:
    run = settings.run
    rows = settings.data.batch_size.at(0)
    trace = RunFolder(folder, str(record.known.ended[0, 0].run_id)).trace
    # Early stopping may have ended it before run.steps, and it may have begun with the state of another run.
    steps = max((line["step"] + 1 for line in lines.written(trace)), default=run.steps or 1)
    return Computing(ensemble.seed, rows, steps, run.threads, run.precision, run.arithmetic)


def _asked(request: Request, place: Path, settings: Settings, pending_signal: PendingSignal) -> Combined:
    portable = PORTABLE if settings.run.arithmetic == "portable" else {}
    path = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    asked, told = ((place / name).resolve() for name in ("request.json", "answer.json"))
    request.write(asked)
    command = [sys.executable, "-m", _MODULE, str(asked), str(told)]
    child_process.run(command, Path.cwd(), {**os.environ, **path, **portable}, pending_signal)
    pending_signal.check()
    return answered(told)
