"""The profile of a pipeline's training data, computed by a process of its own while the run goes on.

The process is told a recipe and answers with the profile, both JSON (`common.child`). It ends when its input does, so it does
not outlive whoever asked. It does what may draw random numbers or print where it disturbs nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from orchestrator.adapters import table
from orchestrator.adapters.source import Source
from orchestrator.common.child import Started, end_with, parent
from orchestrator.data import mixture
from orchestrator.data.files import cache
from orchestrator.data.profile import profile
from orchestrator.errors import OrchestratorError
from orchestrator.numerics import determinism, streams
from orchestrator.pipeline import naming

_NICENESS = 10  # training goes first


class Profiling:
    """A profile under way. files: the cache of files from elsewhere, as `data.files.cache.use` takes it."""

    def __init__(self, source: Source, seed: int, files: tuple[int, str | None, float] | None = None) -> None:
        self._child = Started(__name__, silent=True, apart=True)
        self._is_read = False
        recipe = {"source": source.as_dict(), "seed": seed, "cache": files}
        with contextlib.suppress(OSError):
            self._child.messages.send(json.dumps(recipe).encode())

    def result(self) -> dict[str, Any] | None:
        """Waits for it; None where there is none: the data cannot be read here, or it was ended."""
        self._is_read = True
        try:
            answer = self._child.messages.receive()
        except ValueError:  # closed already
            return None
        finally:
            self.close()
            self._child.close()
        return None if answer is None else dict(json.loads(answer))

    def close(self) -> None:
        """End it, if it has not ended. Safe to call twice, and from another thread than the one that waits."""
        self._child.kill()
        self._child.wait()
        if not self._is_read:
            self._child.close()


def _serve() -> None:
    os.nice(_NICENESS)
    asker = parent()
    recipe = json.loads(asker.receive() or b"{}")
    end_with(asker)
    determinism.prepare_thread(1)
    if recipe["cache"] is not None:
        cache.use(*recipe["cache"])
    with contextlib.suppress(OrchestratorError):
        with naming("the pipeline's __init__"), streams.seeded(recipe["seed"], "pipeline"):
            source = Source.of(recipe["source"])
            pipeline = table.find(source)(**source.args)
        with naming("datasets()"), streams.seeded(recipe["seed"], "datasets"):
            train, _ = pipeline.datasets()
            train = mixture.whole(train)
        with streams.seeded(0, "profile"):
            found = profile(train)
        asker.send(json.dumps(found).encode())


if __name__ == "__main__":
    _serve()
