"""`submit`, `status`, `logs`, `stop` and `once`: runs that another machine starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.errors import UsageError
from orchestrator.settings import load, origins
from orchestrator.verbs import ended
from orchestrator.verbs.verb import Answer, Arguments, Verb

_PLACES = ("image", "claim", "nodes")
_PLACES_TAKEN = (
    "cluster.",
    "output=",
    "tracking.uri=",
    "privacy.secret=",
)  # over from a job to a run that it goes on with


def _submit(given: Arguments) -> Answer:
    conf, to = given.get("conf"), given.get("to")
    if conf is None or to is None:
        raise UsageError("submit: it needs conf=NAME and to=http://HOST:8265, to=kubernetes or to=slurm")
    from orchestrator.commands import submit

    project = given.get("project") or str(Path.cwd())
    wanted = submit.submission(
        conf, given.without("conf", "to", "id", "project", *_PLACES, "output"), given.get("id"), project
    )
    done = submit.submit(wanted, to, {key: given.get(key) for key in _PLACES})
    if given.as_json:
        return Answer(stdout=json.dumps({"id": done.id, "to": done.to, "new": done.new, "manifest": done.manifest}))
    if done.manifest is not None:
        return Answer(stdout=done.manifest.rstrip())
    already = "" if done.new else " is there already and"
    print(f"job {done.id}{already} runs on {done.to}; ask with status={done.id}, logs={done.id}", file=sys.stderr)
    return Answer(stdout=done.id)


def _status(given: Arguments) -> Answer:
    given.only("status", "to")
    from orchestrator.commands.submit import where

    status, message = where(given.value, given.get("to")).status(given.value)
    told = {"id": given.value, "status": status, "message": message}
    return Answer(stdout=json.dumps(told) if given.as_json else f"{status}: {message}" if message else status)


def _logs(given: Arguments) -> Answer:
    given.only("logs", "to", output=False)
    from orchestrator.commands.submit import where

    return Answer(stdout=where(given.value, given.get("to")).logs(given.value).rstrip())


def _stop(given: Arguments) -> Answer:
    given.only("stop", "to")
    from orchestrator.commands.submit import where

    stopped = where(given.value, given.get("to")).stop(given.value)
    told = "it ends now, with a checkpoint" if stopped else "it had ended"
    return Answer(stdout=json.dumps({"id": given.value, "stopped": stopped}) if given.as_json else told)


def _once(given: Arguments) -> Answer:
    conf = given.get("conf")
    if conf is None:
        raise UsageError("once: it needs conf=NAME")
    overrides = [*given.without("conf"), f"run.submission={given.value}"]
    settings = load(conf.split(","), overrides)
    prepare_environment(settings.cluster.address)
    from orchestrator.commands.once import as_dict, once
    from orchestrator.tracking import Past

    kept = [each for each in overrides if each.startswith(_PLACES_TAKEN)]
    run_id, came = once(given.value, settings, origins(conf.split(","), overrides), kept)
    if isinstance(came, Past):
        return Answer(stdout=json.dumps(as_dict(came)) if given.as_json else None)
    return ended.report(run_id, came, given.as_json, given.started)


SUBMIT = Verb(
    forms=("submit conf=NAME to=http://HOST:8265|kubernetes|slurm [id=ID] [key=value ...]",),
    about=(
        (
            "submit",
            "have a Ray run it as a job, or print the manifest or script for Kubernetes or Slurm; a job that is\n"
            "started again goes on with its run; submitting an id twice changes nothing",
        ),
    ),
    run=_submit,
    with_conf=True,
)
STATUS = Verb(("status=ID",), (("status=ID", "how a submitted job is"),), _status)
LOGS = Verb(("logs=ID",), (("logs=ID", "what it has printed"),), _logs)
STOP = Verb(("stop=ID",), (("stop=ID", "end it in order; submitting it again goes on"),), _stop)
ONCE = Verb(
    forms=("once=ID conf=NAME [key=value ...]",),
    about=(("once=ID", "launch under an id, or go on with the run that has it: what a job runs"),),
    run=_once,
    refused=ended.nothing,
    with_conf=True,
)
