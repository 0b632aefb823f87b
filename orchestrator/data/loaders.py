"""Batches fetched ahead by processes of their own, with the bits they have when fetched in the compute thread (rule B2).

Random generators belong to a process, so a thread that fetches ahead would disturb the computation's; and a process that was
forked from its worker would inherit Ray. So a loader is a process that has seen neither (`start`). It builds the
pipeline and its datasets under the run's seed as the worker does, and seeds each fetch by (step, shard).

Requests and answers are pickles (`common.child`); both ends are processes of one run, and nothing of it is recorded. A loader
has at most one request, whose answer waits in the pipe. It ends at the end of its input, so it outlives its worker by one
fetch at most. A loader that dies is replaced, and the new one gets its request: an answer depends on the request alone, if the
new one has imported the same code, which is looked at.

torch's DataLoader cannot take its place: when one of its processes is killed, it raises in the main thread wherever that
is, goes on without the batches that this process had, and starts no other one. Nor can all its processes be asked for
the same micro-batch, as the proof of loaders does.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orchestrator.adapters import table
from orchestrator.adapters.source import Source
from orchestrator.common import listings
from orchestrator.common.child import Messages, Start, Started, parent
from orchestrator.common.distributions import is_of_python
from orchestrator.common.frames import file_of
from orchestrator.common.processes import disregarded
from orchestrator.data import input_auditing, mixture
from orchestrator.data.fetching import fetch
from orchestrator.data.files import cache, waiting
from orchestrator.data.files.waiting import BytesRead
from orchestrator.data.plan import Declared
from orchestrator.errors import Inconsistent, OrchestratorError, PipelineRaised, RunFailed, few, from_dict
from orchestrator.numerics import determinism, digests, streams
from orchestrator.pipeline import Pipeline, naming
from orchestrator.records.comparison import differing
from orchestrator.records.input_audit import InputAudit, is_below
from orchestrator.records.input_audit import from_dict as from_reads

_PLAIN = "return tensors, numbers, texts and containers of them, or fetch in the workers: data.loaders=0"
_DEATHS = 3  # of loaders in a row that were asked for one micro-batch, before it is to blame
_NAMES_SHOWN = 3


class Key(NamedTuple):
    """Which micro-batch, and the samples it holds."""

    step: int
    shard: int
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """The arguments with which a loader builds the datasets."""

    source: Source  # of the pipeline
    seed: int  # of the run
    threads: int  # of torch
    arithmetic: determinism.Arithmetic = "native"  # of this processor, or with the same bits on all
    data_seed: int | None = None  # of datasets(); None where it is that of the run
    # of files from elsewhere, as `data.files.cache.use` takes it; None where there is none
    cache: tuple[int, str | None, float] | None = None
    inputs: tuple[str, ...] = ()  # files and folders that the settings declare
    variables: tuple[str, ...] = ()  # of the environment, likewise


Lost = Callable[[str], None]  # hears of each loader that died


def _ignore(what: str) -> None:
    pass


def _never(key: Key) -> bool:  # noqa: ARG001
    return False


class Loaders:
    """A few loader processes. Raises what fetching raises: PipelineRaised; RunFailed for a micro-batch that costs loader after
    loader. reads: what was read in them up to their proof."""

    def __init__(self, recipe: Recipe, processes: int, lost: Lost = _ignore, start: Start = Started) -> None:
        self.input_audit = InputAudit()
        self._loaders = [_Loader(recipe, lost, start) for _ in range(processes)]

    def batch(self, key: Key, upcoming: Iterator[Key], is_over: Callable[[Key], bool] = _never) -> Any:
        """The batch of `key`; afterwards every loader that has nothing to do is given one of the `upcoming` keys. is_over:
        whether nobody will ask for a micro-batch any more; its answer is dropped, and its loader gets another key."""
        for each in self._loaders:
            if each.asked is not None and is_over(each.asked) and each.has_answered():
                each.drop()
        loader = next((loader for loader in self._loaders if loader.asked == key), None)
        if loader is None:  # not foreseen: the first of all, or a step that is repeated
            loader = min(self._loaders, key=lambda each: 0 if each.asked is None else 2 - is_over(each.asked))
            if loader.asked is not None:
                loader.drop()
            loader.ask(key)
        payload = loader.answer()
        asked = {each.asked for each in self._loaders}
        wanted = (each for each in upcoming if each not in asked)
        for idle in self._loaders:
            following = next(wanted, None) if idle.asked is None else None
            if following is not None:
                idle.ask(following)
        return _result(payload)

    def has_read(self, key: Key) -> bool:
        """Whether `batch` would give it without waiting for a loader to read it."""
        return any(each.asked == key and each.has_answered() for each in self._loaders)

    def verify(self, key: Key, batch: Any) -> None:
        """Raises Inconsistent where a loader reads anything else for `key` than its worker, which has read `batch`."""
        for loader in self._loaders:
            loader.ask(key)
        answers = [loader.answer() for loader in self._loaders]
        for answer in answers:
            self.input_audit |= from_reads(answer.get("reads", {}))
        found = [_result(answer) for answer in answers]
        for read in found:
            if not _is_same(read, batch):
                raise Inconsistent(
                    "a loader process reads other samples than its worker, from the same indices",
                    "datasets() has to give the same samples in each process: draw them from torch, numpy or random, which are "
                    "seeded for it (numpy.random.default_rng() is not), and read nothing that changes",
                    code="data.loader-differs",
                )

    def forget(self) -> None:
        """Drop what is being fetched: other micro-batches will be wanted."""
        for loader in self._loaders:
            if loader.asked is not None:
                loader.drop()

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        for loader in self._loaders:
            loader.close()


class _Loader:
    """The worker's end of one loader process after the other. asked: the request that is not answered yet."""

    def __init__(self, recipe: Recipe, lost: Lost, start: Start) -> None:
        self._recipe = recipe
        self._lost = lost
        self._start_process = start
        self._code: dict[str, str] = {}  # hashes of the modules that the first one had imported
        self._audit = InputAudit()  # what those so far have read before their first answer
        self.asked: Key | None = None
        self._start()

    def ask(self, key: Key) -> None:
        self.asked = key
        self._write(tuple(key))

    def answer(self) -> dict[str, Any]:
        """To the request; asked again of another process as often as one dies over it."""
        assert self.asked is not None
        key = self.asked
        where = f"step {key.step}, shard {key.shard}"
        for _ in range(_DEATHS):
            answer = self._read()
            if answer is not None:
                self.asked = None
                return answer
            code = self._replace(f"before it had read {where}")
            self.ask(key)
        raise RunFailed(
            f"{where}: {_DEATHS} loader processes in a row ended before they had read its samples, the last with {_code(code)}",
            "look at these samples and for the kernel's out-of-memory killer (dmesg), or fetch in the workers: data.loaders=0",
            code="data.loader-deaths",
        )

    def has_answered(self) -> bool:
        """Whether the answer has begun to come, or never will."""
        return self._process.messages.has_come()

    def drop(self) -> None:
        """The answer is not wanted any more."""
        answer = self._read()
        self.asked = None
        if answer is None:
            self._replace("with a request that is not wanted any more")

    def close(self) -> int | None:
        """Returns the exit code."""
        self._process.kill()
        return self._process.close()

    def _start(self) -> None:
        self._process = self._start_process(__name__)
        self._write(asdict(self._recipe))

    def _replace(self, when: str) -> int | None:
        """Returns the exit code of the one that died."""
        code = self.close()
        self._lost(f"a loader process ended with {_code(code)} {when}; another one takes its place")
        self._start()
        return code

    def _read(self) -> dict[str, Any] | None:
        """The answer; None when the process died first. Raises what `waiting.pass_on` raises; then it is still to come. Raises
        Inconsistent where the process has imported other code than the one in whose place it came."""
        while True:
            answer: dict[str, Any] | None = _read(self._process.messages)
            if answer is None or "told" not in answer:
                waiting.add(BytesRead(*(answer or {}).get("taken", ())))
                self._compare_code((answer or {}).get("code", {}))
                self._compare_reads(from_reads((answer or {}).get("reads", {})))
                return answer
            waiting.pass_on(answer["told"])

    def _compare_code(self, code: dict[str, str]) -> None:
        changed = differing(code, self._code)
        if changed:
            raise Inconsistent(
                f"{few(changed, _NAMES_SHOWN)} changed while the run trained, and a new loader process has imported it",
                "edit files in another clone while a run trains",
                code="data.loader-other-code",
            )
        self._code = {**code, **self._code}

    def _compare_reads(self, audit: InputAudit) -> None:
        before, self._audit = self._audit, self._audit | audit
        changed = sorted({*self._audit.changed} - {*before.changed})
        if changed:
            self._lost(
                f"{few(changed, _NAMES_SHOWN)} changed while the run trained, and a new loader process has read it: its "
                "samples may be others"
            )

    def _write(self, message: object) -> None:
        with contextlib.suppress(OSError):  # it died: whoever reads its answer finds that out
            _write(self._process.messages, message)


