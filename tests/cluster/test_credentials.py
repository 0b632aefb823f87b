"""A credential that the pipeline reads from a variable reaches workers of a joined Ray, and nobody else sees it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.conftest import raylets
from tests.projects import Project

NAME, VALUE = "SERVICE_TOKEN", "a1b2c3d4e5f6a7b8c9d0"
PIPELINE = f"""
import os

from pipelines.digits import Digits


class Net(Digits):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        assert os.environ["{NAME}"] == "{VALUE}"
"""


class CommandLines:
    """Looks at those of all processes, as every user of the machine may, and notes where the credential stands."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if VALUE.encode() in (line := place.read_bytes()):
                        self.found.add(line.replace(b"\0", b" ").decode(errors="replace")[:500])


@pytest.mark.long
@pytest.mark.ray
def test_a_credential_in_a_variable_is_in_no_command_line_and_in_no_log_of_ray(digits: Project) -> None:
    (digits.path / "with_token.py").write_text(PIPELINE)
    with raylets(4) as joined, CommandLines() as lines:
        there = replace(digits, variables={**joined.access, NAME: VALUE})
        done = there.run(
            *("conf=digits", "run.steps=3", "pipeline.target=with_token:Net", f"environment.variables=[{NAME}]"),
            *(f"cluster.address={joined.address}", "cluster.workers=2", "output=json"),
        )
        assert done.code == 0, done.err
        logs = [file for file in Path(joined.folder).rglob("*") if file.is_file()]
        assert logs
        assert [file for file in logs if VALUE.encode() in file.read_bytes()] == []
    assert lines.found == set()
