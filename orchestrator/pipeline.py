"""The class that a user writes: it makes the model and the datasets, and computes the loss.

    from orchestrator import Pipeline

    class Digits(Pipeline):
        def __init__(self, hidden: int = 64): ...       # pipeline.args of the configuration
        def model(self): ...                            # -> torch.nn.Module
        def datasets(self): ...                         # -> (train, validation or None), map-style torch Datasets
        def loss(self, model, batch): ...               # -> scalar tensor, mean over the batch (or: mean, weight)

A pipeline keeps no state between batches: a micro-batch may be computed by any worker, at any time, more than once, and has
to give the same bits each time. Randomness comes from torch, numpy or `random`; all three are seeded for every micro-batch.
"""

from __future__ import annotations

import difflib
import inspect
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from orchestrator.common import card_faults, gpu_memory, import_string, nondeterministic
from orchestrator.common.frames import is_users
from orchestrator.common.processes import disregarded
from orchestrator.errors import (
    NO_MEMORY,
    CardFailed,
    ConfigurationError,
    OrchestratorError,
    PipelineRaised,
    StopsWaiting,
)

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

_ON_TWO_DEVICES = (
    "make tensors where the batch is, as torch.arange(n, device=x.device) does; have the model's constants be buffers, which "
    "are moved to run.device; give a batch of a class of your own a method to(device)"
)
_COLLATE = (
    "samples of several lengths, or of types of their own, are made a batch by the pipeline's collate(self, items)"
)
ONE_ROW = "Expected more than 1 value per channel"  # of batch normalisation, in training
_ASIDE = "the full traceback is in the run's folder, in error.txt"
_MOST_FRAMES = 12
_MOSAICML = (
    "each worker is a process that MosaicML's StreamingDataset takes for the only one of its machine: read the same files by "
    "orchestrator.Files (python -m orchestrator index=FOLDER), or have one worker on a machine"
)
_NO_PROCESS_GROUP = (
    "leave torch.distributed out: gradients of all shards are summed here, and means over the validation set are those of "
    "metrics()"
)
_NO_GRAPH = "does not require grad and does not have a grad_fn"
_NO_HOOK = "cannot register a hook on a tensor that doesn't require gradient"
_ADVICE = {
    "stack expects each tensor to be equal size": _COLLATE,
    "each element in list of batch should be of equal size": _COLLATE,
    "default_collate: batch must contain": _COLLATE,
    "tensors to be on the same device": _ON_TWO_DEVICES,
    "or on the same device as the indexed tensor": _ON_TWO_DEVICES,
    "tensors are not at the same device": _ON_TWO_DEVICES,  # recurrent layers
    "and weight type (torch.cuda.": _ON_TWO_DEVICES,  # convolutions
    ONE_ROW: "batch normalisation needs two rows: where an epoch's last batch leaves a "
    "shard one, choose another data.batch_size or fewer data.shards, or have the data set leave the surplus out",
    NO_MEMORY: "a worker has not the memory for this: cut the model into stages (cluster.stages=2), "
    "raise data.shards or lower data.batch_size, or let fewer workers share a machine",
    _NO_GRAPH: "the loss has to follow from a parameter that is trained: look for "
    "detach(), item(), no_grad() and requires_grad_(False) on the way to it",
    "data pointer of Tensor that doesn't have storage": "with cluster.stages parts of the model are computed on shapes alone, "
    "which have no addresses and no forward-mode derivatives (torch.func.jvp): set cluster.stages=1",
    "backward through the graph a second time": "loss() returns the loss, and backward() is called here: leave it out; what is "
    "kept from an earlier batch has to be detached",
    "process group has not been initialized": _NO_PROCESS_GROUP,
    "Error initializing torch.distributed": _NO_PROCESS_GROUP,  # fully_shard()
    "signal only works in main thread": "samples are read beside the main thread of a process, and Python handles signals in "
    "that one: give a download a timeout of its own (timeout= of requests and urllib, socket.setdefaulttimeout)",
    "_locals'": _MOSAICML,
    "Reused local directory": _MOSAICML,
    "device-side assert": "a GPU does not say more: look for an index or a label out of range, or run once with run.device=cpu",
}


