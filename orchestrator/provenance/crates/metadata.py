"""The public description of a crate's files: `ro-crate-metadata.json`, after the profile Workflow Run Crate 0.5. Pure.

The workflow is the complete configuration, which names the pipeline, the data and every value; it was run by one CreateAction,
whose objects are code and data and whose results are the trace and the digest of the trained parameters. Everything is one
flat list of entities, which refer to each other by `@id`.
Sources: w3id.org/ro/crate/1.1, w3id.org/ro/wfrun/workflow/0.5, w3id.org/workflowhub/workflow-ro-crate/1.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from orchestrator.records import bounded_json

FILE = "ro-crate-metadata.json"
_STATEMENT = "statement.dsse.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_TERMS = {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}  # RO-Crate 1.1 has no such term
WORKFLOW, README = "record/settings.yaml", "README.md"
_BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_CODE, _LANGUAGE, _ENGINE, _AGENT, _LICENSE, _ACTION = (
    *("record/code.bundle", "#language", "#orchestrator", "#agent", "#license", "#run"),
)
_SAID = {
    WORKFLOW: "The complete configuration of the run, with the pipeline and its arguments",
    _CODE: "The exact work tree as a git bundle",
    "record/code.patch": "The differences of the code from its commit, to be read",
    "record/code.json": "Commit, tree and imported modules",
    "record/data.json": "The data that the run read, with their md5 and where they are kept",
    "record/environment.json": "Packages, interpreter, processor and variables of every node",
    "record/Dockerfile": "Builds an image with the environment of the run, which repeats it",
    "record/pylock.toml": "The files that the packages are installed from, with their hashes (PEP 751)",
    "record/identity.json": "One hash over all that determines the result",
    "record/trace.jsonl": "Loss and fingerprint of the gradient of each step",
    "record/journal.jsonl": "Events that the settings do not determine: members, generations, decisions, checkpoints",
    "record/streams.jsonl": "Samples of live streams, by step and shard",
    "record/rests.jsonl": "The order of the updates of an asynchronous run",
    "record/card.md": "The run on one page",
    "record/card.html": "The same page with its pictures",
    "record/verdict.json": "The verdict of this run as a rerun of another",
    README: "The crate's purpose, and how to repeat the run",
    "requirements.txt": "The packages with their versions, as pip reads them",
    "run.json": "The run as the tracking store knew it",
}
_FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".yaml": "application/yaml",
    ".html": "text/html",
    ".md": "text/markdown",
    ".txt": "text/plain",
    ".csv": "text/csv",
    ".toml": "application/toml",
    ".whl": "application/zip",
    ".patch": "text/x-diff",
    ".bundle": "application/x-git-bundle",
}

Entity = dict[str, Any]


@dataclass(frozen=True)
class Described:
    """The facts that the metadata tell."""

    run: Mapping[str, Any]  # `run.json`
    commit: str | None  # that the code was made from; None where there is none
    inputs: Sequence[Mapping[str, Any]]  # of `data.json`
    # path of an input -> the name of its file or folder in the crate, of those that are in it
    carried: Mapping[str, str]
    sizes: Mapping[str, int]  # of every file in bytes, by name
    hashes: Mapping[str, str]  # of every file, by name
    license: str | None = None  # a URL; None where nobody has said one


def document(crate: Described, unhashed: Sequence[str]) -> bytes:
    """The file. unhashed: names of files that are made from this one."""
    files = [*(_file(crate, name) for name in sorted(crate.sizes)), *(_unhashed(name) for name in unhashed)]
    data = [_data(crate, item) for item in crate.inputs]
    folders = [each for each in data if each["@type"] == "Dataset"]
    graph = [_descriptor(), _root(crate, [*files, *folders]), *_profiles(), *files, *folders]
    graph += [each for each in data if each["@type"] == "PropertyValue"]
    graph += [_action(crate, data), *_results(crate), *_context(crate)]
    document_ = {"@context": [f"{_SPECIFICATION}/context", _TERMS], "@graph": graph}
    return (json.dumps(document_, indent=1, ensure_ascii=False) + "\n").encode()


def readme(run: Mapping[str, Any]) -> bytes:
    """The text that a person reads first."""
    return f"""# Training run {" ".join(str(run["name"] or run["run_id"]).split())}

This is the record of training run `{run["run_id"]}`: code, settings, environment, data or where they are kept, trace, journal.
`record/card.md` tells of it on a page. With `orchestrator` and the packages of `requirements.txt` installed,

    python -m orchestrator rerun=PATH-OF-THIS-CRATE

