"""The trace: lines that two equal runs have in common."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.trace import line


@given(st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1))
def test_a_line_holds_every_bit(loss: float, fingerprint: int) -> None:
    entry = line(3, loss, fingerprint)
    assert float.fromhex(entry["loss"]).hex() == loss.hex()
    assert int(entry["gradient"], 16) == fingerprint % 2**64
    assert len(entry["gradient"]) == 16
    assert list(entry) == ["step", "loss", "gradient"]


def test_a_line_with_a_digest() -> None:
    assert line(0, 1.5, -1, "ab") == {
        "step": 0,
        "loss": "0x1.8000000000000p+0",
        "gradient": "f" * 16,
        "parameters": "ab",
    }
    assert line(1, math.inf, 0)["loss"] == "inf"
