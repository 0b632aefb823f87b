"""The run card: one page that says what was trained, on what, how it ended, and how to have it again; for people.

Its questions are taken from the ACM's badges (Artifact Review and Badging, version 1.1: available, evaluated, reproduced) and
from the NeurIPS paper checklist (2025: claims, reproducibility, data and code, settings, statistics, compute). It is made
only of what the record holds for programs, so every number on it is one of MLflow's or of the run's files. Nothing reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.common.figures import megabytes
from orchestrator.data.drift import Drift
from orchestrator.driver.folders import NAME
from orchestrator.driver.report.page import (
    Block,
    Code,
    Facts,
    Grid,
    Heading,
    Listing,
    Page,
    Picture,
    Section,
    Text,
    flat,
)
from orchestrator.errors import few
from orchestrator.provenance.tracking import as_argument
from orchestrator.records import files_read

_STORE = f"sqlite:///{NAME}/mlflow.db"  # the project's own, seen from its folder
_LISTED = 20
_COLUMNS = 12  # of the data, those that differ most
_PACKAGES = ("torch", "ray", "numpy", "mlflow", "dvc")
_COUNTED = (
    "checkpoint_saved",
    "decided",
    "evaluated",
    "worker_started",
    "server_started",
    "run_ended",
    "data_compared",
)
_NOTHING: tuple[Any, ...] = (None, [], {}, "")  # of an event: what it does not tell
_CAPTIONS = {
    "loss": "Training loss of each step, and the validation metrics",
    "topology": "The links between members",
    "time": "The time of a step along the run, and each worker's use of its time",
    "partition": "Which samples each client owns",
    "clocks": "Each shard's clock, and how far ahead of the slowest each update was",
    "pipeline": "The activities of each worker in a step",
    "drift": "How the data are distributed, beside those of the run before",
}


@dataclass(frozen=True)
class Trained:
    """The model, as a run card tells of it."""

    target: str  # the pipeline, "module:name"
    args: Mapping[str, Any]  # of the pipeline
    parameters: int | None = None  # number of them; None where no worker told
    layers: str | None = None  # in words; None where no worker told
    # of the weights, name -> dtype and shape; empty where they are not kept
    tensors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    registered: str | None = None  # URI of its version in the registry; None where it is not, or not yet
    initial: str | None = None  # what it began with, in words; None for fresh weights
    answers: str | None = None  # how it answers when it is served; None where it is not kept


@dataclass(frozen=True)
class CardContents:
    """The contents of a run card."""

    run_id: str  # of MLflow, too
    name: str  # of the run, for a person
    status: str  # how it ended, as in the JSON object
    started: str  # date and time in UTC
    command: str  # as it was typed, without secrets
    outcome: Mapping[str, Any]  # rows of the table of results
    code: Mapping[str, Any]  # contents of the file on the code; empty where there is none
    data: Mapping[str, Any]  # contents of the file on the data; empty where there is none
    nodes: Mapping[str, Any]  # environment of each node; empty where none is known
    settings: Mapping[str, Any]  # those that determine the result, by dotted key
    execution: Mapping[str, Any]  # the other settings, by dotted key
    said: Sequence[str]  # sentences on the comparison with other runs
    obstacles: Sequence[str]  # to an exact rerun
    reads: Mapping[str, str] = field(default_factory=dict)  # what else the code has read, name -> sentence
    trained: Trained | None = None  # the model; None where there is none to tell of
    events: Sequence[Mapping[str, Any]] = ()  # of the journal, in order
    pictures: Sequence[Path] = ()  # files of the run's pictures
    # id of the run before, and how the data differ from its own; None where none was compared
    before: tuple[str, Drift] | None = None
    uri: str | None = None  # of the MLflow store; None for the project's own
    recurs: bool = False  # whether it would end like this again if somebody went on with it


def page(contents: CardContents) -> Page:
    head = Facts({"run": contents.run_id, "started": contents.started, "command": contents.command})
    return Page(
        f"{contents.name}: {contents.status}",
        [head],
        [
            Section("Result", [*_result(contents), *_shown(contents.pictures, "loss")]),
            Section("Model", _model(contents)),
            Section("Code", _code(contents.code)),
            Section("Data", [*_data(contents.data, contents.before), *_shown(contents.pictures, "drift", "partition")]),
            *([Section("Other inputs that the pipeline read", _reads(contents.reads))] if contents.reads else []),
            Section("Settings that determine the result", _settings(contents.settings)),
            Section("Seeds", _seeds(contents.settings)),
            Section("Environment", [block for name, node in contents.nodes.items() for block in _node(name, node)]),
            Section(
                "Execution (another run may change these, and keeps the bits)",
                [*_settings(contents.execution), *_shown(contents.pictures, "time")],
            ),
            Section(
                "Events", [*_events(contents.events), *_shown(contents.pictures, "topology", "clocks", "pipeline")]
            ),
            Section("Checklist", [_checklist(contents)]),
            Section("Again", _again(contents)),
        ],
    )


def _result(contents: CardContents) -> list[Block]:
    evaluated = [event for event in contents.events if event["event"] == "evaluated"]
    names = sorted({name for event in evaluated for name in event["metrics"]})
    rows = [[str(event["step"] + 1), *(flat(event["metrics"].get(name, "")) for name in names)] for event in evaluated]
    table: list[Block] = [Grid(["after step", *names], rows[-_LISTED:], as_code=True)] if len(rows) > 1 else []
    return [Facts(contents.outcome), Listing(contents.said), *table]


def _model(contents: CardContents) -> list[Block]:
    trained = contents.trained
    if trained is None:
        return []
    rows = {
        "pipeline": trained.target,
        "arguments": dict(trained.args) or None,
        "parameters": trained.parameters,
        "tensors": len(trained.tensors) or None,
        "began with": trained.initial,
        "registered as": trained.registered,
        "answers": trained.answers,
    }
    found: list[Block] = [Facts(rows)]
    if trained.layers:
        found.append(Code(trained.layers))
    if trained.tensors:
        uri = trained.registered or f"runs:/{contents.run_id}/trained"
        found += [
            Text("In the project's folder, MLflow loads it:"),
            Code(_loading(uri, contents.uri or _STORE)),
            Text("Another run begins with it:"),
            _command(contents, f"conf=... initial={uri}"),
        ]
    return found


def _loading(model: str, store: str) -> str:
    """Python. Without the address of the store MLflow looks in a new one, which it makes in the working directory."""
    lines = ("import mlflow", f"mlflow.set_tracking_uri({json.dumps(store)})")
    return "\n".join([*lines, f"model = mlflow.pyfunc.load_model({json.dumps(model)})"])


def _code(code: Mapping[str, Any]) -> list[Block]:
    if "tree" not in code:
        return [Text("It is not recorded.")]
    changed = code.get("changed", [])
    rows = {
        "commit": code.get("origin") or "none yet",
        "tree": code.get("tree"),
        "folder": code.get("project") or "the top of the repository",
        "not committed": few(changed, _LISTED) if changed else "nothing",
    }
    restores = "`code.bundle` restores it into any repository; `code.patch` is what differs from the commit."
    return [Facts(rows), Text(restores)]


def _data(data: Mapping[str, Any], before: tuple[str, Drift] | None) -> list[Block]:
    inputs = data.get("inputs", [])
    found: list[Block] = [Text("`data.inputs` names none.")]
    if inputs:
        rows = [
            (item["path"], item["md5"], str(item["files"]), str(item["size"]), item.get("stage") or _keeper(item))
            for item in inputs
        ]
        found = [Grid(("path", "md5", "files", "bytes", "DVC"), rows)]
    for item in inputs:
        if item.get("lists"):
            count, size = item["lists"]
            listed = f"`{item['path']}` lists {count:,} files of {megabytes(size)} by their MD5s"
            found.append(Text(f"{listed}, which are checked when they are read."))
    read = files_read.from_dict(data.get("files", {}))
    if read.of:
        found.append(Text(f"Files of the training set: {read.sentence}."))
    profile = data.get("profile")
    if profile:
        found += _profile(profile)
    if before is not None:
        found += [Heading(f"Since run {before[0]}"), *_drift(before[1])]
    return found


def _profile(profile: Mapping[str, Any]) -> list[Block]:
    if "stream" in profile:
        kept = " What they gave is in `streams.jsonl`, which a rerun reads." * (profile["stream"] == "live")
        return [Heading("Training data"), Text(f"Streams, one for each shard, whose samples have no numbers.{kept}")]
    names = ("dtype", "shape", "min", "max", "mean", "std")
    rows = [
        [part, *(str(told.get(name, "")) for name in names)] for part, told in (profile.get("fields") or {}).items()
    ]
    counted = profile.get("classes") or {}
    classes = few([f"{label}: {count}" for label, count in counted.items()], _LISTED)
    facts = {
        "samples": profile.get("length"),
        "read for this profile": profile.get("sampled"),
        "files read for it": "{} of {}".format(*profile["of_files"]) if profile.get("of_files") else None,
        "labels": classes if counted else None,
    }
    return [Heading("Training data"), Facts(facts), Grid(["part of a sample", *names], rows)]


def _drift(found: Drift) -> list[Block]:
    rows = [[each.column, f"{each.psi:.3g}", f"{each.statistic:.3g}", f"{each.chance:.2g}"] for each in found.shifts]
    first, *others = found.text.splitlines()
    header = ("column", "PSI", "KS, or largest change of a share", "by chance")
    return [Text(first), Listing([line.strip() for line in others]), Grid(header, rows[:_COLUMNS])]


def _keeper(item: Mapping[str, Any]) -> str:
    return "yes" if item.get("as_recorded") else "not as DVC has recorded it" if item.get("outs") else "no"


def _settings(values: Mapping[str, Any]) -> list[Block]:
    given = [(name, str(value)) for name, value in values.items() if value is not None]
    unset = ", ".join(name for name, value in values.items() if value is None)
    return [Grid(("key", "value"), given, as_code=True), Facts({"null": unset or None})]


def _seeds(settings: Mapping[str, Any]) -> list[Block]:
    if "run.seed" not in settings:
        return []
    says = (
        "All randomness is a function of this seed, the purpose, the step and the shard; no generator's state is kept."
    )
    return [Facts({"run.seed": settings["run.seed"]}), Text(says)]


def _node(name: str, node: Mapping[str, Any]) -> list[Block]:
    bits, host, packages = node.get("bits", {}), node.get("host", {}), node.get("packages", {})
    rows = {
        "Python": str(bits.get("python", "")).split(" ")[0],
        "packages": ", ".join(f"{package} {packages[package]}" for package in _PACKAGES if package in packages),
        "all packages": f"{len(packages)}, SHA-256 {bits.get('packages_sha256')}",
        "system": f"{host.get('os')}, {bits.get('system')} {host.get('kernel')}, {bits.get('libc')}",
        "libraries of the system": ", ".join(_libraries(bits, host)) or None,
        "conda": f"{len(node['conda'])} packages, SHA-256 {bits.get('conda_sha256')}" if node.get("conda") else None,
        "processor": f"{bits.get('cpu', host.get('cpu'))}, {host.get('cores')} cores, kernels for {bits.get('capability')}",
        "memory": None if host.get("memory_bytes") is None else f"{host['memory_bytes'] / 2**30:.1f} GiB",
        "GPU": _gpu(bits.get("gpu") or {}),
        "variables": ", ".join(f"{key}={value}" for key, value in bits.get("variables", {}).items()) or None,
    }
    return [Heading(f"Node {name}"), Facts({key: value for key, value in rows.items() if value})]


def _libraries(bits: Mapping[str, Any], host: Mapping[str, Any]) -> list[str]:
    """The libraries that torch was linked to, with the package that brought each."""
    brought = host.get("libraries", {})
    return [
        f"{name} {digest[:12]} ({brought.get(name, 'of no package')})"
        for name, digest in bits.get("libraries", {}).items()
    ]


def _gpu(found: Mapping[str, Any]) -> str:
    """Empty where none computes."""
    libraries = (f"{name} {version}" for name, version in found.items() if name != "models")
    return "; ".join([*found.get("models", ()), ", ".join(libraries)]) if found else ""


def _events(events: Sequence[Mapping[str, Any]]) -> list[Block]:
    if not events:
        return []
    counts = Counter(event["event"] for event in events)
    notable = [event for event in events if event["event"] not in _COUNTED]
    rows = [
        (
            event["event"],
            ", ".join(f"{key}={value}" for key, value in event.items() if key != "event" and value not in _NOTHING),
        )
        for event in notable[-_LISTED:]
    ]
    facts = {kind.replace("_", " "): counts[kind] for kind in _COUNTED[:-2] if counts[kind]}
    return [Facts(facts), Grid(("event", "what"), rows)]


def _checklist(contents: CardContents) -> Grid:
    """The questions of the ACM's badges and of the NeurIPS checklist that a record can answer."""
    inputs, code = contents.data.get("inputs", []), contents.code
    kept = [item["path"] for item in inputs if not (item.get("as_recorded") or item.get("in_code"))]
    data = "no inputs are declared" if not inputs else "yes, each by its md5"
    data = f"no: {few(kept, _LISTED)} is kept by neither DVC nor git" if kept else data
    same = next((sentence for sentence in contents.said if sentence.startswith("the same digest")), None)
    other = next((sentence for sentence in contents.said if sentence.startswith("ALARM")), None)
    rows = [
        ("Is the code available?", "yes: code.bundle, of the exact work tree" if "tree" in code else "no"),
        ("Are the data available?", data),
        ("Are all settings and seeds stated?", "yes, above"),
        ("Is the environment stated?", "yes: environment.json has every package" if contents.nodes else "no"),
        ("Are the compute resources stated?", "yes: nodes above, workers under Execution" if contents.nodes else "no"),
        (
            "Is the result statistically significant?",
            "this is one run of one seed; a sweep over run.seed gives a spread",
        ),
        (
            "Has it been reproduced?",
            other or same or "not when this was written; the run's tag `verdict` has the newest",
        ),
        (
            "Can it be repeated exactly?",
            "; ".join(contents.obstacles) or "nothing is known that would keep it from that",
        ),
    ]
    return Grid(("question", "answer"), rows)