_LABELS = ("label", "labels")  # of a batch that is a mapping, as data sets and collators of Hugging Face name them

_NAMED_OTHERWISE = {  # hooks of other frameworks and another spelling, and the method that is called here
    "collate_fn": "collate",
    "compute_loss": "loss",
    "training_step": "loss",
    "optimiser": "optimizer",
    "configure_optimizers": "optimizer",
    "create_optimizer": "optimizer",
    "create_optimizer_and_scheduler": "optimizer",
    "get_decay_parameter_names": "optimizer",
    "create_scheduler": "rate",
    "get_train_dataloader": "datasets",
    "get_eval_dataloader": "datasets",
    "prediction_step": "metrics",
    "compute_metrics": "metrics",
    "metric": "metrics",
    "validation_step": "metrics",
    "on_validation_end": "on_evaluation",
    "on_validation_epoch_end": "on_evaluation",
    "predict_step": "predict",
}

_NEAR = 0.9  # as near as on_evalution is to on_evaluation

_OWN = "orchestrator."  # the module of a pipeline for the models of another framework, which has all methods itself

# In a name that `metrics` of an adapter returns, before how the numbers of the batches are put together: sum, min or max. A
# name without it is that of a mean.
REDUCED = "\x1f"


class Pipeline:
    """The base of every pipeline. `model`, `datasets` and `loss` have to be written; the rest has defaults."""

    def model(self) -> torch.nn.Module:
        """A new model. Its initial values are drawn under the run's seed; parameters are float32. It is put into training
        mode; a layer that is to stay in evaluation mode overrides its `train`, or is set so by `loss`."""
        raise NotImplementedError

    def datasets(self) -> tuple[Dataset[Any], Dataset[Any] | None]:
        """The training set, and the validation set or None; both have a length and are read by index. The training set may be
        an `orchestrator.Stream`."""
        raise NotImplementedError

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        """A scalar tensor: the mean over the batch. If the number of rows is the wrong weight (masked tokens): (mean,
        weight).

        Written with one more parameter, `step`, it is told how many updates the model has had (annealing, curricula)."""
        raise NotImplementedError

    def metrics(self, model: torch.nn.Module, batch: Any) -> Mapping[str, torch.Tensor]:  # noqa: ARG002
        """Further means over a validation batch, by name. They are put together here: nothing is kept between batches. The
        first batches are evaluated before the first step too."""
        return {}

    def predict(self, model: torch.nn.Module, inputs: Any) -> Any:
        """The trained model's answer when MLflow serves it: a tensor, or containers of tensors. The model is in evaluation
        mode. inputs: a tensor, or a mapping of tensors, which is passed as keywords where the model's `forward` takes
        these."""
        return model(**inputs) if isinstance(inputs, Mapping) and _takes(model, inputs) else model(inputs)

    def example(self, batch: Any) -> Any:
        """The part of a batch that `predict` would be given: a mapping without `label` and `labels`, or the first part of a
        tuple. After training it is tried with a dozen samples whether rows can be answered apart (docs/models.md)."""
        if isinstance(batch, Mapping) and any(name in batch for name in _LABELS):
            return {key: part for key, part in batch.items() if key not in _LABELS}
        return batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch

    def collate(self, items: Sequence[Any]) -> Any:
        """A batch from the items of a dataset; by default torch's `default_collate`."""
        from torch.utils.data import default_collate

        return default_collate(list(items))

    def labels(self, train: Dataset[Any], by: str) -> Any:
        """The labels of the training samples, in their order, for `data.partition` and `data.sampling`. Each is one whole
        number, text, true or false; together they are a tensor, a list or an array. None if there are none of the name `by`,
        which is "label" unless the settings give another. By default the `targets` of the data set."""
        return getattr(train, "targets", None) if by == "label" else None

    def weights(self, train: Dataset[Any]) -> Any:  # noqa: ARG002
        """The weights of the training samples, in their order, for `data.sampling: weighted`: one number each, 0 or more, as a
        tensor, a list or an array; None where there are none."""
        return None

    def on_evaluation(
        self,
        step: int,  # noqa: ARG002
        metrics: Mapping[str, float],  # noqa: ARG002
        model: torch.nn.Module,  # noqa: ARG002
    ) -> Mapping[str, float] | None:
        """Called after each evaluation, to look at the model, to draw or to tell somebody. step: the last one done; metrics:
        what the evaluation found; model: a copy, in evaluation mode, on the CPU. Numbers that it returns are recorded as
        callback/NAME. It runs in a process of its own beside the training, of which it can change nothing; what it raises is
        a warning."""
        return None

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:  # noqa: ARG002
        """An optimizer over the model's parameters, instead of the configuration's `optimizer`: one of torch.optim, or of a
        class that steps without a closure and keeps what it remembers in `state` and `param_groups`, not in attributes."""
        return None

    def stages(self, model: torch.nn.Module) -> Sequence[str] | None:  # noqa: ARG002
        """With `cluster.stages`: the names of the modules at whose calls the second stage and the later ones begin, in the
        order of the calls; None: they are chosen, by their computation and their parameters."""
        return None

    def buffers(self) -> Mapping[str, str]:
        """By which rules the shards of a step share buffers that the model moves as it computes: {"codebook": "mean", "queue*":
        "first"}. Keys are names of the model's buffers, or patterns of them, the first that fits. The rule `mean` takes the
        exact mean over the shards, of float32, and `first` what the first shard leaves. By element `largest` takes the largest,
        and `changed` what a shard has changed; `sum` adds up what all have added, of integers. All shards begin a step with the
        same. Batch and spectral normalisation and small integer counters need no rule."""
        return {}

    def save(self, model: torch.nn.Module, to: Path) -> None:
        """Write the trained model in the form of its own framework, for `export=RUN_ID to=PLACE model=true`."""
        raise NotImplementedError

    def rate(self, step: int) -> float:  # noqa: ARG002
        """The factor on the learning rates at a step, counted from 0: a schedule of one's own, instead of the configuration's
        `schedule`. It depends on the step alone."""
        return 1.0


