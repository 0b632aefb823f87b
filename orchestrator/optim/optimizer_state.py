"""The memory of an optimizer: what it keeps from step to step, and may change in one.

A checkpoint, and a worker that joins, get `state` and `param_groups`. An optimizer that keeps or changes anything elsewhere
ends the run, with the name of that place.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy
import torch

from orchestrator.errors import PipelineRaised
from orchestrator.optim import aside
from orchestrator.optim.by_element import HOOKS_OF_ALL
from orchestrator.optim.optimizers import CLASSES, OPTIMIZERS, is_of_torch
from orchestrator.pipeline import naming

# Attributes that torch's own classes have only with some options, or with a schedule of torch.
_AT_TIMES = {"step", "_opt_called", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"}
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "step")
_PLAIN = (types.NoneType, bool, int, float, str, numpy.generic)  # values in a state that are nothing but themselves


def said(key: Any) -> str:
    return f"a tensor of shape {tuple(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)


def options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Each group without its parameters; comparable, tensors by their versions, and containers as they are now."""
    return [
        {key: value if type(value) in _PLAIN else _as_it_is(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _as_it_is(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, (list, tuple)):
        return type(value), *map(_as_it_is, value)
    return {key: _as_it_is(item) for key, item in value.items()} if isinstance(value, dict) else value


def is_constant(option: Any) -> bool:
    """Whether an option of a group is a function or a type: `optimizer()` gives it, at each worker the same, and no step may
    exchange it."""
    return isinstance(option, (types.FunctionType, types.BuiltinFunctionType, type, torch.dtype))


def differing(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str | None:
    """The first name of an option that is not the same in both; a name of groups, where there are more in one."""
    if len(before) != len(after):
        return "params"
    groups = zip(before, after, strict=True)
    names = {
        name
        for old, new in groups
        for name in old | new
        if name not in old or name not in new or old[name] != new[name]
    }
    return min(names, default=None)


def adds_options(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its first step may add options to its groups, as those of many packages do ("step"). torch's own add none: there
    another name is one of another version."""
    return type(optimizer) not in OPTIMIZERS.values()


def strange_option(
    optimizer: torch.optim.Optimizer, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
) -> str | None:
    """The first name of an option that a step has removed, or added where it may not, or that is another function or type; a
    name of groups, where it did so with one."""
    old, new = (
        [{name: value if is_constant(value) else None for name, value in group.items()} for group in groups]
        for groups in (before, after)
    )
    if adds_options(optimizer) and len(old) == len(new):
        new = [
            {name: value for name, value in group.items() if name in mine or value is not None}
            for group, mine in zip(new, old, strict=True)
        ]
    return differing(old, new)


def check_unchanged(optimizer: torch.optim.Optimizer, before: Sequence[dict[str, Any]]) -> None:
    """Raises PipelineRaised where its options are not those of before."""
    with naming("comparing the param_groups of the optimizer"):  # their values are of any class
        name = differing(before, options(optimizer))
    if name is not None:
        raise PipelineRaised(
            f"{name!r} in the optimizer's param_groups was changed while a batch was computed",
            "let `schedule` change learning rates, and the optimizer's own step() what else has to change",
            code="optimizer.groups-in-batch",
        )


def has_others(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it holds other optimizers."""
    held = vars(optimizer).values()
    parts = (part for each in held if isinstance(each, (list, tuple)) for part in each)
    return any(isinstance(each, torch.optim.Optimizer) for each in (*held, *parts))


def kept_aside(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, bytes]:
    """The state that a class other than torch's, or a hook, keeps where no checkpoint finds it. A key says in words where that
    is, and its bytes change when the state does. The model is left out, which is saved as a whole."""
    if is_of_torch(optimizer):
        return {}
    is_torchs = type(optimizer) in OPTIMIZERS.values()
    base: Any = next((kind for kind in CLASSES if isinstance(optimizer, kind)), None)
    groups = optimizer.param_groups
    parameters = list(model.parameters())
    known = {id(each) for each in (optimizer, optimizer.state, groups, *groups)}
    known.update(id(each) for each in (*model.modules(), *parameters, *model.buffers()))
    kept: dict[str, Any] = {
        "hooks": [*(vars(optimizer).get(name) for name in _HOOKS), *HOOKS_OF_ALL],
        "defaults": optimizer.defaults,
        "parameters' attributes": [vars(each) for each in parameters if vars(each)],
    }
    if not is_torchs:
        torchs = _attributes_of(base)
        kept.update((f"attribute {key!r}", value) for key, value in vars(optimizer).items() if key not in torchs)
        functions = [each for kind in _users_kinds(type(optimizer)) for each in aside.functions_of(kind)]
        for kind in _users_kinds(type(optimizer)):
            own = {key: value for key, value in vars(kind).items() if not key.startswith("__")}
            kept.update((f"class's attribute {key!r}", own[key]) for key in own if _is_variable(own[key]))
        for function in functions:
            named = aside.variables(function).items()
            kept.update((f"variable {key!r} of the module {function.__module__}", value) for key, value in named)
            kept.update((f"variable {key!r}", value) for key, value in aside.closure(function).items())
        for owner in aside.pipelines([*vars(optimizer).values(), *itertools.chain(*map(aside.cells, functions))]):
            held = [aside.texts(owner), *(aside.named(owner, function) for function in functions)]
            kept.update((f"pipeline's attribute {key!r}", each[key]) for each in held for key in each)
    strange = [key for key in optimizer.state if id(key) not in known]
    found = {name: told for name, value in kept.items() if (told := aside.bytes_of(value, known)) is not None}
    return found | {f"state of {said(key)}": b"" for key in strange}


def _users_kinds(kind: type) -> list[type]:
    """The class and those of its bases that are none of torch's or of the table."""
    return [each for each in kind.__mro__ if each not in OPTIMIZERS.values() and not comes_with_torch(each)]


def comes_with_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("torch", "typing")


def _is_variable(value: Any) -> bool:
    return not (callable(value) or isinstance(value, (bool, property, staticmethod, classmethod)))


def model_marks(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, object]:
    """Marks of buffers, of which parameters are frozen, and of attributes of layers, by what it means that a mark differs after
    a step: no other worker would hear of it. Nothing for torch's classes, which change none of them."""
    if is_of_torch(optimizer):
        return {}
    buffers: dict[str, object] = {
        f"changed the buffer {name!r}": buffer._version for name, buffer in model.named_buffers()
    }
    frozen: dict[str, object] = {
        f"froze or thawed the parameter {name!r}": parameter.requires_grad
        for name, parameter in model.named_parameters()
    }
    attributes: dict[str, object] = {
        f"changed the attribute {f'{place}.{name}'.lstrip('.')!r}": text
        for place, layer in model.named_modules()
        for name, text in aside.texts(layer).items()
    }
    return buffers | frozen | attributes


def marks_of_all_else(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, object]:
    """The same for tensors, objects and containers that layers hold in attributes of any name: a walk that takes longer."""
    if is_of_torch(optimizer):
        return {}
    tensors = [*model.parameters(), *model.buffers()]
    known = {id(each) for each in (optimizer, *model.modules(), *tensors)}
    memory = {each.untyped_storage().data_ptr() for each in tensors}  # a view follows its parameter
    seen = set(known)  # layers may share one
    marks: dict[str, object] = {}
    for place, layer in model.named_modules():
        for name, value in aside.others(layer).items():
            if id(value) not in seen:
                seen.add(id(value))
                told = aside.bytes_of(value, known, memory)
                marks[f"changed what is in the attribute {f'{place}.{name}'.lstrip('.')!r}"] = told
    return marks


def keep_own(optimizer: torch.optim.Optimizer, *shared: torch.Tensor) -> None:
    """Give what the optimizer keeps of `shared`, which a later step overwrites, memory of its own: with gradients that are new
    in each step, a state may hold the last one itself. Those of the table hold none. Raises PipelineRaised for a state of which
    nobody knows what it holds."""
    if type(optimizer) in OPTIMIZERS.values():
        return
    places = _places(shared)
    for state in optimizer.state.values():
        _own(state, places)
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key != "params" and any(_is_at(each, places) for _, each in _tensors_in(key, value)):
                group[key] = _own(value, places)


def refuse_shared(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Raises PipelineRaised where the optimizer keeps a parameter itself, or one tensor that it changes in two places: a
    checkpoint, and a worker that joins, would have copies. Those of the table do neither."""
    if type(optimizer) in OPTIMIZERS.values():
        return
    parameters = _places(model.parameters())
    seen: set[tuple[int, torch.Size]] = set()
    for name, tensor in _kept_tensors(optimizer):
        if not tensor.numel() or tensor.layout != torch.strided:
            continue
        place = tensor.data_ptr(), tensor.shape
        if _is_at(tensor, parameters):
            raise PipelineRaised(
                f"the optimizer keeps a parameter of the model itself as {name!r} in its state or param_groups: a checkpoint, "
                "and a worker that joins, would have a copy, which no longer moves with it",
                "keep a clone() of it, or read it where it is: in group['params'], or in an attribute of the optimizer",
                code="optimizer.keeps-parameter",
            )
        if place in seen and tensor._version:
            raise PipelineRaised(
                f"the optimizer keeps one tensor, {name!r}, in two places of its state or param_groups, and changes it: a "
                "checkpoint, and a worker that joins, would have two",
                "keep it in one place, or a clone() of it in each",
                code="optimizer.shared-state",
            )
        seen.add(place)


def _kept_tensors(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    for entry in optimizer.state.values():
        yield from _tensors_in("", entry)
    for group in optimizer.param_groups:
        yield from _tensors_in("", {key: value for key, value in group.items() if key not in ("params", "lr")})


def _tensors_in(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors_in(name or str(key), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(name, item)


def apart(state: Mapping[str, torch.Tensor], shared: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state with copies of what it holds of `shared`, which a later micro-batch overwrites."""
    own: dict[str, torch.Tensor] = _own(dict(state), _places(shared))
    return own


def _places(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in tensors if each.layout == torch.strided}


def _own(value: Any, places: Set[int]) -> Any:
    """The same, changed in place, with copies of what lies there."""
    if isinstance(value, torch.Tensor):
        return value.clone() if _is_at(value, places) else value
    if isinstance(value, (dict, list)):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            own = _own(item, places)
            if own is not item:
                value[key] = own
    elif type(value) is tuple:
        items = tuple(_own(item, places) for item in value)
        return items if any(own is not item for own, item in zip(items, value, strict=True)) else value
    elif not isinstance(value, _PLAIN):
        kind = type(value)
        raise PipelineRaised(
            f"the optimizer keeps a {kind.__module__}.{kind.__qualname__} in its state: no checkpoint can hold that, and a "
            "gradient in it would be overwritten by the next step",
            "keep tensors, numbers, text, and lists, tuples and dicts of these in optimizer.state[parameter]; in place of a "
            "set dict.fromkeys(...)",
            code="optimizer.state-value",
        )
    return value


def _is_at(tensor: torch.Tensor, places: Set[int]) -> bool:
    return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in places


@functools.cache
def _attributes_of(kind: Any) -> frozenset[str]:
    """The attributes of a class of torch; None stands for the base of all. It is called twice in each step."""
    parameters = [torch.zeros(1)]
    plain = torch.optim.Optimizer(parameters, {}) if kind is None else kind(parameters)
    return frozenset(vars(plain).keys() | _AT_TIMES)
