"""Fixtures of several files of tests."""

from __future__ import annotations

import pytest

from tests.worker.retracing import Retracer, records


@pytest.fixture
def retracer(monkeypatch: pytest.MonkeyPatch) -> Retracer:
    """Workers sum on a device, and record with this."""
    made = Retracer()
    records(monkeypatch, made)
    return made
