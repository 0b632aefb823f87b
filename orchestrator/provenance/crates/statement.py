"""The claims of a crate, in one statement that can be signed: the hash of each of its files, and the result of the run.

An in-toto statement (v1) in a DSSE envelope (v1.0.2), signed with ed25519 where a key is given. Every byte of it follows from
the crate's files and the signature, so a change anywhere is found: in a file by its hash, in the statement because it is
written in one way only. Without a signature that proves the crate undamaged; who wants to know that nobody made
another one in its place compares the statement's hash, or has it signed and checks with the public key.
Sources: github.com/in-toto/attestation, spec/v1/statement.md; github.com/secure-systems-lab/dsse, envelope.md and protocol.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import NotRerunnable, UsageError
from orchestrator.records import bounded_json
from orchestrator.records.identity import canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FILE, PUBLIC_KEY = "statement.dsse.json", "statement.pub"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://orchestrator.invalid/training-run/v1"
_MAKE_ONE = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


@dataclass(frozen=True)
class Signer:
    """A private key. name: the fingerprint of its public half."""

    key: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        """As a file in PEM."""
        return _pem(self.key.public_key())

    @property
    def name(self) -> str:
        return _name(self.key.public_key())


def signer(path: Path) -> Signer:
    """The ed25519 private key in a file, PEM or OpenSSH, without a password. Raises UsageError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = _read_key(path)
    load = serialization.load_ssh_private_key if b"OPENSSH PRIVATE KEY" in text else serialization.load_pem_private_key
    try:
        key = load(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"key={path}: it is no private key that can be used: {error}", _MAKE_ONE, code="crate.private-key"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"key={path}: it is no ed25519 key", _MAKE_ONE, code="crate.kind-of-key")
    return Signer(key)


def public_key(path: Path) -> Ed25519PublicKey:
    """The ed25519 public key in a file, PEM or OpenSSH. Raises UsageError."""
    key = _public(_read_key(path))
    if key is None:
        remedy = f"give the public key, such as {PUBLIC_KEY} from whom you trust"
        raise UsageError(f"key={path}: it is no ed25519 public key", remedy, code="crate.public-key")
    return key


def predicate(
    run: Mapping[str, Any], code: Mapping[str, Any], data: Mapping[str, Any], lock: str, trace: str | None
) -> dict[str, Any]:
    """The claims about the run. run: `run.json`; code, data: the record's files; lock: SHA-256 of the list of packages;
    trace: the head of the Merkle tree of its trace, None in a crate of an older format."""
    begins = run.get("initial")
    return {
        "run": run["run_id"],
        "commit": code.get("origin"),
        "tree": code.get("tree"),
        "data": {item["path"]: item["md5"] for item in data.get("inputs", [])},
        "lock": lock,
        "steps": run["steps"],
        "digest": run["digest"],
        "verdict": run["verdict"],
        **({} if begins is None else {"initial": {key: begins[key] for key in ("name", "digest")}}),
        **({} if trace is None else {"trace": trace}),
    }


def payload(hashes: Mapping[str, str], claim: Mapping[str, Any]) -> bytes:
    """The statement. hashes: name -> SHA-256, of all files but those that come from the statement itself."""
    subjects = [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)]
    statement = {"_type": _TYPE, "subject": subjects, "predicateType": _PREDICATE_TYPE, "predicate": claim}
    return canonical(statement).encode()


def envelope(content: bytes, signed_by: Signer | None) -> bytes:
    signatures = []
    if signed_by is not None:
        signature = signed_by.key.sign(_authenticated(content))
        signatures = [{"keyid": signed_by.name, "sig": base64.b64encode(signature).decode()}]
    return _written(
        {"payload": base64.b64encode(content).decode(), "payloadType": _PAYLOAD_TYPE, "signatures": signatures}
    )


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Opened:
    """A statement that was read. hashes: name -> SHA-256 as it says; signed_by: whose signature it bears, by the key beside
    it."""

    payload: bytes
    hashes: dict[str, str]
    claim: dict[str, Any]
    signed_by: str | None


def opened(place: Path, trusted: Ed25519PublicKey | None) -> Opened:
    """The statement of the crate in the folder `place`, its form and its signature checked. trusted: whose signature it has to
    bear. Raises NotRerunnable, naming the file that is not what was written."""
    try:
        text = bounded_json.contents(place / FILE)
    except FileNotFoundError:
        raise NotRerunnable(
            f"there is no {FILE}, so this is no crate of export=", "see docs/sharing.md", code="crate.no-statement"
        ) from None
    try:
        envelope_ = bounded_json.parsed(text)
        content = base64.b64decode(envelope_["payload"], validate=True)
        statement = bounded_json.parsed(content)
        hashes = {str(each["name"]): str(each["digest"]["sha256"]) for each in statement["subject"]}
        claim, signatures = dict(statement["predicate"]), list(envelope_["signatures"])
        sound = text == _written(envelope_) and content == payload(hashes, claim)
        sound = sound and envelope_["payloadType"] == _PAYLOAD_TYPE and len(envelope_) == 3
        name = _verified(place, content, signatures, trusted)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        sound = False
    if not sound:
        raise _damaged(FILE, "it is not as export= writes it")
    return Opened(content, hashes, claim, name)


def _verified(
    place: Path, content: bytes, signatures: list[Mapping[str, str]], trusted: Ed25519PublicKey | None
) -> str | None:
    """The key whose signature the statement bears. Raises NotRerunnable where it is not theirs, or not of the key that is
    trusted."""
    from cryptography.exceptions import InvalidSignature

    if not signatures:
        if trusted is not None:
            raise NotRerunnable(
                "this crate is not signed, and key= asks for a signature",
                "leave key= out, or ask who made it",
                code="crate.not-signed",
            )
        return None
    (signature,) = signatures
    if not (place / PUBLIC_KEY).is_file():
        raise _damaged(PUBLIC_KEY, "it is not there, and the statement is signed")
    text = (place / PUBLIC_KEY).read_bytes()
    own = _public(text)
    if own is None or text != _pem(own) or signature["keyid"] != _name(own) or len(signature) != 2:
        raise _damaged(PUBLIC_KEY, "it is not the key that the statement names")
    try:
        own.verify(base64.b64decode(signature["sig"], validate=True), _authenticated(content))
    except InvalidSignature:
        raise _damaged(FILE, f"its signature by {signature['keyid']} does not hold") from None
    if trusted is not None and _pem(trusted) != text:
        raise NotRerunnable(
            f"this crate is signed by {_name(own)}, and key= is {_name(trusted)}",
            "ask who made it, or give the other key",
            code="crate.other-signer",
        )
    return _name(own)


def _written(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, sort_keys=True, indent=1) + "\n").encode()


def _authenticated(content: bytes) -> bytes:
    """The signed bytes: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(content), content)


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"key={path}: it cannot be read: {error.strerror}", code="crate.key-unreadable") from None


def _public(text: bytes) -> Ed25519PublicKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    is_ssh = text.startswith(b"ssh-ed25519 ")
    load = serialization.load_ssh_public_key if is_ssh else serialization.load_pem_public_key
    try:
        key = load(text)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PublicKey) else None


def _pem(key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _name(key: Ed25519PublicKey) -> str:
    """The fingerprint, as ssh-keygen writes it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    blob = base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _damaged(name: str, why: str) -> NotRerunnable:
    return NotRerunnable(
        f"{name} is not what was exported: {why}", "ask for the crate again", code="crate.file-altered"
    )
