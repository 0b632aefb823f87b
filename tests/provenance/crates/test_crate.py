"""A crate is believed when every byte is what its statement says, and not otherwise; its metadata are those of the profile."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.crates import archive, crate, metadata, statement
from orchestrator.records import merkle
from tests.products import thinned
from tests.refusals import refused

WEIGHTS = {"name": "models:/one/1", "digest": "w" * 64, "file": f"initial/{'w' * 64}.safetensors"}
RUN: dict[str, Any] = {
    "run_id": "a" * 32,
    "name": "one",
    "status": "FINISHED",
    "started_ms": 1_700_000_000_000,
    "ended_ms": 1_700_000_001_000,
    "steps": 2,
    "metrics": {},
    "digest": "d" * 64,
    "verdict": None,
    "user": "somebody",
    "initial": WEIGHTS,
}
POINTS = {"path": "data/points.csv", "md5": "m" * 32, "size": 4, "files": 1, "remotes": {"far": "s3://bucket"}}
IMAGES = {"path": "data/images", "md5": "n" * 32 + ".dir", "size": 2, "files": 2, "remotes": None}
FILES: dict[str, archive.Content] = {
    "record/settings.yaml": b"run: {steps: 2}\n",
    "record/code.bundle": b"a bundle\n",
    "record/code.json": json.dumps({"origin": "c" * 40, "tree": "t" * 40}).encode(),
    "record/data.json": json.dumps({"inputs": [POINTS, IMAGES]}).encode(),
    "record/trace.jsonl": b"{}\n{}\n",
    "data/images/a b.png": b"1",
    "data/images/c.png": b"2",
    "requirements.txt": b"torch==1\n",
    WEIGHTS["file"]: b"weights",
}


def keys(folder: Path) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private, public = folder / "key.pem", folder / "key.pub"
    encoding, none = serialization.Encoding, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(encoding.PEM, serialization.PrivateFormat.PKCS8, none))
    public.write_bytes(key.public_key().public_bytes(encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def make(target: Path, key: Path | None = None) -> crate.Made:
    signer = None if key is None else statement.signer(key)
    made = crate.make(FILES, RUN, {"data/images": "data/images"}, signed_by=signer)
    archive.write(made.files, target)
    return made


@pytest.mark.parametrize("name", ["one.zip", "one"])
def test_what_was_exported_is_read(tmp_path: Path, name: str) -> None:
    made = make(tmp_path / name)
    found = crate.read(tmp_path / name, tmp_path / "place")
    assert found.run["run_id"] == RUN["run_id"]
    assert found.carried == {"data/images": tmp_path / "place" / "data" / "images"}
    assert (found.statement_sha256, found.signed_by) == (made.statement_sha256, None)
    assert found.weights is not None
    assert found.weights.read_bytes() == b"weights"
    assert (found.place / "record" / "code.bundle").read_bytes() == b"a bundle\n"


def test_crates_of_older_programs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their claim has no root of the trace. A later format is refused by its number."""
    run = {key: value for key, value in RUN.items() if key != "initial"}
    files = {name: content for name, content in FILES.items() if name != WEIGHTS["file"]}
    with monkeypatch.context() as older:
        older.setattr(crate, "_head", lambda *_: None)
        older.setattr(crate, "FORMAT", 1)
        archive.write(crate.make(files, run, {}).files, tmp_path / "first")
        older.setattr(crate, "FORMAT", 2)
        make(tmp_path / "second")
        older.setattr(crate, "FORMAT", 4)
        make(tmp_path / "later")
    found = crate.read(tmp_path / "first", tmp_path / "place")
    assert (found.weights, found.run["format"]) == (None, 1)
    assert not {"initial", "trace"} & statement.opened(tmp_path / "first", None).claim.keys()
    assert crate.read(tmp_path / "second", tmp_path / "another").weights is not None
    with refused("crate.format"):
        crate.read(tmp_path / "later", tmp_path / "of a later one")


def test_the_claim_has_the_root_of_the_trace(tmp_path: Path) -> None:
    made = make(tmp_path / "crate")
    leaf = merkle.leaf(b"{}")
    assert made.trace == statement.opened(tmp_path / "crate", None).claim["trace"] == merkle.head([leaf, leaf])


