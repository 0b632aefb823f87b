from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.transports.worlds import WORLDS, World

# Mixtures of what the other worlds have each by itself.
MIXED = (
    *("tls, regions", "tcp, regions", "tcp, devices and host memory", "unix, a device and host memory"),
    *("unix, a damaging device", "unix, a device out of reach"),
)
PARAMETERS = [pytest.param(name, marks=pytest.mark.long) if name in MIXED else name for name in WORLDS]


@pytest.fixture(params=PARAMETERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = WORLDS[request.param]()
    yield made
    made.close()
