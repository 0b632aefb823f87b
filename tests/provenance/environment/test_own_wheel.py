"""The wheel of this package is what pip expects, whole, and the same each time."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from orchestrator.provenance.environment import own_wheel, packages


@pytest.mark.slow
def test_the_wheel_holds_the_source_and_the_data_of_the_package(tmp_path: Path) -> None:
    wheel = own_wheel.write(tmp_path, "0.1.0")
    assert str(parse_wheel_filename(wheel.name)[1]) == "0.1.0"
    assert wheel.read_bytes() == own_wheel.content("0.1.0")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        data = ("py.typed", "numerics/portable/known.json", "driver/report/page.html.jinja")
        assert {f"orchestrator/{name}" for name in data} <= set(names)
        assert not [name for name in names if "__pycache__" in name]
        record = archive.read("orchestrator-0.1.0.dist-info/RECORD").decode()
        rows = {name: told for name, told, _ in csv.reader(io.StringIO(record))}
        assert list(rows) == names
        for name, told in rows.items():
            if not name.endswith("/RECORD"):
                digest = hashlib.sha256(archive.read(name)).digest()
                assert told == "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        archive.extractall(tmp_path / "site")
    assert packages.own_sha256(tmp_path / "site" / "orchestrator") == packages.own_sha256()
    versions, builds = packages.installed([str(tmp_path / "site")])
    assert versions == {"orchestrator": "0.1.0"}
    assert "editable" not in builds["orchestrator"]


def test_a_package_that_was_never_installed_has_a_wheel_too() -> None:
    assert own_wheel.name_of(None) == "orchestrator-0-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(own_wheel.content(None))) as archive:
        assert "Version: 0\n" in archive.read("orchestrator-0.dist-info/METADATA").decode()
