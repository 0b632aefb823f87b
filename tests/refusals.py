"""A test expects the code of an error, which stays when the sentence changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.errors import OrchestratorError


@contextmanager
def refused(code: str, named: str = "") -> Iterator[pytest.ExceptionInfo[OrchestratorError]]:
    """An error, or one of its problems, has this code (docs/errors.md), and what it says names a key, file or value."""
    with pytest.raises(OrchestratorError) as caught:
        yield caught
    assert code in caught.value.codes
    assert named in str(caught.value)
