"""Calls of the pipeline's `on_evaluation`, in a process of its own beside the worker of rank 0.

The user's code there can change no bit of the training. The process has its own copy of the model, its own generators and its
own settings of torch, and only numbers to be recorded come back from it. It builds the pipeline under the run's seed as a
loader does, and ends when its worker does.

Training waits for it only at the end of the run. While a call lasts, later evaluations wait behind it, each with its copy of
the model; where these copies become too large the oldest is left out, which is told. So is what a run does not wait for that is
stopped. An exception, a wrong answer or the death of the process is told too; the next evaluation is called again.

A model in stages is whole nowhere, so it cannot be given (`driver.preflight.checks` refuses that).
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from orchestrator.adapters import table
from orchestrator.adapters.adapted import Adapted, Course, Told
from orchestrator.adapters.source import Source
from orchestrator.common import listings
from orchestrator.common.child import Child, Messages, Start, Started, parent
from orchestrator.config.plan import Plan
from orchestrator.errors import OrchestratorError, PipelineRaised
from orchestrator.numerics import determinism, streams
from orchestrator.pipeline import Pipeline, naming
from orchestrator.worker.model import construction, runs_of_its_own

_LOOK_S = 0.2
_WAITING_BYTES = 256 * 2**20  # of the copies that wait; one may always
_CONTRACT = "return None, or a mapping of names to numbers"
Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Recipe:
    """The settings from which the process builds the pipeline and its model."""

    source: Source  # of the pipeline
    seed: int  # of the run
    data_seed: int  # of what datasets() draws
    threads: int  # with which torch computes
    arithmetic: determinism.Arithmetic  # that of the run
    course: Course | None = None  # of the run, for a pipeline that is told of it


class _Call(NamedTuple):
    """A call that waits or is under way. state: the model's, as torch saves it."""

    step: int
    metrics: dict[str, float]
    state: bytes


class Callbacks:
    """The calls of one worker, in a process that `start` begins. emit: hears `{"event": "called_back", "step", "metrics"}` of
    each call, with `failed` where it failed, and once of runs of MLflow that calls begin."""

    def __init__(self, plan: Plan, emit: Emit, start: Start = Started) -> None:
        run, compute = plan.run, plan.run.compute
        data_seed = run.seed if plan.data.seed is None else plan.data.seed
        self._recipe = Recipe(run.pipeline, run.seed, data_seed, compute.threads, compute.arithmetic)
        self._emit = emit
        self._start = start
        self._child: Child | None = None
        self._waiting: deque[_Call] = deque()
        self._returned = 0
        self._noted = False
        self._calling: int | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, course: Course) -> None:
        """Have the pipeline of the calls told of the run. Before the first call."""
        self._recipe = replace(self._recipe, course=course)

    def call(self, step: int, metrics: Mapping[str, float], state: Mapping[str, torch.Tensor]) -> None:
        """Have `on_evaluation` called with a copy of this state, and go on. state: buffers that are not persistent may be in
        it, too."""
        call = _Call(step, dict(metrics), _saved(state))
        with self._changed:
            self._waiting.append(call)
            left_out = self._surplus()
            self._changed.notify_all()
        for each in left_out:
            self._tell(each.step, failed=f"it was left out: an earlier call had not returned by step {step + 1}")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="callbacks", daemon=True)
            self._thread.start()

    def finish(self, beat: Callable[[], None], patience_s: float) -> None:
        """Wait until all calls have returned, for each at most so long. beat: called meanwhile, may raise."""
        returned, since = self._returned, time.monotonic()
        with self._changed:
            while (steps := self._pending) and time.monotonic() < since + patience_s:
                self._changed.wait(_LOOK_S)
                beat()
                if self._returned > returned:
                    returned, since = self._returned, time.monotonic()
        for step in steps:
            self._tell(step, failed=f"it had not returned after {patience_s:g} s (cluster.step_timeout_s)")

    def leave(self) -> None:
        """Tell of the calls that have not returned, for which a run that is stopped does not wait."""
        with self._changed:
            steps = self._pending
        if steps:
            later = f", nor had {len(steps) - 1} after it" if steps[1:] else ""
            self._tell(steps[0], failed=f"it had not returned when the run was stopped{later}", stopped=True)

    def close(self) -> None:
        """End the process. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            child = self._child
        if child is not None:
            child.kill()
        if self._thread is not None:
            self._thread.join()
        if child is not None:
            child.close()

    @property
    def _pending(self) -> list[int]:
        """The steps of calls that have not returned."""
        return [*([] if self._calling is None else [self._calling]), *(call.step for call in self._waiting)]

    def _surplus(self) -> list[_Call]:
        """The oldest calls that wait, as many as have to go for the others to fit in _WAITING_BYTES."""
        found = []
        while len(self._waiting) > 1 and sum(len(call.state) for call in self._waiting) > _WAITING_BYTES:
            found.append(self._waiting.popleft())
        return found

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            began = time.monotonic()
            answer = self._answer(call)
            if not self._closed:
                for line in answer.pop("said", ()):
                    self._emit({"printed": line})
                if (note := answer.pop("note", None)) is not None and not self._noted:
                    self._noted = True
                    self._emit({"event": "device", "why": note})
                self._tell(call.step, seconds=round(time.monotonic() - began, 3), **answer)
            with self._changed:
                self._calling = None
                self._returned += 1
                self._changed.notify_all()

    def _next(self) -> _Call | None:
        """Waits for it; None once this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            call = None if self._closed else self._waiting.popleft()
            self._calling = None if call is None else call.step
            self._changed.notify_all()
            return call

    def _answer(self, call: _Call) -> dict[str, Any]:
        child = self._started()
        with contextlib.suppress(OSError):  # it died: there is no answer
            child.messages.send(pickle.dumps(tuple(call)))
        payload = child.messages.receive()
        if payload is not None:
            answer: dict[str, Any] = pickle.loads(payload)
            return answer
        child.kill()
        self._child = None
        return {"failed": f"its process ended with code {child.close()}"}

    def _started(self) -> Child:
        with self._changed:
            if self._child is None:
                self._child = self._start(__name__)
                if self._closed:
                    self._child.kill()
                with contextlib.suppress(OSError):  # it died: whoever reads its answer finds that out
                    self._child.messages.send(pickle.dumps(asdict(self._recipe)))
            return self._child

    def _tell(self, step: int, **told: Any) -> None:
        self._emit({"event": "called_back", "step": step, **told})