def _code(code: int | None) -> str:
    return "an unknown code" if code is None else f"code {code}"


def _result(answer: dict[str, Any]) -> Any:
    if "failed" in answer:
        raise from_dict(answer["failed"])
    return answer["batch"]


class _Printing(pickle.Pickler):
    """Tensors by their values: their own pickles hold addresses. Those of sparse and nested ones are of dense tensors."""

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
            return None
        digest = hashlib.sha256()
        digests.update(digest, "", value)
        return digest.hexdigest()


def fingerprint(batch: Any) -> bytes:
    """A hash of its pickle, tensors by their values."""
    stream = io.BytesIO()
    _Printing(stream, pickle.HIGHEST_PROTOCOL).dump(batch)
    return stream.getvalue()


def _is_same(read: Any, batch: Any) -> bool:
    """Whether a loader has read what its worker has. The worker's own goes through pickle too, which changes how equal things
    lie in memory."""
    return fingerprint(read) == fingerprint(_unpickled(_pickled(batch)))


def is_compared(key: Key, shard: int) -> bool:
    """Whether a worker reads a micro-batch, too: that of one shard in the first step of each doubling, since reading is slow
    where there are loaders. The first step of all has been compared by `verify`."""
    return key.shard == shard and key.step > 0 and key.step & (key.step - 1) == 0