def _reads(found: Mapping[str, str]) -> list[Block]:
    """A table of what was read beside code, inputs and installed packages, as far as reads are watched (docs/rerun.md)."""
    rows = list(found.items())[:_LISTED]
    more = len(found) - len(rows)
    return [Grid(("name", "what"), rows), *([Text(f"and {more} more, in reads.json")] if more else [])]


def _again(contents: CardContents) -> list[Block]:
    run_id = contents.run_id
    found: list[Block] = []
    if contents.status != "finished" and not contents.recurs:
        found += [Text("This goes on with it from its last checkpoint:"), _command(contents, f"resume={run_id}")]
    if contents.obstacles:
        found += [Text("It may be that it cannot be repeated exactly:"), Listing(contents.obstacles), Text("To try:")]
    else:
        found.append(Text("This repeats it and says whether it came out the same:"))
    found.append(_command(contents, f"rerun={run_id}"))
    other = contents.before[0] if contents.before is not None else "RUN_ID"
    found += [Text("These compare it with another run, and put its record into one file:")]
    found += [_command(contents, f"compare={other},{run_id}", f"export={run_id} to={run_id[:8]}.zip")]
    return found


def _command(contents: CardContents, *arguments: str) -> Code:
    where = as_argument(contents.uri)
    return Code("\n".join(f"python -m orchestrator {argument}{where}" for argument in arguments))


def _shown(pictures: Iterable[Path], *stems: str) -> list[Block]:
    found = {file.stem: file for file in pictures}
    return [Picture(found[stem], _CAPTIONS[stem]) for stem in stems if stem in found]
