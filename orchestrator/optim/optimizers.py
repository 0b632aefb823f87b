"""The table of optimizers: those of torch.optim on offer and two for large batches, checked against the settings before a run
starts.

An entry is called with the model's parameters and the options, which are those of its signature. A user's own meets the laws
(`broken`) at launch.

Left out by name: LBFGS calls the model again within a step, SparseAdam wants sparse gradients, and both would need an
exchange of their own. A pipeline may return any other optimizer, of torch or not, as long as it takes a step without a closure
and keeps what it remembers where `Optimizer.state_dict` finds it.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from orchestrator.common.import_string import raised
from orchestrator.common.registry import Table, is_reference, takes
from orchestrator.errors import ConfigurationError, PipelineRaised, coded
from orchestrator.optim import aside
from orchestrator.optim.by_element import HOOKS_OF_ALL, is_watched
from orchestrator.optim.eager import leave_the_compiler_out
from orchestrator.optim.lamb import Lamb
from orchestrator.optim.lars import Lars
from orchestrator.pipeline import naming

_ON_OFFER = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip
OPTIMIZERS: Table[Callable[..., torch.optim.Optimizer]] = Table(
    "optimizer",
    {name.lower(): getattr(torch.optim, name) for name in _ON_OFFER} | {"lars": Lars, "lamb": Lamb},
    hidden=("differentiable", "capturable"),
)
CLASSES = tuple(getattr(torch.optim, name) for name in _ON_OFFER)
# They make their state in their first step, so that whether they are fused may be settled until then.
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_FUSED_ON = ("cuda",)
_MOMENTUM = "momentum_buffer"  # in the state of torch's SGD
# Attributes that torch's own classes have only with some options, or with a schedule of torch.
_AT_TIMES = {"step", "_opt_called", "_step_supports_amp_scaling", "_need_device_dtype_check_for_fused"}
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "step")
_PLAIN = (types.NoneType, bool, int, float, str, numpy.generic)  # values in a state that are nothing but themselves
_TRIED = 64  # a tensor of so many rows and columns, large enough that what counts rows does not
_CLOSURE = "it calls the model again within its step, but workers add up one gradient for a step"
_UNFIT: dict[type[torch.optim.Optimizer], tuple[str, str]] = {
    torch.optim.LBFGS: (_CLOSURE, "nothing does the same; train with another one, such as adamw, or outside"),
    torch.optim.SparseAdam: ("it wants sparse gradients", "give embeddings sparse=False and take adam"),
}
_WITH_CLOSURE = (
    _CLOSURE,
    "have loss() compute what its second pass does, as SAM can be written (docs/porting.md), or train with another one",
)
_SCHEDULERS = (LRScheduler, ReduceLROnPlateau)  # the second does not call the __init__ of the first, its base
_SCALE = "lr_scale"  # of a group, for a scheduler: of timm, and of training scripts such as those of BEiT and MAE
# Schedulers of torch leave these in groups, and those that Lightning returns are tabulated.
_LEFT_BY_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "swa_lr")
_OWN_SCHEDULE = "set `schedule` in the configuration, or write the factor as rate(self, step) in the pipeline"


@functools.cache
def prepare() -> None:
    """Once in a process, before its first optimizer is built: then torch wraps the step of that class for good."""
    leave_the_compiler_out(CLASSES)


def problems(name: str, options: Mapping[str, Any]) -> list[str]:
    """The faults of the `optimizer` section, a sentence each. torch's own checks count: they come before the one that misses
    the parameters, and nothing expensive is imported up to there."""
    prepare()
    for kind, (why, remedy) in _UNFIT.items():
        if kind.__name__.lower() == name:
            return [
                coded(
                    "optimizer.not-on-offer",
                    f"optimizer.name: {name!r} is not on offer: {why}; {remedy} (there are {', '.join(OPTIMIZERS)})",
                )
            ]
    if found := OPTIMIZERS.problems(name, options):
        return found
    if is_reference(name):
        problem = broken(lambda model: build(name, options, model))
        return [] if problem is None else [coded("optimizer.own-unfit", f"optimizer: {name} {problem}")]
    texts = [key for key, value in options.items() if isinstance(value, str)]
    if texts:
        return [
            coded(
                "optimizer.option-is-text",
                f"optimizer.{key}: {_no_text(OPTIMIZERS.options(name)[key].default, options[key])}",
            )
            for key in texts
        ]
    if nans := [key for key, value in options.items() if isinstance(value, float) and math.isnan(value)]:
        return [
            coded("optimizer.option-nan", f"optimizer.{key}: expected a number, got {options[key]}") for key in nans
        ]
    if options.get("nesterov") and options.get("foreach"):
        return [
            coded(
                "optimizer.foreach-nesterov",
                "optimizer.foreach: with nesterov it overwrites gradients that other workers still read; leave foreach out",
            )
        ]
    if options.get("fused") and options.get("foreach"):
        return [coded("optimizer.fused-foreach", f"optimizer: {name} is either fused or foreach, not both")]
    try:
        OPTIMIZERS[name]([], **_arguments(options))
    except (TypeError, ValueError, RuntimeError) as error:
        if "empty parameter list" in str(error):
            return []
        return [coded("optimizer.refuses-options", f"optimizer: {name} refuses {dict(options)}: {error}")]
    raise AssertionError(f"{name} took an empty list of parameters")


def _no_text(default: Any, given: str) -> str:
    """Advice what to give in place of text. default: of the option, which tells its kind; few of torch's have annotations."""
    kinds = {float: "a number", int: "a number", bool: "true or false", types.NoneType: "true, false or null"}
    expected = kinds.get(type(default), "numbers, such as [0.9, 0.999]")
    quoted = given in ("true", "false", "null") or _is_number(given)
    return f"expected {expected}, got the text {given!r}" + "; leave the quotation marks out" * quoted


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def broken(make: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> str | None:
    """The law that an optimizer breaks, as a predicate; None where it keeps to all: it has torch's form, steps without a
    closure, and remembers nothing where no checkpoint finds it."""
    try:
        return _try_out(make)
    except PipelineRaised as error:
        return f"is not fit: {error.message.removeprefix('optimizer() ')} ({error.remedy})"
    except Exception as error:
        return raised(error)


def _try_out(make: Callable[[torch.nn.Module], torch.optim.Optimizer]) -> str | None:
    """A few steps with a small model, in a random stream of their own."""
    with torch.random.fork_rng(devices=[]):
        model = torch.nn.Linear(2, 2)
        return _stepping(make(model), model)


def _stepping(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> str | None:
    check(optimizer, model)
    for step in range(3):
        kept = kept_aside(optimizer, model)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.25 * (step - 1))
        optimizer.step()
        if changed := sorted(key for key, value in kept_aside(optimizer, model).items() if kept.get(key) != value):
            return (
                f"remembers something in its {changed[0]}, where no checkpoint finds it: keep it in state or "
                "param_groups"
            )
    return None


def build(name: str, options: Mapping[str, Any], model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the model's trainable parameters."""
    return build_over(name, options, [parameter for parameter in model.parameters() if parameter.requires_grad])


def build_over(
    name: str, options: Mapping[str, Any], parameters: Sequence[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The same over these parameters."""
    prepare()
    return fused(OPTIMIZERS[name](list(parameters), **_arguments(options)))


def fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same, whose groups of parameters on a GPU step by one kernel, unless somebody has chosen another form. Elements do
    not depend on each other there, so no division of the work changes bits."""
    if type(optimizer) in _FUSED:
        for group in optimizer.param_groups:
            free = all(group.get(option) is None for option in ("fused", "foreach")) and not group["differentiable"]
            # With dampening a first step is another one, which `begin_late` could not make.
            if (
                free
                and not group.get("dampening")
                and all(parameter.device.type in _FUSED_ON for parameter in group["params"])
            ):
                group["fused"] = True
    return optimizer


def begin_late(optimizer: torch.optim.Optimizer) -> None:
    """Before a step: a parameter that has its first gradient later than others gets a momentum of zero, which the step makes
    its gradient, as for a first one. Without that torch's fused SGD fails."""
    if type(optimizer) is torch.optim.SGD:
        for group in optimizer.param_groups:
            if not (group["fused"] and group["momentum"]):
                continue
            moving = [each for each in group["params"] if each.grad is not None]
            late = [each for each in moving if optimizer.state.get(each, {}).get(_MOMENTUM) is None]
            if len(late) < len(moving):
                for each in late:
                    optimizer.state[each][_MOMENTUM] = torch.zeros_like(each)


def may_change_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of a class of torch may write into gradients, as that of SGD by Nesterov does for all at once."""
    return any(group.get("foreach") for group in optimizer.param_groups)


def with_plain_numbers(optimizer: object) -> None:
    """Give the groups of an optimizer numbers of Python for those of numpy, of the same values. Arithmetic on a numpy.float32
    would be done in float32, and so give other bits than the same rate from a schedule."""
    if isinstance(optimizer, torch.optim.Optimizer):
        for group in (*optimizer.param_groups, optimizer.defaults):
            group.update({key: _plain(value) for key, value in group.items() if key != "params"})


def _plain(value: Any) -> Any:
    if isinstance(value, numpy.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Give a group this learning rate. One that is a tensor stays one, written in place as by torch's schedulers: torch
    computes with it in its own precision, so its steps have other bits than with a number."""
    if isinstance(group["lr"], torch.Tensor):
        with torch.no_grad():
            group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def rate_like(own: Any, rate: float) -> Any:
    """This learning rate in the form of a group's own, which stays as it is."""
    return torch.full_like(own, rate) if isinstance(own, torch.Tensor) else rate


def check(optimizer: object, model: torch.nn.Module) -> None:
    """Raises PipelineRaised for what a pipeline's own `optimizer(model)` may not return."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__}",
            "return one torch.optim.Optimizer; networks that are trained at once or in turn are parameter groups of one, and "
            "optimizers of several classes step within one (docs/porting.md shows all)",
            code="optimizer.type",
        )
    if isinstance(optimizer, tuple(_UNFIT)) or not takes(optimizer.step):
        raise unfit(optimizer)
    # An attribute None says that a class takes care of it.
    if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
        within = getattr(optimizer, "optimizer", None)
        if isinstance(within, torch.optim.Optimizer):
            inner = type(within).__name__
            raise PipelineRaised(
                f"optimizer() returned a {type(optimizer).__name__} around a {inner}, as accelerate prepares it for a loop",
                f"return the {inner}, and leave prepare() out: devices, accumulation and precision are settings of a run",
                code="optimizer.prepared",
            )
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__}, whose train() and eval() exchange the weights: nobody would "
            "call eval() before an evaluation, and other weights than the averaged ones would be evaluated and exported",
            "have step() of a subclass write the averaged weights into frozen parameters of the model, and set its train and "
            "eval to None (docs/porting.md, optimizers without a schedule)",
            code="optimizer.two-modes",
        )
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise PipelineRaised(
            "a scheduler has been built over the optimizer that optimizer() returned: its param_groups have 'initial_lr'",
            f"nobody would step it, and its first rate would stay: return the optimizer alone; {_OWN_SCHEDULE}",
            code="optimizer.scheduler-over",
        )
    known = {id(parameter) for parameter in model.parameters()}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if strangers:
        raise PipelineRaised(
            f"optimizer() updates a tensor of shape {tuple(strangers[0].shape)} that is no parameter of the model",
            "make it a parameter of what model() returns: only those are summed over the shards",
            code="optimizer.foreign-parameter",
        )
    strange = [key for key in optimizer.state if id(key) not in known]
    if strange:
        raise PipelineRaised(
            f"optimizer() keeps state for {_said(strange[0])}, which is no parameter of the model",
            "a checkpoint holds what is in optimizer.state[parameter] and in param_groups: keep it there",
            code="optimizer.foreign-state",
        )
    if any(not _is_rate(group.get("lr")) for group in optimizer.param_groups):
        raise PipelineRaised(
            f"optimizer() returned a {type(optimizer).__name__} without a learning rate",
            "give each of its param_groups a number as lr: `schedule` multiplies it",
            code="optimizer.no-rate",
        )
    scaled = next((group for group in optimizer.param_groups if group.get(_SCALE, 1) != 1), None)
    if scaled is not None:
        raise PipelineRaised(
            f"optimizer() returned a group with {_SCALE}={scaled[_SCALE]}, as the layer_decay of timm sets it: a scheduler of "
            "timm would multiply rates by it, and nobody does here",
            f'do so in optimizer(): for group in optimizer.param_groups: group["lr"] *= group.pop("{_SCALE}", 1)',
            code="optimizer.scale-unused",
        )


def unread_options(optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of numbers in its groups that no class of torch reads; of another class it is not known."""
    kind = type(optimizer)
    if is_watched(optimizer) or not (_is_of_torch(kind) or kind in OPTIMIZERS.values()):
        return []
    read = {"lr", _SCALE, *_LEFT_BY_SCHEDULERS, *optimizer.defaults}
    numbers = [key for group in optimizer.param_groups for key in group if isinstance(group[key], (bool, int, float))]
    return [key for key in dict.fromkeys(numbers) if key not in read]


def unfit(optimizer: torch.optim.Optimizer) -> PipelineRaised:
    """The error for one of a kind that cannot train here; of a kind that is not known, one that wants a closure."""
    why, remedy = next((told for kind, told in _UNFIT.items() if isinstance(optimizer, kind)), _WITH_CLOSURE)
    return PipelineRaised(f"optimizer() returned a {type(optimizer).__name__}: {why}", remedy, code="optimizer.unfit")


def _is_rate(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, (int, float))


def _said(key: Any) -> str:
    return f"a tensor of shape {tuple(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)


@contextmanager
def without_schedulers() -> Iterator[None]:
    """Inside the block none of torch can be built. Afterwards it is too late to name one: it may be gone, with the learning
    rates that it has set left behind, or, for a plateau, nothing at all."""
    usual = [(kind, kind.__init__) for kind in _SCHEDULERS]

    def refuse(scheduler: object, *_: Any, **__: Any) -> None:
        raise PipelineRaised(
            f"optimizer() builds a scheduler, {type(scheduler).__name__}, which nobody would step",
            f"return the optimizer alone; {_OWN_SCHEDULE}",
            code="optimizer.scheduler-within",
        )

    try:
        for kind in _SCHEDULERS:
            kind.__init__ = refuse  # type: ignore[assignment, method-assign]
        yield
    finally:
        for kind, initialize in usual:
            kind.__init__ = initialize  # type: ignore[method-assign]


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


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of each group that settings or the pipeline have given. A class that is neither torch's nor of the table
    may count there, too, so of it nothing is told."""
    if type(optimizer) not in OPTIMIZERS.values():
        return [{} for _ in optimizer.param_groups]
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


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


def is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is known: its class is of the table, and no hook of the user's stands around it."""
    return type(optimizer) in OPTIMIZERS.values() and not is_watched(optimizer)


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
    return found | {f"state of {_said(key)}": b"" for key in strange}


def _users_kinds(kind: type) -> list[type]:
    """The class and those of its bases that are none of torch's or of the table."""
    return [each for each in kind.__mro__ if each not in OPTIMIZERS.values() and not _is_of_torch(each)]


def _is_of_torch(kind: type) -> bool:
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


@functools.cache
def _remembered(name: str, options: str) -> float:
    module = torch.nn.Module()
    weight = module.weight = torch.nn.Parameter(torch.zeros(_TRIED, _TRIED))
    optimizer = build(name, json.loads(options), module)
    weight.grad = torch.zeros_like(weight)
    # Adam looks for a GPU before each step. The look would start CUDA in a run's driver, and a card that hangs would hold it.
    vars(optimizer)["_accelerator_graph_capture_health_check"] = lambda: None
    try:
        optimizer.step()
    except (ArithmeticError, RuntimeError) as error:  # of a number that no float32 can hold
        raise ConfigurationError(
            [f"optimizer: {name} cannot step with {options}: {error}"],
            "give it numbers near those of torch's documentation",
            code="optimizer.cannot-step",
        ) from None
    tensors = [value for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    return round(sum(tensor.numel() for tensor in tensors) / weight.numel(), 1)


def remembered(name: str, options: Mapping[str, Any]) -> float:
    """How many elements the optimizer of this name keeps for each one that it trains; found by a step with a small tensor."""
    return _remembered(name, json.dumps(dict(options), sort_keys=True))


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


def _arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has lists where torch wants tuples (betas)."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
