"""Packages that only these tests need lie in the folder that `make others` fills. They are on the path before anything imports
transformers, which remembers what it has not found; Lightning imports it, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="package")
def _others() -> Iterator[None]:
    folder = str(Path(sys.prefix) / "others")
    sys.path.append(folder)
    yield
    sys.path.remove(folder)