def require_same(where: str, read: Any, batch: Any) -> None:
    """Raises Inconsistent where a loader has read anything else than its worker, which has read `batch`. where: of it."""
    if not _is_same(read, batch):
        raise Inconsistent(
            f"a loader process reads other samples than its worker ({where}); before the first step they were the same",
            "samples follow from what training changes in the worker's process alone, such as the model or an attribute of the "
            "pipeline: take that into loss(), or fetch in the workers: data.loaders=0",
            code="data.loader-stale",
        )


def _serve(worker: Messages) -> None:
    """A loader's life."""
    told = _read(worker)
    recipe = Recipe(Source.of(told.pop("source")), **told)
    determinism.prepare_thread(recipe.threads, arithmetic=recipe.arithmetic)
    if recipe.cache is not None:
        cache.use(*recipe.cache)
    waiting.listen(lambda text: _write(worker, {"told": text}), lambda: _write(worker, {"told": None}))
    with input_auditing.window(Declared(recipe.inputs, recipe.variables)) as window:
        source = _source(recipe)
        request = _read(worker)
        first = {} if request is None else _answer(recipe, source, Key(*request))
    if request is not None:
        worker.send(_payload({**first, "reads": window.audit.as_dict(), "code": _imported_code()}))
    while (request := _read(worker)) is not None:
        worker.send(_payload(_answer(recipe, source, Key(*request))))


