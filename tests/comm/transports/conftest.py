from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.transports.worlds import WORLDS, World


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = WORLDS[request.param]()
    yield made
    made.close()
