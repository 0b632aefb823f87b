"""A worker's state for checkpoints and state transfers: taken without a copy, put back to the bit.

    model/<name>                       parameters, frozen ones too; buffers, also those that state_dict leaves out; tied once
    optimizer/state/<parameter>/<key>  the optimizer's tensors; its groups and other values stand in State.values
    run_state/...                      tensors of the run state, if it has any
    transforms/<name>                  the state of the transforms after the sum, if they have any
    shard/<shard>/<name>               what a shard keeps from step to step: its host alone has it

torch's own `Optimizer.load_state_dict` is not used: it casts state to the dtype of the parameter, so float64 state comes back
rounded, and it hands tensors over without a copy. Here a state has to fit exactly, or nothing is changed.

Not kept are gradients, hooks, a module's get_extra_state, and attributes of an optimizer outside state and groups (none of
`optim.optimizers.OPTIMIZERS` has one that matters to its bits).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from orchestrator.checkpoint.state import TrainingState, pack, unpack
from orchestrator.common import card_faults, gpu_memory
from orchestrator.errors import Inconsistent, is_out_of_memory
from orchestrator.numerics.byte_layout import same_bits
from orchestrator.optim import optimizer_state
from orchestrator.optim.transforms import State
from orchestrator.pipeline import naming

RunState = dict[str, Any]

_MODEL = "model/"
_SHARD = "shard/"


@contextlib.contextmanager
def put_back(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards its parameters and buffers have the bits of before. For trials with a copy: a function that the copy holds,
    as `model.forward = lambda x: usual(x) / 2`, is no copy, and writes the model itself."""
    found = (each.detach() for each in (*model.parameters(), *model.buffers()))
    tensors = [each for each in found if each.layout == torch.strided and not each.is_meta]  # others are refused
    before = [each.clone() for each in tensors]
    try:
        yield
    finally:
        for each, value in zip(tensors, before, strict=True):
            if not same_bits(each, value):
                each.copy_(value)


def capture(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    run_state: RunState,
    transforms: State = MappingProxyType({}),
    rows: Mapping[int, State] = MappingProxyType({}),
) -> TrainingState:
    """The state as views of what is in use: read it before the next step changes it. Its parameters and the tensors of
    optimizer, transforms and rows are steady; buffers change while a step is computed.

    transforms: state of those after the sum; rows: by shard, what the shards keep that this worker hosts.

    Raises RunFailed for what a checkpoint cannot hold, naming its place.
    """
    with naming("reading the state of the model and the optimizer"):
        tensors = {_MODEL + name: parameter.detach() for name, parameter in model.named_parameters()}
        tree = _optimizer_tree(model, optimizer)
    values = {"optimizer": pack(tree, tensors, "optimizer")}
    if transforms:
        values["transforms"] = pack(dict(transforms), tensors, "transforms")
    own = named_rows(rows)
    tensors.update(own)
    steady = frozenset(tensors)
    tensors.update((_MODEL + name, buffer.detach()) for name, buffer in model.named_buffers())
    values["run_state"] = pack(run_state, tensors, "run_state")
    return TrainingState(values, tensors, steady, frozenset(own))


def of_the_run(run_state: RunState) -> TrainingState:
    """The run state alone."""
    tensors: dict[str, torch.Tensor] = {}
    return TrainingState({"run_state": pack(run_state, tensors, "run_state")}, tensors)