def _saved(state: Mapping[str, torch.Tensor]) -> bytes:
    stream = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in state.items()}, stream)
    return stream.getvalue()


class _Caller:
    """The pipeline and its model in the process of the calls."""

    def __init__(self, recipe: Recipe) -> None:
        self._seed, self._data_seed = recipe.seed, recipe.data_seed
        kind = table.find(recipe.source)
        self._pipeline: Pipeline = construction.make_pipeline(kind, recipe.source.args, recipe.seed)
        if isinstance(self._pipeline, Told) and recipe.course is not None:
            self._pipeline.begin(recipe.course)
        if isinstance(self._pipeline, Adapted) and self._pipeline.looks_at_data:
            with naming("datasets()"), streams.seeded(self._data_seed, "datasets"):
                self._pipeline.datasets()
        self._model: torch.nn.Module | None = None

    def __call__(self, call: _Call) -> dict[str, float]:
        """Raises PipelineRaised."""
        model = self._filled(call)
        with naming("on_evaluation()"), streams.seeded(self._seed, "on_evaluation", call.step):
            returned: Any = self._pipeline.on_evaluation(call.step, MappingProxyType(call.metrics), model)
        return _numbers(returned)

    def _filled(self, call: _Call) -> torch.nn.Module:
        """The model as it was after that step, whatever an earlier call has made of it."""
        if self._model is None:
            make = partial(construction.make_model, self._pipeline, self._seed)
            self._model = construction.with_data(self._pipeline, self._data_seed, make)
        state = torch.load(io.BytesIO(call.state), weights_only=True)
        with naming("giving the model of on_evaluation() its weights"):
            self._model.load_state_dict(state, strict=False)  # tied tensors are there once
            unsaved = state.keys() - self._model.state_dict().keys()
            for name, buffer in self._model.named_buffers():
                if name in unsaved:
                    buffer.copy_(state[name])
            self._model.requires_grad_(False)
            return self._model.eval()


def _numbers(returned: Any) -> dict[str, float]:
    """Raises PipelineRaised."""
    try:
        return {} if returned is None else {str(name): float(value) for name, value in returned.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise PipelineRaised(
            f"on_evaluation() returned {returned!r}: {error}", _CONTRACT, code="pipeline.on-evaluation"
        ) from None


def _answered(caller: Callable[[], _Caller], call: _Call) -> dict[str, Any]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            answer: dict[str, Any] = {"metrics": caller()(call)}
        except OrchestratorError as error:
            answer = {"failed": error.message}
    return {**answer, "said": said.getvalue().splitlines(), "note": runs_of_its_own.note()}


def _serve(worker: Messages) -> None:
    """Requests are read in a thread beside the calls: when the pipe closes the worker is gone, and the process ends at
    once."""
    first = worker.receive()
    if first is None:
        return
    told = pickle.loads(first)
    source, course = Source.of(told.pop("source")), told.pop("course")
    recipe = Recipe(source, **told, course=None if course is None else Course(**course))
    determinism.prepare_thread(recipe.threads, arithmetic=recipe.arithmetic)
    calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()

    def read() -> None:
        while (payload := worker.receive()) is not None:
            calls.put(_Call(*pickle.loads(payload)))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    made: list[_Caller] = []

    def caller() -> _Caller:
        if not made:
            made.append(_Caller(recipe))
        return made[0]

    while True:
        worker.send(pickle.dumps(_answered(caller, calls.get())))


def main() -> None:
    listings.by_name()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        _serve(parent())


if __name__ == "__main__":
    main()