_METHODS = {name for name, value in vars(Pipeline).items() if inspect.isfunction(value)}
_NEEDED = {  # methods of every pipeline, with what they take and return
    "model": "(self): returns the torch.nn.Module",
    "datasets": "(self): returns the training set and the validation set, or None for the latter",
    "loss": "(self, model, batch): returns the mean loss of the batch, a scalar tensor",
}
_ASKED_OF_OBJECTS = {"metrics", "buffers", "collate", "predict", "example"}  # called always, so also an object's own
_ASKED_OF_CLASSES = {"optimizer", "on_evaluation", "save", "rate"}  # called where the class has them


def _takes(model: torch.nn.Module, keywords: Mapping[Any, Any]) -> bool:
    """Whether its `forward` can be called with these and nothing else, and has a parameter of such a name, or can be called in
    no other way."""
    try:
        signature = inspect.signature(model.forward)
        signature.bind(**keywords)
    except (TypeError, ValueError):  # they do not fit, or are no names; a forward that tells nothing of itself
        return False
    if not signature.parameters.keys().isdisjoint(keywords):
        return True
    try:
        signature.bind(keywords)
    except TypeError:
        return True
    return False


def defines(pipeline: type[Pipeline], method: str) -> bool:
    """Whether the class has a method of its own rather than the default."""
    return getattr(pipeline, method) is not getattr(Pipeline, method)


