"""The view of somebody who has all packets between two hosts, with `transport.tls` and without."""

from __future__ import annotations

import json
import secrets
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.namespaces import address_of, wired
from orchestrator.comm.transports.tls import Credentials, make_credentials
from tests.comm.transports.captured import ELEMENTS, VALUE
from tests.projects import REPOSITORY

GRADIENT = [struct.pack("<f", VALUE) * 8, struct.pack("<d", VALUE) * 4]


def add_up(file: Path, secret: bytes, credentials: Credentials | None) -> list[str]:
    """Two hosts add up their gradients; the digests that they print. file: for the packets."""
    command = [sys.executable, "-m", "tests.comm.transports.captured"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": REPOSITORY}
    with wired(2, "1gbit") as network:
        listening = network.start(0, [*command, "listen", str(file)], **pipes)
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        members = [network.start(host, [*command, "add", str(host), address_of(host)], **pipes) for host in range(2)]
        certificate, key = (None, None) if credentials is None else (credentials.certificate, credentials.key)
        told = {
            "secret": secret.hex(),
            "certificate": certificate and certificate.decode(),
            "key": key and key.decode(),
        }
        addresses = [asked(member, json.dumps(told) + "\n") for member in members]
        for member, peer in zip(members, reversed(addresses), strict=True):
            tell(member, peer)
        return [member.communicate()[0].strip() for member in members]


def asked(member: subprocess.Popen[str], line: str) -> str:
    """The member's answer to this line."""
    tell(member, line)
    assert member.stdout is not None
    return member.stdout.readline()


def tell(member: subprocess.Popen[str], line: str) -> None:
    assert member.stdin is not None
    member.stdin.write(line)
    member.stdin.flush()


@pytest.mark.long
@pytest.mark.root
def test_a_capture_between_hosts_shows_gradients_without_tls_and_nothing_with_it(tmp_path: Path) -> None:
    secret, credentials = secrets.token_bytes(32), make_credentials()
    digests = add_up(tmp_path / "plain", secret, None) + add_up(tmp_path / "encrypted", secret, credentials)
    assert len(set(digests)) == 1
    assert len(digests[0]) == 64
    plain, encrypted = ((tmp_path / name).read_bytes() for name in ("plain", "encrypted"))
    assert min(len(plain), len(encrypted)) > 8 * ELEMENTS  # what the one host hears and says: all of it was captured
    assert any(pattern in plain for pattern in GRADIENT)
    private = [*GRADIENT, secret, credentials.key[60:100]]
    assert [pattern for pattern in private if pattern in encrypted] == []
