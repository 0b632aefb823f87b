"""The profile of a pipeline's training data, computed by a process of its own while the run goes on.

The process reads a recipe from its standard input and writes the profile to its standard output, both JSON. It ends when its
input does, so it does not outlive whoever asked. It does what may draw random numbers or print where it disturbs nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from orchestrator.data import mixture
from orchestrator.data.files import cache
from orchestrator.data.profile import profile
from orchestrator.errors import OrchestratorError
from orchestrator.numerics import determinism, streams
from orchestrator.pipeline import find, naming

_NICENESS = 10  # training goes first


class Profiling:
    """A profile under way. files: the cache of files from elsewhere, as `data.files.cache.use` takes it."""

    def __init__(
        self, target: str, args: Mapping[str, Any], seed: int, files: tuple[int, str | None, float] | None = None
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # an interrupt of the run is not for it
        )
        self._is_read = False
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            recipe = {"target": target, "args": dict(args), "seed": seed, "cache": files}
            self._process.stdin.write(json.dumps(recipe).encode() + b"\n")
            self._process.stdin.flush()

    def result(self) -> dict[str, Any] | None:
        """Waits for it; None where there is none: the data cannot be read here, or it was ended."""
        assert self._process.stdout is not None
        self._is_read = True
        try:
            with self._process.stdout as answers:
                return dict(json.loads(answers.read()))
        except ValueError:  # of no answer, or closed already
            return None
        finally:
            self.close()

    def close(self) -> None:
        """End it, if it has not ended. Safe to call twice, and from another thread than the one that waits."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # of what it has not read
            self._process.stdin.close()
        if not self._is_read:
            self._process.stdout.close()


def _serve() -> None:
    os.nice(_NICENESS)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the pipeline prints must not get into the answer
    recipe = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    determinism.prepare_thread(1)
    if recipe["cache"] is not None:
        cache.use(*recipe["cache"])
    with contextlib.suppress(OrchestratorError):
        with naming("the pipeline's __init__"), streams.seeded(recipe["seed"], "pipeline"):
            pipeline = find(recipe["target"], recipe["args"])(**recipe["args"])
        with naming("datasets()"), streams.seeded(recipe["seed"], "datasets"):
            train, _ = pipeline.datasets()
            train = mixture.whole(train)
        with streams.seeded(0, "profile"):
            found = profile(train)
        answers.write(json.dumps(found))
        answers.flush()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    _serve()