def hidden_method(pipeline: Pipeline) -> str | None:
    """A method in whose place the object has an attribute of its own that cannot be called so, or that nobody calls; or None.
    Other numbers and texts may have the name of a method that the class does not have."""
    for name, value in vars(pipeline).items():
        if name in _ASKED_OF_OBJECTS:
            is_hidden = not callable(value)
        elif name in _ASKED_OF_CLASSES and not defines(type(pipeline), name):
            is_hidden = callable(value)
        else:
            # A wrapped method is a call, and a module in the place of one is none.
            is_a_call = callable(value) and not hasattr(value, "forward")
            is_hidden = name in _METHODS and defines(type(pipeline), name) and not is_a_call
        if is_hidden:
            return name
    return None


def named_otherwise(pipeline: type[Pipeline]) -> dict[str, str]:
    """The methods that nobody calls, named as hooks of another framework or nearly as a method of this one, each with the one
    that is called here and is missing. One whose name the class's own code has may be called by that."""
    own = [each for each in pipeline.__mro__ if each not in Pipeline.__mro__ and not each.__module__.startswith(_OWN)]
    held = {name: value for each in reversed(own) for name, value in vars(each).items()}
    used = {name for value in held.values() if inspect.isfunction(value) for name in _names_in(value.__code__)}
    functions = {
        name: difflib.get_close_matches(name, _METHODS, 1, _NEAR) for name in held if inspect.isfunction(held[name])
    }
    meant = {name: near[0] for name, near in functions.items() if near} | _NAMED_OTHERWISE
    return {
        name: here
        for name, here in meant.items()
        if name in held.keys() - used and not hasattr(Pipeline, name) and here not in held
    }


def idle_clipping(pipeline: type[Pipeline]) -> str | None:
    """The function of torch with which `loss` would clip gradients, as a loop does behind its backward pass; or None."""
    names = set(_names_in(pipeline.loss.__code__)) if inspect.isfunction(pipeline.loss) else set()
    return next((name for name in ("clip_grad_norm_", "clip_grad_value_") if name in names), None)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def has_rate(pipeline: type[Pipeline]) -> bool:
    """Whether it has a schedule of its own; a number that happens to have the name is none."""
    return defines(pipeline, "rate") and callable(pipeline.rate)


def takes_step(pipeline: Pipeline) -> bool:
    """Whether its `loss` is to be told the step."""
    return "step" in inspect.signature(pipeline.loss).parameters


def find(target: str, args: Mapping[str, Any]) -> type[Pipeline]:
    """The class that "package.module:Class" names, checked to be a whole pipeline that takes `args`.

    Raises ConfigurationError: no such module or class, not a pipeline, a method missing, arguments that do not fit.
    """
    found = import_string.find("pipeline.target", target, "class")
    if not (inspect.isclass(found) and issubclass(found, Pipeline)):
        raise ConfigurationError(
            [f"pipeline.target: {target} is not a subclass of orchestrator.Pipeline"],
            _pipeline_for(found),
            code="pipeline.not-a-pipeline",
        )
    missing = [name for name in _NEEDED if not defines(found, name)]
    if missing:
        raise ConfigurationError(
            [f"pipeline.target: {target} does not define {' and '.join(missing)}"],
            "; ".join(f"def {name}{_NEEDED[name]}" for name in missing),
            code="pipeline.lacks-methods",
        )
    try:
        inspect.signature(found).bind(**args)
    except TypeError as error:
        name = target.rpartition(":")[2]
        raise ConfigurationError(
            [f"pipeline.args: {name}{inspect.signature(found)}: {error}"], code="pipeline.args"
        ) from None
    return found


def _pipeline_for(found: object) -> str:
    """The way to a pipeline from what was named in the place of one. No framework is imported for it."""
    kinds = found.__mro__ if inspect.isclass(found) else type(found).__mro__
    bases = {(kind.__module__.partition(".")[0], kind.__name__) for kind in kinds}
    if ("transformers", "Trainer") in bases:
        return (
            "name orchestrator.adapters.transformers:Trainable; what a Trainer overrides is a method of a subclass of that: "
            "compute_loss is its loss(), create_optimizer its optimizer() (docs/coming-from.md)"
        )
    if ("torch", "Module") in bases:
        return "name a class Pipeline whose model() returns it, with datasets() and loss() (docs/own-project.md)"
    return (
        "name a class Pipeline with model(), datasets() and loss(); a loop of one's own is left out (docs/porting.md)"
    )