def test_weights_are_not_looked_for_outside(tmp_path: Path) -> None:
    archive.write(
        crate.make(FILES, {**RUN, "initial": {**WEIGHTS, "file": "../outside"}}, {}).files, tmp_path / "third"
    )
    with refused("crate.names"):
        crate.read(tmp_path / "third", tmp_path / "nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("signed", thinned([True, False], 2))
def test_a_changed_byte_is_found_and_named(tmp_path: Path, signed: bool) -> None:
    """In every file, at its first, at its last and at other bytes, with every file's name in the message."""
    draw = random.Random(1)
    private, _ = keys(tmp_path)
    made = make(tmp_path / "crate", private if signed else None)
    for number, name in enumerate(sorted(made.files)):
        file = tmp_path / "crate" / name
        whole = file.read_bytes()
        for position in {0, len(whole) - 1, *draw.sample(range(len(whole)), min(12, len(whole)))}:
            changed = bytearray(whole)
            changed[position] ^= 1 << draw.randrange(8)
            file.write_bytes(changed)
            with pytest.raises(NotRerunnable) as error:
                crate.read(tmp_path / "crate", tmp_path / f"place-{number}-{position}")
            assert name in error.value.message, (name, position, error.value.message)
        file.write_bytes(whole)
    crate.read(tmp_path / "crate", tmp_path / "again")


def test_the_message_has_both_hashes(tmp_path: Path) -> None:
    make(tmp_path / "crate")
    (tmp_path / "crate" / "record" / "trace.jsonl").write_bytes(b"{}\n{ }\n")
    with pytest.raises(NotRerunnable) as error:
        crate.read(tmp_path / "crate", tmp_path / "place")
    both = (hashlib.sha256(content).hexdigest() for content in (b"{}\n{}\n", b"{}\n{ }\n"))
    assert "record/trace.jsonl: expected sha256 {}, found {}".format(*both) in error.value.message


def test_a_file_too_many_and_one_too_few_are_named(tmp_path: Path) -> None:
    make(tmp_path / "crate")
    (tmp_path / "crate" / "more.py").write_text("print()")
    (tmp_path / "crate" / "record" / "code.bundle").unlink()
    with pytest.raises(NotRerunnable) as error:
        crate.read(tmp_path / "crate", tmp_path / "place")
    assert "more.py: it is in no statement" in error.value.message
    assert "record/code.bundle: expected sha256" in error.value.message


def test_a_signature_is_asked_for_and_checked(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    (tmp_path / "other").mkdir()
    _, stranger = keys(tmp_path / "other")
    made = make(tmp_path / "signed.zip", private)
    make(tmp_path / "unsigned.zip")
    trusted, other = statement.public_key(public), statement.public_key(stranger)
    found = crate.read(tmp_path / "signed.zip", tmp_path / "a", trusted)
    assert found.signed_by == made.signed_by == statement.signer(private).name
    with refused("crate.other-signer"):
        crate.read(tmp_path / "signed.zip", tmp_path / "b", other)
    with refused("crate.not-signed"):
        crate.read(tmp_path / "unsigned.zip", tmp_path / "c", trusted)


def test_the_signature_is_one_that_other_programs_check(tmp_path: Path) -> None:
    """By the letter of DSSE and in-toto, with nothing of ours."""
    private, public = keys(tmp_path)
    files = make(tmp_path / "x.zip", private).files
    envelope = json.loads(bytes_of(files, "statement.dsse.json"))
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    assert kind == "application/vnd.in-toto+json"
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    key = serialization.load_pem_public_key(public.read_bytes())
    key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)  # type: ignore[call-arg, union-attr]
    claimed = json.loads(payload)
    assert claimed["_type"] == "https://in-toto.io/Statement/v1"
    assert {each["name"] for each in claimed["subject"]} == set(files) - {"statement.dsse.json", "statement.pub"}
    predicate = claimed["predicate"]
    assert predicate["commit"] == "c" * 40
    assert predicate["data"] == {"data/points.csv": "m" * 32, "data/images": "n" * 32 + ".dir"}
    assert (predicate["digest"], predicate["verdict"]) == (RUN["digest"], None)
    assert predicate["lock"] == statement.sha256(b"torch==1\n")
    assert predicate["initial"] == {"name": "models:/one/1", "digest": "w" * 64}


def test_what_is_no_key_is_said(tmp_path: Path) -> None:
    private, public = keys(tmp_path)
    for wrong, code in ((tmp_path / "nothing", "crate.key-unreadable"), (public, "crate.private-key")):
        with refused(code):
            statement.signer(wrong)
    with refused("crate.public-key"):
        statement.public_key(private)


def test_data_are_not_looked_for_outside(tmp_path: Path) -> None:
    made = crate.make(FILES, RUN, {"data/points.csv": "../outside"})
    archive.write(made.files, tmp_path / "x.zip")
    with refused("crate.names"):
        crate.read(tmp_path / "x.zip", tmp_path / "place")


def bytes_of(files: Mapping[str, archive.Content], name: str) -> bytes:
    content = files[name]
    return content if isinstance(content, bytes) else content.read_bytes()


class Graph:
    """The entities of a crate's metadata, for the required checks of the profiles. (roc-validator 0.13.0 finds none broken;
    it needs another `rich` than MLflow's and DVC's environment has, so its checks are written out here.)"""

    def __init__(self, document: bytes) -> None:
        self.whole = json.loads(document)
        self.entities = {each["@id"]: each for each in self.whole["@graph"]}

    def of(self, name: str, key: str) -> list[dict[str, Any]]:
        """The entities that a property refers to."""
        found = self.entities[name].get(key, [])
        return [self.entities[each["@id"]] for each in (found if isinstance(found, list) else [found])]

    def types(self, name: str) -> set[str]:
        kind = self.entities[name]["@type"]
        return set(kind if isinstance(kind, list) else [kind])


@pytest.fixture(scope="module", params=[False, True], ids=["unsigned", "signed"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("crate")
    private, _ = keys(folder)
    return Graph(bytes_of(make(folder / "x.zip", private if request.param else None).files, metadata.FILE))


def test_the_metadata_are_an_ro_crate(graph: Graph) -> None:
    """Required by RO-Crate 1.1."""
    assert graph.whole["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    assert len(graph.entities) == len(graph.whole["@graph"])
    descriptor = graph.entities["ro-crate-metadata.json"]
    assert (descriptor["@type"], descriptor["about"]) == ("CreativeWork", {"@id": "./"})
    assert {"@id": "https://w3id.org/ro/crate/1.1"} in descriptor["conformsTo"]
    root = graph.entities["./"]
    assert root["@type"] == "Dataset"
    assert {"name", "description", "license", "datePublished"} <= set(root)
    assert root["datePublished"] == "2023-11-14T22:13:20.000+00:00"
    for entity in graph.whole["@graph"]:
        assert {"@id", "@type"} <= set(entity)
        assert all(not isinstance(value, dict) or set(value) == {"@id"} for value in entity.values()), "flattened"
    reached = {each["@id"] for each in graph.of("./", "hasPart")}
    data = {name for name in graph.entities if graph.types(name) & {"File"}}
    assert data <= reached, "each file is a part"
    assert {"data/images/", "data/images/a%20b.png"} <= reached
    assert not any(name.startswith(("/", "..")) for name in reached)


def test_every_entity_that_is_referred_to_is_there(graph: Graph) -> None:
    outside = ("https://w3id.org/", "https://bioschemas.org/")

    def check(value: Any) -> None:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                assert each["@id"] in graph.entities or each["@id"].startswith(outside), each

    for entity in graph.whole["@graph"]:
        for value in entity.values():
            check(value)


def test_the_metadata_are_a_workflow_run_crate(graph: Graph) -> None:
    """Required by Workflow RO-Crate 1.0, Process Run Crate 0.5 and Workflow Run Crate 0.5."""
    profiles = {each["@id"]: each["@type"] for each in graph.of("./", "conformsTo")}
    assert set(profiles.values()) == {"CreativeWork"}
    for expected in ("https://w3id.org/ro/wfrun/process/", "https://w3id.org/ro/wfrun/workflow/"):
        assert any(profile.startswith(expected) for profile in profiles)
    (workflow,) = graph.of("./", "mainEntity")
    assert graph.types(workflow["@id"]) == {"File", "SoftwareSourceCode", "ComputationalWorkflow"}
    assert workflow["@id"] in FILES
    (language,) = graph.of(workflow["@id"], "programmingLanguage")
    assert language["@type"] == "ComputerLanguage"
    (action,) = (name for name in graph.entities if "CreateAction" in graph.types(name))
    assert graph.of(action, "instrument") == [workflow]
    for key in ("object", "result"):
        for entity in graph.of(action, key):
            assert graph.types(entity["@id"]) & {"File", "Dataset", "PropertyValue"}
    assert graph.entities[action]["startTime"] < graph.entities[action]["endTime"]


def test_the_metadata_tell_of_data_that_do_not_travel_along(graph: Graph) -> None:
    (points,) = (each for each in graph.whole["@graph"] if each.get("name") == "data/points.csv")
    assert points["value"] == "m" * 32
    assert "far (s3://bucket)" in points["description"]
    assert graph.entities["#digest"]["value"] == RUN["digest"]


def test_the_metadata_tell_of_the_weights_that_the_run_began_with(graph: Graph) -> None:
    (action,) = (name for name in graph.entities if "CreateAction" in graph.types(name))
    (weights,) = (each for each in graph.of(action, "object") if each["@id"].startswith("initial/"))
    assert weights["description"] == f"The weights that training began with: models:/one/1, digest {'w' * 64}"