checks every byte against `{_STATEMENT}` and says what a repetition would execute; with `trust=true` it repeats the run and
compares both to the last bit. It needs no clone, no store, and no network where the data are in `data/`.
""".encode()


def hashes_of(text: bytes) -> dict[str, str]:
    """The hashes in a document, name -> SHA-256, as far as it is one."""
    from urllib.parse import unquote

    try:
        graph = bounded_json.parsed(text)["@graph"]
        return {unquote(each["@id"]): each["sha256"] for each in graph if "sha256" in each}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _descriptor() -> Entity:
    conforms = [_to(_SPECIFICATION), _to(_WORKFLOW_CRATE)]
    return {"@id": FILE, "@type": "CreativeWork", "about": _to("./"), "conformsTo": conforms}


def _root(crate: Described, parts: Sequence[Entity]) -> Entity:
    run = crate.run
    steps = f"{run['steps'] or 0} steps, {str(run['status']).lower()}"
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Training run {run['name'] or run['run_id']}",
        "description": f"The record of training run {run['run_id']} ({steps}), from which it can be repeated to the last bit",
        "datePublished": _time(run["started_ms"]),
        "identifier": run["run_id"],
        "license": _to(crate.license or _LICENSE),
        "conformsTo": [_to(profile) for profile in _PROFILES],
        "mainEntity": _to(WORKFLOW),
        "hasPart": [_to(each["@id"]) for each in parts],
        "author": _to(_AGENT),
        "mentions": _to(_ACTION),
    }


def _profiles() -> list[Entity]:
    return [
        {"@id": url, "@type": "CreativeWork", "name": name, "version": version}
        for url, (name, version) in _PROFILES.items()
    ]


def _file(crate: Described, name: str) -> Entity:
    entity: Entity = {"@id": _id(name), "@type": "File", "name": name}
    begins = crate.run.get("initial")
    if name in _SAID:
        entity["description"] = _SAID[name]
    elif begins is not None and name == begins["file"]:
        entity["description"] = f"The weights that training began with: {begins['name']}, digest {begins['digest']}"
    suffix = "." + name.rpartition(".")[2]
    if suffix in _FORMATS:
        entity["encodingFormat"] = _FORMATS[suffix]
    entity |= {"contentSize": str(crate.sizes[name]), "sha256": crate.hashes[name]}
    if name == WORKFLOW:
        entity |= {
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "programmingLanguage": _to(_LANGUAGE),
            "hasPart": _to(_CODE),
            "conformsTo": _to(_BIOSCHEMAS),
            "version": crate.run["run_id"],
        }
    elif name == README:
        entity["about"] = _to("./")
    elif name == _CODE:
        entity |= {"@type": ["File", "SoftwareSourceCode"], **({"version": crate.commit} if crate.commit else {})}
    return entity


def _unhashed(name: str) -> Entity:
    said = "The in-toto statement over every file" if name.endswith(".json") else "The public key of its signature"
    kind = _FORMATS.get("." + name.rpartition(".")[2], "application/x-pem-file")
    return {"@id": _id(name), "@type": "File", "name": name, "description": said, "encodingFormat": kind}


def _data(crate: Described, item: Mapping[str, Any]) -> Entity:
    """An input: a file or folder of the crate, or a reference to where it is kept."""
    path, name = item["path"], crate.carried.get(item["path"])
    said = f"{item['files']} files, {item['size']} bytes, md5 {item['md5']} as DVC computes it"
    if name is None:
        kept = ", ".join(f"{remote} ({url})" for remote, url in (item.get("remotes") or {}).items())
        where = f"; DVC's remotes: {kept}" if kept else ""
        value = {"propertyID": "md5", "value": item["md5"]}
        return {
            "@id": f"#data-{quote(path, safe='')}",
            "@type": "PropertyValue",
            "name": path,
            "description": said + where,
            **value,
        }
    if name in crate.sizes:
        return {"@id": _id(name), "@type": "File"}
    return {
        "@id": _id(name) + "/",
        "@type": "Dataset",
        "name": path,
        "description": said,
        "hasPart": _below(crate, name),
    }


def _below(crate: Described, folder: str) -> list[Entity]:
    return [_to(_id(name)) for name in sorted(crate.sizes) if name.startswith(f"{folder}/")]


def _action(crate: Described, data: Sequence[Entity]) -> Entity:
    run = crate.run
    done = run["status"] == "FINISHED"
    entity: Entity = {
        "@id": _ACTION,
        "@type": "CreateAction",
        "name": f"Training run {run['run_id']}",
        "instrument": _to(WORKFLOW),
        "agent": _to(_AGENT),
        "object": [_to(_CODE), *(_to(each["@id"]) for each in data), *_weights(crate)],
        "result": [_to("record/trace.jsonl"), *(_to(each["@id"]) for each in _results(crate))],
        "startTime": _time(run["started_ms"]),
        "actionStatus": f"http://schema.org/{'Completed' if done else 'Failed'}ActionStatus",
        "description": f"python -m orchestrator conf={WORKFLOW}",
    }
    if run.get("ended_ms") is not None:
        entity["endTime"] = _time(run["ended_ms"])
    return entity


def _weights(crate: Described) -> list[Entity]:
    begins = crate.run.get("initial")
    return [] if begins is None else [_to(_id(begins["file"]))]


def _results(crate: Described) -> list[Entity]:
    named = {"digest": "SHA-256 of the trained parameters", "verdict": "of the last rerun"}
    return [
        {"@id": f"#{key}", "@type": "PropertyValue", "name": key, "description": said, "value": crate.run[key]}
        for key, said in named.items()
        if crate.run[key] is not None
    ]


def _context(crate: Described) -> list[Entity]:
    entities: list[Entity] = [
        {"@id": _LANGUAGE, "@type": "ComputerLanguage", "name": "Configuration of orchestrator, in YAML"},
        {"@id": _ENGINE, "@type": "SoftwareApplication", "name": "orchestrator"},
        {"@id": _AGENT, "@type": "Person", "name": crate.run.get("user") or "unknown"},
    ]
    entities[0]["isBasedOn"] = _to(_ENGINE)
    if crate.license is None:
        said = "No license is stated; ask who made this crate before you use its code or its data"
        entities.append({"@id": _LICENSE, "@type": "CreativeWork", "name": "Not stated", "description": said})
    else:
        entities.append({"@id": crate.license, "@type": "CreativeWork", "name": crate.license})
    return entities


def _id(name: str) -> str:
    return quote(name)


def _to(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