@contextmanager
def naming(what: str, of_one_row: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Turns an exception of the user's code inside the block into a PipelineRaised that says what was being done; sys.exit()
    and a KeyboardInterrupt of that code too, which would end a worker without a word. A GPU without memory is an
    OutOfDeviceMemory, one that failed a CardFailed with the PipelineRaised in it. of_one_row: what to do where batch
    normalisation got a single row, None for what is said generally."""
    try:
        yield
    except (OrchestratorError, StopsWaiting, CardFailed):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not disregarded:
            raise  # it may be a signal's
        if gpu_memory.ran_out(error):
            raise gpu_memory.out_of_memory(what, error, _frames(error)) from None
        operation = nondeterministic.raised(error)
        if operation is not None:
            raise _refused(what, error, operation) from None
        recurs = ONE_ROW in str(error)  # which rows a micro-batch has is settled
        advice = (of_one_row() if recurs else None) or _advice(what, error)
        raised = PipelineRaised(
            f"{what} raised {type(error).__name__}: {card_faults.words(error)}{_frames(error)}",
            f"{advice};\n  {_ASIDE}" if advice else _ASIDE,
            traceback.format_exc(),
            code="pipeline.raised",
        )
        raised.recurs = recurs
        if card_faults.of(error) is not None:
            raise CardFailed(raised) from error
        raise raised from None


@contextmanager
def outside_of_runs() -> Iterator[None]:
    """Within the block no run records what the user's code raises, so no message names a file that would have it."""
    try:
        yield
    except PipelineRaised as error:
        error.remedy = error.remedy.removesuffix(_ASIDE).removesuffix(";\n  ")
        raise


def _refused(what: str, error: BaseException, operation: nondeterministic.Operation) -> PipelineRaised:
    """The error for an operation whose bits could not be repeated. Its line is among the frames, or, in a backward pass, a
    note."""
    raised = PipelineRaised(
        f"{what} uses an operation whose bits could not be repeated on this device, as it has no deterministic kernel: "
        f"{operation.name}{_frames(error)}{''.join(getattr(error, '__notes__', ()))}",
        f"instead: {operation.instead} (docs/gpu.md has the others);\n  {_ASIDE}",
        traceback.format_exc(),
        code="pipeline.nondeterministic",
    )
    raised.recurs = True
    return raised


def _advice(what: str, error: BaseException) -> str | None:
    """Advice about errors of torch that come from how a run computes rather than from a slip in the code."""
    text = str(error)
    if _NO_GRAPH in text and what.startswith("the optimizer"):
        return (
            "an optimizer that differentiates gradients, as AdaHessian does, finds sums over all workers here, which are "
            "values alone: take another one"
        )
    if what.startswith("evaluation") and (_NO_GRAPH in text or _NO_HOOK in text):
        return (
            "an evaluation computes no gradients: what differentiates or has hooks on tensors, as a gradient penalty or the "
            "inner loop of MAML, is within `with torch.enable_grad():`, in loss() and metrics()"
        )
    return next((advice for sign, advice in _ADVICE.items() if sign in text), None)


def _frames(error: BaseException) -> str:
    lines = users_frames(traceback.extract_tb(error.__traceback__))
    ends = _MOST_FRAMES // 2
    if len(lines) > _MOST_FRAMES:  # it called itself without end
        lines[ends:-ends] = [f"\n    ... {len(lines) - 2 * ends} more calls ..."]
    return "".join(lines)


def users_frames(frames: Iterable[traceback.FrameSummary]) -> list[str]:
    """A line for each that is the user's, innermost last."""
    return [
        f"\n    {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames if is_users(frame)
    ]
