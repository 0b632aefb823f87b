"""`submit conf=NAME to=URL|kubernetes|slurm`: a run that another machine starts.

Each submission is kept in `.orchestrator/submissions/`, so that the id is enough from then on.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Arguments, entries
from orchestrator.cli.command_result import CommandResult
from orchestrator.cli.jobs.templates import entry, kubernetes, slurm
from orchestrator.cli.jobs.templates.entry import Submission
from orchestrator.cluster.ray_jobs import Jobs
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.driver.folders import project_folder
from orchestrator.errors import UsageError

_SCHEMES = ("http", "https", "ray")
_FOLDER = "submissions"
_ONLY_FOR = {"image": "kubernetes", "claim": "kubernetes", "nodes": "slurm"}


@dataclass(frozen=True)
class Submitted:
    """A job that was submitted. id: of the job; to: where; manifest: what was written for others to run, None where Ray took
    it; new: whether it was not there before."""

    id: str
    to: str
    manifest: str | None = None
    new: bool = True


def run(arguments: Arguments) -> CommandResult:
    to = arguments.get("to")
    if to is None:
        raise UsageError(
            "submit: it needs conf=NAME and to=http://HOST:8265, to=kubernetes or to=slurm", code="job.submit-needs"
        )
    settings = arguments.without("conf", "to", "id", "project", "output", "trust", *_ONLY_FOR)
    wanted = submission(arguments.conf, settings, arguments.get("id"), arguments.get("project") or str(Path.cwd()))
    if arguments.flag("trust"):
        wanted = replace(wanted, overrides=(*wanted.overrides, "trust=true"))
    done = submit(wanted, to, {key: arguments.get(key) for key in _ONLY_FOR})
    if arguments.as_json:
        return CommandResult(stdout=json.dumps(asdict(done)))
    if done.manifest is not None:
        return CommandResult(stdout=done.manifest.rstrip())
    already = "" if done.new else " is there already and"
    print(f"job {done.id}{already} runs on {done.to}; ask with status={done.id}, logs={done.id}", file=sys.stderr)
    return CommandResult(stdout=done.id)


def submission(conf: str, overrides: Sequence[str], name: str | None, project: str) -> Submission:
    """Checked as far as a launch can be without the place that it runs at. Raises UsageError."""
    entry.own_address(overrides)
    entry.no_credentials(overrides)
    settings = load(entries(conf), overrides)
    members = resolve(settings).cluster.members
    chosen = entry.check_id(name or f"run-{secrets.token_hex(4)}")
    return Submission(
        id=chosen,
        conf=conf,
        overrides=tuple(overrides),
        project=project,
        members=members.total(members.most),
        cpus=settings.cluster.cpus_per_worker,
        gpus=settings.cluster.gpus_per_worker,
        start_timeout_s=settings.cluster.start_timeout_s,
    )


def submit(wanted: Submission, to: str, options: dict[str, str | None]) -> Submitted:
    """Submit a run to another machine. options: image and claim of Kubernetes, nodes of Slurm. Raises UsageError,
    ClusterUnavailable."""
    for key, value in options.items():
        if value is not None and _ONLY_FOR[key] != to:
            raise UsageError(
                f"{key}={value}: only to={_ONLY_FOR[key]} has a use for it",
                f"leave {key} out",
                code="job.option-unused",
            )
    if to == "kubernetes":
        image, claim = _needed("image", options, to), _needed("claim", options, to)
        return Submitted(wanted.id, to, kubernetes.manifest(wanted, image, claim, ray_version()))
    if to == "slurm":
        nodes = options.get("nodes") or "1"
        if not nodes.isascii() or not nodes.isdigit() or int(nodes) < 1:
            raise UsageError(f"nodes={nodes}: expected a number of at least 1", code="job.nodes")
        if "\n" in wanted.project:
            raise UsageError(
                f"project={wanted.project!r}: a line of the batch script names this folder, and its path has a line end",
                "give the folder another name",
                code="job.project",
            )
        if Path(wanted.project).is_dir():
            project_folder(Path(wanted.project))  # for the job's log
        return Submitted(wanted.id, to, slurm.script(wanted, int(nodes), str(Path(sys.executable).parent)))
    url = _dashboard(to, "http://HOST:8265 of a Ray, kubernetes or slurm")
    new = Jobs(url).submit(wanted.id, wanted.joining())
    _remember(Submitted(wanted.id, url, None, new))
    return Submitted(wanted.id, url, None, new)


def _dashboard(to: str, expected: str) -> str:
    """The address of a Ray's dashboard; ray://HOST:PORT is taken for http://HOST:PORT. Raises UsageError."""
    scheme, found, rest = to.partition("://")
    if not found or scheme not in _SCHEMES or not rest:
        raise UsageError(f"to={to}: it is {expected}", code="job.place")
    return f"http://{rest}" if scheme == "ray" else to


def ray_version() -> str:
    from importlib.metadata import version

    return version("ray")


def where(name: str, to: str | None) -> Jobs:
    """The Ray that a job was submitted to. Raises UsageError."""
    if to is not None:
        return Jobs(_dashboard(to, "http://HOST:8265 of a Ray"))
    file = project_folder(Path.cwd()) / _FOLDER / f"{name}.json"
    try:
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(
            f"no job {name} was submitted to a Ray from here",
            "give to=http://HOST:8265; of Kubernetes ask kubectl get rayjob, of Slurm squeue",
            code="job.unknown-here",
        ) from None
    return Jobs(kept["to"])


def _remember(submitted: Submitted) -> None:
    folder = project_folder(Path.cwd()) / _FOLDER
    folder.mkdir(exist_ok=True)
    kept = {"id": submitted.id, "to": submitted.to}
    (folder / f"{submitted.id}.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")


def _needed(key: str, options: dict[str, str | None], to: str) -> str:
    value = options.get(key)
    if value is None:
        needs = {
            "image": "an image with this package, such as one of the Dockerfile of this repository",
            "claim": "the PersistentVolumeClaim that holds the project, its checkpoints and its record",
        }
        raise UsageError(f"{key}: required with to={to}: {needs[key]}", code="job.option-required")
    return value
