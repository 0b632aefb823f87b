"""`rerun=RUN stages=true`: the DVC stages that made the inputs of a run are executed again before it is repeated.

They run in a clean checkout of the run's code, one after the other, on the raw data that DVC or the code brings, in the
environment of the repetition. The output of each is compared with the record before the next one begins, so the first that
differs is named, and nothing is trained on other data. If all are equal, the repetition gets what they made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.common import temporary
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.driver.terminal import child_process, signals
from orchestrator.driver.terminal.progress import duration
from orchestrator.errors import Interrupted, RunFailed
from orchestrator.experiments.rerun.repeater import Repeater
from orchestrator.provenance.code import checkout
from orchestrator.provenance.data import dvc_files, stages
from orchestrator.provenance.data.stages import Pipeline, Stage
from orchestrator.provenance.environment import layers, lock, node
from orchestrator.records.comparison import compare
from orchestrator.records.data_stage_replay import Preparation, Repeated

_SHOWN_LINES = 12


@contextmanager
def prepared(repeater: Repeater, *, check_environment: bool) -> Iterator[tuple[Preparation, Mapping[str, Path]]]:
    """The outcome of the stages, and the place of their data as long as the block lasts: path of an input -> place.

    Raises NotRerunnable where there are none or the raw data are gone, RunFailed for a stage that fails, Interrupted."""
    with repeater.code() as restored:
        pipeline = stages.pipeline(restored.project, repeater.original.inputs)
        repeater.bring(restored, pipeline.raw)
        done = tuple(_executed(repeater, restored, pipeline))
        found = Preparation(done)
        if found.parted is not None and check_environment:
            found = Preparation(done, tuple(_surroundings(repeater)))
        yield found, {path: place for path, place in _places(repeater, restored, pipeline) if place.exists()}


def commands(original: Recorded, folder: Path) -> list[str]:
    """The stages that would be executed, "name: command"; nothing is, and nothing outside of the code is read. folder: for a
    checkout of it. Raises NotRerunnable."""
    with checkout.disposable(original.files.bundle, folder, original.code.get("tree")) as restored, original.readable():
        checkout.require_inside(restored)
        found = stages.pipeline(restored.project, original.inputs, restored.root)
        return [f"{each.name}: {each.command}" for each in found.stages]


def _places(repeater: Repeater, restored: checkout.Restored, pipeline: Pipeline) -> Iterator[tuple[str, Path]]:
    made = {out.path for stage in pipeline.stages for out in stage.outs}
    for item in repeater.original.inputs:
        if any(out.path in made for out in item.outs):
            yield item.path, restored.project / item.path


def _executed(repeater: Repeater, restored: checkout.Restored, pipeline: Pipeline) -> Iterator[Repeated]:
    """Up to the first that differs."""
    kept = dvc_files.storage(repeater.project)
    with temporary.folder() as scratch:
        for stage in pipeline.stages:
            changed = stages.changed(pipeline.top, stage)
            seconds = _execute(repeater, restored, pipeline.top, stage, scratch)
            done = Repeated(stage.name, stages.made(restored.project, stage, kept), tuple(changed))
            said = "another output" if done.parted else "the recorded output"
            repeater.display.say(f"  stage {stage.name}: {said}, in {duration(seconds)}")
            yield done
            if done.parted:
                return


def _execute(repeater: Repeater, restored: checkout.Restored, top: Path, stage: Stage, scratch: Path) -> float:
    """Seconds that it took. Raises RunFailed and Interrupted."""
    repeater.display.say(f"executing stage {stage.name}: {stage.command}")
    for out in stage.outs:  # a folder that git does not hold was there
        (restored.project / out.path).parent.mkdir(parents=True, exist_ok=True)
    python, environment = repeater.environment(restored)
    first = os.pathsep.join(filter(None, [str(Path(python).parent), environment.get("PATH")]))
    variables = stages.variables({**environment, "PATH": first}, scratch)
    started = time.monotonic()
    with signals.posted() as pending:
        done = child_process.run(stages.command(python, stage), top, variables, pending, together=True)
        if pending.signal is not None:
            raise Interrupted(f"stage {stage.name} was interrupted; nothing is repeated", code="dvc.stage-interrupted")
    if done.code != 0:
        said = [line for line in done.out.splitlines() if line.strip()][-_SHOWN_LINES:]
        raise RunFailed(
            f"stage {stage.name} failed in a clean checkout of the run's code:"
            + "".join(f"\n  {line}" for line in said),
            "its inputs have to be among its deps in dvc.yaml, in the code, or in an installed package",
            code="dvc.stage-failed",
        )
    return time.monotonic() - started


def _surroundings(repeater: Repeater) -> Iterator[str]:
    """How the environment of the stages differs from that of the run."""
    rebuilt = repeater.rebuilt
    if rebuilt is not None:
        _, builds = layers.found_in(rebuilt.kept)
        yield from (f"package {name}: another build" for name in lock.other_builds(rebuilt.lock, builds))
        return
    recorded, here = repeater.original.environments, node.surroundings()
    bits = set.intersection(*(set(each.get("bits", {})) for each in (*recorded, here)))
    nodes = [{**each, "bits": {key: each["bits"][key] for key in bits}} for each in (*recorded, here)]
    found = compare({"environments": nodes[:-1]}, {"environments": nodes[-1:]})
    yield from (*found.machines(check_environment=True), *found.inputs(check_environment=True))