def restore(state: TrainingState, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> RunState:
    """Put a captured state into a model and an optimizer built the same way; returns the run state.

    The model's tensors are written in place, the optimizer gets tensors of its own. Raises Inconsistent, naming what
    does not fit; model and optimizer are unchanged then.
    """
    targets = {_MODEL + name: tensor for name, tensor in _model_tensors(model)}
    _check_model(targets, {name: t for name, t in state.tensors.items() if name.startswith(_MODEL)})
    device = next((tensor.device for tensor in targets.values()), None)
    tree, run_state = _unpacked(state, "optimizer", device), _unpacked(state, "run_state")
    _check_optimizer(tree, _optimizer_tree(model, optimizer), optimizer)
    with torch.no_grad():
        for name, target in targets.items():
            write(target, state.tensors[name])
    _put_back(tree, model, optimizer)
    return dict(run_state)


def run_state_of(state: TrainingState) -> RunState:
    """The run state beside the tensors. Raises Inconsistent."""
    return dict(_unpacked(state, "run_state"))


def transforms_of(state: TrainingState) -> dict[str, torch.Tensor]:
    """The state of the transforms after the sum, with memory of its own. Raises Inconsistent."""
    return dict(_unpacked(state, "transforms")) if "transforms" in state.values else {}


def named_rows(rows: Mapping[int, State]) -> dict[str, torch.Tensor]:
    """The tensors of these shards as a state names them."""
    return {f"{_SHARD}{shard}/{name}": tensor for shard, row in rows.items() for name, tensor in row.items()}


def rows_of(tensors: Mapping[str, torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
    """By shard, what `named_rows` put among these tensors."""
    rows: dict[int, dict[str, torch.Tensor]] = {}
    for whole, tensor in tensors.items():
        if whole.startswith(_SHARD):
            shard, _, name = whole.removeprefix(_SHARD).partition("/")
            rows.setdefault(int(shard), {})[name] = tensor
    return rows


def shard_of(name: str) -> int | None:
    """The shard that keeps a tensor of this name; None if no shard does."""
    return int(name.removeprefix(_SHARD).partition("/")[0]) if name.startswith(_SHARD) else None


def _model_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def write(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the source into the target, which may be an expanded buffer: of a dimension with stride 0 there is one
    element, and torch refuses to write it several times."""
    for dimension, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dimension] > 1:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)


def _names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _optimizer_tree(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All values of an optimizer, with parameters by their names."""
    names = _names(model)
    return {
        "name": type(optimizer).__name__,
        "groups": [
            {**as_saved(group), "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups
        ],
        "state": {names[parameter]: dict(entry) for parameter, entry in optimizer.state.items()},
    }


def _put_back(tree: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Groups get the saved order of their parameters too, which saved options may follow (`param_names`)."""
    parameters = dict(model.named_parameters())
    for group, saved in zip(optimizer.param_groups, tree["groups"], strict=True):
        own, params = as_own(saved, group), group["params"]
        params[:] = [parameters[name] for name in saved["params"]]
        group.clear()
        group.update({**own, "params": params})
    entries: dict[torch.Tensor, Any] = {parameters[name]: entry for name, entry in tree["state"].items()}
    optimizer.state.clear()
    optimizer.state.update(placed(entries, optimizer))


def as_saved(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group, functions and types by their names."""
    return {
        name: getattr(value, "__qualname__", str(value)) if optimizer_state.is_constant(value) else value
        for name, value in group.items()
    }


def as_own(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The saved options of a group. Taken from the present group are `fused`, since it follows from the device, and functions
    and types."""
    return {
        **saved,
        **{name: value for name, value in own.items() if name == "fused" or optimizer_state.is_constant(value)},
    }


def placed(
    entries: Mapping[torch.Tensor, Mapping[str, Any]], optimizer: torch.optim.Optimizer
) -> dict[torch.Tensor, dict[str, Any]]:
    """By parameter, what an optimizer keeps of it, on the devices where its step looks for that."""
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    tensors = [each for entry in entries.values() for each in entry.values() if isinstance(each, torch.Tensor)]
    moves = all(tensor.is_cpu for tensor in tensors)  # else each is where it was, on the device or not
    return {
        parameter: {key: _beside(parameter, groups[parameter], key, value, moves=moves) for key, value in entry.items()}
        for parameter, entry in entries.items()
    }


def _beside(parameter: torch.Tensor, group: dict[str, Any], key: str, value: Any, *, moves: bool) -> Any:
    """A value that an optimizer keeps of a parameter, on the device where its step looks for it. moves: whether what is of
    elements may have come from a run on a processor."""
    if not isinstance(value, torch.Tensor):
        return value
    if key == "step" and "fused" in group:
        in_kernel = group["fused"] or group.get("capturable")
        return value.to(parameter.device if in_kernel else "cpu")
    return value.to(parameter.device) if moves and value.shape == parameter.shape else value


def _unpacked(state: TrainingState, key: str, device: torch.device | None = None) -> Any:
    """device: that computes here, None: where the state is from."""
    try:
        return unpack(state.values[key], state.tensors, device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error) or gpu_memory.ran_out(error) or card_faults.of(error) is not None:
            raise  # the state may be whole
        raise Inconsistent(
            f"the state has no whole {key}: {type(error).__name__}: {error}", code="checkpoint.state-not-whole"
        ) from error


def _check_model(targets: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
    for name in sorted(targets.keys() ^ saved.keys()):
        holder, other = ("state", "model") if name in saved else ("model", "state")
        raise Inconsistent(
            f"the {holder} has a tensor {name.removeprefix(_MODEL)!r} that the {other} does not have",
            code="checkpoint.state-tensors",
        )
    for name, target in targets.items():
        theirs, ours = _kind(saved[name]), _kind(target)
        if theirs != ours:
            raise Inconsistent(
                f"the tensor {name.removeprefix(_MODEL)!r} is {theirs} in the state and {ours} in the model",
                code="checkpoint.state-tensor-form",
            )


def _check_optimizer(saved: Any, present: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """The same class over the same parameters in the same groups with the same options; and state for known parameters only.
    Options that a step may have added, here or there, need not be in both. The order within a group may be another one: that
    of a group made of a `set` of parameters follows from where they lie in memory."""
    if saved["name"] != present["name"]:
        raise Inconsistent(
            f"the state is of the optimizer {saved['name']}, not of {present['name']}",
            code="checkpoint.state-optimizer",
        )
    if len(saved["groups"]) != len(present["groups"]):
        raise Inconsistent(
            f"the state has {len(saved['groups'])} parameter groups, the optimizer {len(present['groups'])}",
            code="checkpoint.state-groups",
        )
    for i, (theirs, ours) in enumerate(zip(saved["groups"], present["groups"], strict=True)):
        if sorted(theirs["params"]) != sorted(ours["params"]):
            raise Inconsistent(
                f"group {i} of the optimizer holds other parameters: {theirs['params']} in the state, {ours['params']} here",
                code="checkpoint.state-group-parameters",
            )
        options = theirs.keys() ^ ours.keys()
        if optimizer_state.adds_options(optimizer):
            options = (ours.keys() - theirs.keys()) & optimizer.defaults.keys()
        if options:
            raise Inconsistent(
                f"group {i} of the optimizer has other options in the state: {', '.join(sorted(options))}",
                code="checkpoint.state-group-options",
            )
    known = {name for group in present["groups"] for name in group["params"]}
    if strangers := saved["state"].keys() - known:
        raise Inconsistent(
            f"the state has optimizer state for {min(strangers)!r}, which the optimizer does not update",
            code="checkpoint.state-stranger",
        )


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
