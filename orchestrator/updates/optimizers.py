"""The optimizers of torch.optim on offer, checked against the settings before a run starts.

Left out by name: LBFGS calls the model again within a step, SparseAdam wants sparse gradients, and both would need an
exchange of their own.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

from orchestrator.errors import PipelineRaised

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): getattr(torch.optim, name)
    for name in (
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    )
}  # fmt: skip
# Attributes that torch's own classes have only with some options, or with a schedule of torch.
_AT_TIMES = {"step", "_opt_called", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"}
_NOT_OPTIONS = ("params", "differentiable", "capturable")


def problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """What is wrong with the `optimizer` section, a sentence each. torch's own checks count: they come before the one that
    misses the parameters, and nothing expensive is imported up to there."""
    if name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return [f"optimizer.name: {name!r} is not on offer{hint} (there are {', '.join(OPTIMIZERS)})"]
    known = options_of(name)
    unknown = [key for key in options if key not in known]
    if unknown:
        return [f"optimizer.{key}: {name} has no such option (it has {', '.join(known)})" for key in unknown]
    if options.get("nesterov") and options.get("foreach"):
        return [
            "optimizer.foreach: with nesterov it overwrites gradients that other workers still read; leave foreach out"
        ]
    if options.get("fused") and options.get("foreach"):
        return [f"optimizer: {name} is either fused or foreach, not both"]
    try:
        OPTIMIZERS[name]([], **_arguments(options))
    except (TypeError, ValueError, RuntimeError) as error:
        if "empty parameter list" in str(error):
            return []
        return [f"optimizer: {name} refuses {dict(options)}: {error}"]
    raise AssertionError(f"{name} took an empty list of parameters")


def options_of(name: str) -> list[str]:
    """The option names of an optimizer on offer."""
    return [key for key in inspect.signature(OPTIMIZERS[name]).parameters if key not in _NOT_OPTIONS]


def build(name: str, options: Mapping[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the model's trainable parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return OPTIMIZERS[name](parameters, **_arguments(options))


def check(optimizer: object, model: torch.nn.Module) -> None:
    """Raises PipelineRaised for what a pipeline's own `optimizer(model)` may not return."""
    offered = tuple(OPTIMIZERS.values())
    if not isinstance(optimizer, offered):
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__}",
            f"return one of torch.optim's: {', '.join(OPTIMIZERS)}",
        )
    known = {id(parameter) for parameter in model.parameters()}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if strangers:
        raise PipelineRaised(
            f"optimizer() updates a tensor of shape {tuple(strangers[0].shape)} that is no parameter of the model",
            "make it a parameter of what model() returns: only those are summed over the shards",
        )


def kept_aside(optimizer: torch.optim.Optimizer) -> dict[str, bytes]:
    """What a class of the user's keeps in attributes of its own, where no checkpoint finds it: name -> bytes that change when
    it does. Nothing for the classes of torch. Left out is what cannot be pickled."""
    if type(optimizer) in OPTIMIZERS.values():
        return {}
    base: Any = next(kind for kind in OPTIMIZERS.values() if isinstance(optimizer, kind))
    torchs = _attributes_of(base)
    own = {name: value for name, value in vars(optimizer).items() if name not in torchs}
    return {name: found for name, value in own.items() if (found := _bytes_of(value, optimizer)) is not None}


@functools.cache
def _attributes_of(kind: Any) -> frozenset[str]:
    """Of a class of torch; asked twice in each step."""
    return frozenset(vars(kind([torch.zeros(1)])).keys() | _AT_TIMES)


class _Changes(pickle.Pickler):
    """Tensors by their versions, and without what `optimizer` keeps where it belongs."""

    def __init__(self, stream: io.BytesIO, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        groups = optimizer.param_groups
        self._known = {id(each) for each in (optimizer, optimizer.state, groups, *groups)}
        self._known.update(id(parameter) for group in groups for parameter in group["params"])

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self._known or isinstance(value, torch.nn.Module):
            return id(value)
        return (id(value), value._version) if isinstance(value, torch.Tensor) else None


def _bytes_of(value: Any, optimizer: torch.optim.Optimizer) -> bytes | None:
    stream = io.BytesIO()
    try:
        _Changes(stream, optimizer).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return stream.getvalue()


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has lists where torch wants tuples (betas)."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
