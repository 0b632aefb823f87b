"""`verify=FILE`: what is wrong with the file is not said of its root."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.verify import verify
from tests.refusals import refused

ROOT = f"3:{'0' * 64}"


@pytest.mark.parametrize("content", [b"{", b'{"run": "\xff"}', b'{"first": ' + b"1" * 5000 + b"}"])
def test_what_is_no_json_is_refused_as_such(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "steps.json"
    file.write_bytes(content)
    with refused("verify.not-json"):
        verify(file, ROOT)


def test_what_is_no_root_is_told_of_the_root(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text("{}")
    with refused("verify.root", "nothing"):
        verify(file, "nothing")
