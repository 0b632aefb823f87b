"""The Dockerfile of a run names what the record names, and nothing that is only here."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.provenance.environment import container, lock
from tests.provenance.environment.test_lock import NODE, node

RUN_ID = "0123456789abcdef" * 2
EXPECTED = """\
FROM python:3.11.7-slim-bookworm
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN command -v git || (apt-get update && apt-get install --yes --no-install-recommends git)
WORKDIR /repeat
COPY requirements.txt wheels* ./wheels/
RUN python -m pip install --no-deps --find-links wheels --requirement wheels/requirements.txt orchestrator
COPY . crate
ENTRYPOINT ["python", "-m", "orchestrator", "rerun=crate/", "trust=true"]
"""


def instructions(text: str | None) -> str:
    assert text is not None
    return "".join(line + "\n" for line in text.splitlines() if line and not line.startswith("#"))


def test_it_goes_from_an_image_to_a_verdict() -> None:
    text = container.dockerfile(RUN_ID, [NODE])
    assert instructions(text) == EXPECTED
    assert text is not None
    assert f"export={RUN_ID} to=run-01234567 data=true" in text
    assert "docker build --file run-01234567/record/Dockerfile --tag run-01234567 run-01234567" in text
    assert "/elsewhere" not in text
    assert container.dockerfile(RUN_ID, []) is None


def test_packages_of_the_repository_are_installed_from_its_code() -> None:
    placed = lock.placed(node(a={"directory": "/top/libs/a b", "editable": True}, b={"directory": "/top"}), "/top")
    text = instructions(container.dockerfile(RUN_ID, [placed]))
    assert "COPY record/code.bundle ./\n" in text
    assert "RUN python -m pip install --no-deps --editable './code/libs/a b' ./code/.\n" in text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"host": {"container": {"kind": "docker", "image": "host:5000/a/b@sha256:12"}}},
            "FROM host:5000/a/b@sha256:12",
        ),
        ({"host": {"container": {"kind": "docker", "image": "a\nRUN x"}}}, "FROM python:3.11.7-slim-bookworm"),
        ({"bits": {**NODE["bits"], "libc": "glibc 2.41"}}, "FROM python:3.11.7-slim-trixie"),
        ({"packages": {"torch": "2.13.0"}}, "ARG PIP_EXTRA_INDEX_URL="),
        ({"packages": {"torch": "2.13.0+cu126"}}, "ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126"),
        ({"packages": {"torch": "2.13.0+of my own"}}, "ARG PIP_EXTRA_INDEX_URL="),
    ],
)
def test_image_and_index_follow_from_the_record(changes: dict[str, Any], line: str) -> None:
    assert line in instructions(container.dockerfile(RUN_ID, [{**NODE, **changes}])).splitlines()


def test_a_graphics_card_is_handed_in() -> None:
    with_gpu = {**NODE, "bits": {**NODE["bits"], "gpu": {"models": ["X"]}}}
    assert "docker run --rm --gpus all run-01234567" in str(container.dockerfile(RUN_ID, [with_gpu]))
    assert "--gpus" not in str(container.dockerfile(RUN_ID, [NODE]))
