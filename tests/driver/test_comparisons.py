"""The comparison with the run before is a comfort: a record that is damaged, or made by hand, ends no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.driver.recording import comparisons
from orchestrator.driver.recording.comparisons import Predecessor

COLUMN = {"values": [0.0, 1.0], "counts": [1, 1], "items": 2}
OWN = {"columns": {"0": COLUMN}, "classes": {"a": 1}, "counted": 1}


@pytest.mark.parametrize(
    "profile",
    [
        {"columns": {"0": {"values": []}}},
        {"columns": {"0": []}},
        {"columns": []},
        {"columns": {}, "classes": None},
        {"columns": {}, "classes": {"a": "b"}},
    ],
)
def test_a_profile_of_another_form_tells_of_no_drift(profile: dict[str, Any]) -> None:
    """It ended a run with a traceback when all its steps were done."""
    assert Predecessor("before", OWN, {}).drift(OWN) is not None
    assert Predecessor("before", profile, {}).drift(OWN) is None


@pytest.mark.parametrize("inputs", [None, [{"path": "data"}], ["data"]])
def test_a_record_whose_inputs_are_none_is_no_predecessor(monkeypatch: pytest.MonkeyPatch, inputs: Any) -> None:
    facts = {"profile": OWN, "inputs": inputs}
    monkeypatch.setattr("orchestrator.provenance.tracking.predecessors.predecessor", lambda *_: "before")
    monkeypatch.setattr("orchestrator.provenance.tracking.predecessors.data_of", lambda *_: facts)
    store: Any = None
    assert comparisons.find(store, store, "a:B", Path()) is None
    facts["inputs"] = [{"path": "data", "md5": "4e8d"}]
    assert comparisons.find(store, store, "a:B", Path()) == Predecessor("before", OWN, {"data": "4e8d"})