def _imported_code() -> dict[str, str]:
    """Hashes of the files of the user's modules, by their names."""
    package = str(Path(__file__).parents[1])
    files = {name: file_of(module) or "" for name, module in list(sys.modules.items())}
    own = {
        name: Path(file) for name, file in files.items() if not is_of_python(file) and not is_below(file, (package,))
    }
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in own.items() if file.is_file()}


def _source(recipe: Recipe) -> tuple[Pipeline, Any] | OrchestratorError:
    """The pipeline with its training data, or why there are none."""
    try:
        with naming("the pipeline's __init__"), streams.seeded(recipe.seed, "pipeline"):
            pipeline = table.find(recipe.source)(**recipe.source.args)
        data_seed = recipe.seed if recipe.data_seed is None else recipe.data_seed
        with naming("datasets()"), streams.seeded(data_seed, "datasets"):
            train, _ = pipeline.datasets()
            train = mixture.whole(train)
    except OrchestratorError as error:
        return error
    return pipeline, train


def _answer(recipe: Recipe, source: tuple[Pipeline, Any] | OrchestratorError, key: Key) -> dict[str, Any]:
    if isinstance(source, OrchestratorError):
        return {"failed": source.as_dict()}
    pipeline, train = source
    try:
        with naming(f"reading samples (step {key.step}, shard {key.shard})"):
            seeded = streams.seeded(recipe.seed, "samples", key.step, key.shard)
            batch = fetch(train, key.indices, pipeline.collate, seeded)
            return {"batch": batch, "taken": tuple(waiting.take_counts())}
    except OrchestratorError as error:
        return {"failed": error.as_dict()}


def _payload(answer: dict[str, Any]) -> bytes:
    try:
        return _pickled(answer)
    except OrchestratorError as error:
        return _pickled({"failed": error.as_dict()})


class _Pickler(pickle.Pickler):
    """Tensors that share memory share it on the other side: the loss may write into one, and would change the other."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._memory: dict[tuple[int, torch.dtype], Any] = {}

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout != torch.strided:
            return NotImplemented
        function, (storage, *others), *state = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        if not isinstance(storage, torch.TypedStorage):
            return NotImplemented
        storage = self._memory.setdefault((value.untyped_storage().data_ptr(), value.dtype), storage)
        return function, (storage, *others), *state


def _pickled(message: object) -> bytes:
    """Raises PipelineRaised: a batch is of the user's making, and its classes say how they are pickled."""
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump(message)
        return stream.getvalue()
    except Exception as error:
        raise PipelineRaised(
            f"a batch of the pipeline cannot be handed to another process: {error}",
            _PLAIN,
            code="data.batch-not-handed",
        ) from None


def _write(messages: Messages, message: object) -> None:
    messages.send(_pickled(message))


def _read(messages: Messages) -> Any:
    """The next message; None where the other side has ended."""
    payload = messages.receive()
    return None if payload is None else _unpickled(payload)


def _unpickled(payload: bytes) -> Any:
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise PipelineRaised(
            f"a batch of the pipeline cannot be taken over from another process: {error}",
            _PLAIN,
            code="data.batch-not-taken",
        ) from None


def upcoming(step: int, shard: int, shards: Sequence[int], rounds: range, indices: Any) -> Iterator[Key]:
    """The micro-batches that a worker hosting `shards` computes after (step, shard), the empty ones left out. rounds: the
    borders between stretches of steps; each shard computes its steps of a stretch one after the other."""
    begin, position = step + 1, shards.index(shard)
    for first in rounds[step // rounds.step : -1]:
        end = first + rounds.step
        for each in shards[position:]:
            for later in range(begin, end):
                found = indices(later, each)
                if found:
                    yield Key(later, each, tuple(found))
            begin = first
        begin, position = end, 0


def main() -> None:
    signal.signal(signal.SIGINT, disregarded)  # the worker, which heeds none either, ends it
    listings.by_name()
    with contextlib.suppress(BrokenPipeError):
        _serve(parent())


if __name__ == "__main__":
    main()
