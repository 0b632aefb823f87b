"""The text of `export=` about a crate and an excerpt that it has made."""

from __future__ import annotations

from orchestrator.experiments.export.crate import ExportedCrate
from orchestrator.experiments.export.trace_excerpt import ExportedExcerpt


def test_the_commands_that_it_prints_may_be_typed_whatever_the_path() -> None:
    place = "/home/me/my runs/one.zip"
    crate = ExportedCrate("0" * 32, place, 3, 100, {}, None, "1" * 64, None, None, 0, [])
    assert f"rerun='{place}' trust=true" in crate.as_text()
    assert f"verify='{place}' root=3:ab" in ExportedExcerpt("0" * 32, place, 0, 3, "3:ab").as_text()
