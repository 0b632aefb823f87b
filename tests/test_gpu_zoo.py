"""The zoo of `benchmarks.gpu` on processors: every model trains to one digest on any layout."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu.zoo import ZOO
from orchestrator.common import nondeterministic
from orchestrator.pipeline import Pipeline
from tests.products import thinned
from tests.worker.runs import Layout, train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", thinned(ZOO, len(ZOO), 4))
def test_each_of_the_zoo_has_one_digest(kind: type[Pipeline]) -> None:
    settings: dict[str, Any] = {
        "steps": 2,
        "batch_size": 18,
        "shards": 6,
        "precision": getattr(kind, "precision", "float32"),
    }
    one = train(kind, **settings)
    three = train(kind, Layout(3, "tree"), **settings)
    assert (three.trace, three.digest) == (one.trace, one.digest)


def test_what_has_to_be_refused_stands_in_the_table() -> None:
    names = {row.name for row in nondeterministic.OPERATIONS}
    assert {kind.refused for kind in ZOO if hasattr(kind, "refused")} <= names
