"""The environment: every installed package with its version, and a hash that tells two of them apart."""

from __future__ import annotations

import dataclasses
import importlib.metadata

from orchestrator.provenance import environment


def test_packages_are_those_that_are_installed() -> None:
    found = environment.capture()
    assert found.packages["torch"] == importlib.metadata.version("torch")
    assert list(found.packages) == sorted(found.packages)
    assert found.cores >= 1
    assert found.cpu


def test_the_hash_depends_on_every_version() -> None:
    found = environment.capture()
    other = dataclasses.replace(found, packages={**found.packages, "torch": "0"})
    assert found.packages_sha256 != other.packages_sha256
    assert found.packages_sha256 == environment.capture().packages_sha256
    assert found.as_dict()["packages"] == found.packages
