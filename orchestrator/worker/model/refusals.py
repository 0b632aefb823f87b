"""Refusals of models, data and settings that do not go together, as far as only a worker sees it (law 7). The settings alone
decide those of `config/settings/rules`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules import batchnorm

from orchestrator.common.registry import takes
from orchestrator.common.values import Every, Span
from orchestrator.config.plan import Plan
from orchestrator.errors import ConfigurationError, PipelineRaised, coded
from orchestrator.numerics import inductor
from orchestrator.pipeline import naming
from orchestrator.worker.model import moving_buffers

# The methods that torch calls on a module, with their arguments; a method of the user's may have the name and mean something
# else.
_CALLED: Mapping[str, tuple[tuple[bool, ...], ...]] = {"train": ((), (True,)), "eval": ((),)}


def refuse_clashes(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        for method, calls in _CALLED.items():
            own = getattr(module, method)
            if getattr(own, "__func__", None) is getattr(torch.nn.Module, method):
                continue
            if not all(takes(own, *given) for given in calls):
                where = f"{name}.{method}" if name else method
                raise PipelineRaised(
                    f"the model's {where}{_parameters(own)} stands in the place of torch's {method}()",
                    f"give it another name: {method}() is called to set the mode of a layer; the training itself is done here",
                    code="model.name-clash",
                )


def refuse_exported(model: torch.nn.Module) -> None:
    """Raises PipelineRaised for a module of torch.export that cannot be set to training. torchao may have taught it."""
    for name, module in model.named_modules():
        if isinstance(module, torch.fx.GraphModule) and "train" in vars(module):
            try:
                module.train(module.training)
            except NotImplementedError:
                what = f"the module {name!r}" if name else "the model"
                raise PipelineRaised(
                    f"{what} is a program of torch.export, which can be set neither to training nor to evaluation",
                    "have model() build it of its class, and load the weights: model.load_state_dict(program.state_dict); a "
                    "trained model can be exported",
                    code="model.exported-program",
                ) from None


def _parameters(method: Any) -> str:
    return (
        f"({', '.join(inspect.signature(method).parameters)})" if callable(method) else f", a {type(method).__name__},"
    )


def refuse_moving(model: torch.nn.Module, rules: Mapping[str, str], plan: Plan) -> None:
    """Raises PipelineRaised where contributions are clipped and the model would have more of its shards than these, and where
    replicas run free and have no first shard. rules: that are declared, by the name of a buffer."""
    moving = moving_buffers.Moving.of(model, rules)
    joined = {name: rule for rule, buffers in moving.joined.items() for name in buffers}
    if plan.data.privacy is not None:
        _refuse_statistics(model)
        for name in [*rules, *joined]:
            raise PipelineRaised(
                f"the buffer {name!r} moves while batches are computed, and no clipping bounds how far",
                "with privacy.clipping_norm only gradients are added up: leave buffers() and spectral normalisation out",
                code="model.buffer-clipping",
            )
    if not plan.lockstep:
        for name, rule in joined.items():
            mean = f', or declare another rule: def buffers(self): return {{"{name}": "mean"}} in the pipeline'
            raise PipelineRaised(
                f"the buffer {name!r} has the rule {rule!r}, and under sync={plan.sync.name} shards do not end their steps "
                "together",
                f"set sync=bsp{mean if moving_buffers.fits('mean', model.get_buffer(name)) else ''}",
                code="model.buffer-sync",
            )


def _refuse_statistics(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, batchnorm._NormBase) and module.running_mean is not None:
            raise PipelineRaised(
                f"the layer {name or 'model'!r} keeps running statistics of the samples, which no clipping bounds",
                "with privacy.clipping_norm normalise within a sample (GroupNorm, LayerNorm), or set track_running_stats=False",
                code="model.running-statistics",
            )


def refuse_unsupported(model: torch.nn.Module) -> None:
    """Raises PipelineRaised for models that cannot be trained exactly, naming the tensor and the remedy."""
    with naming("reading the model's parameters and buffers"):
        _refuse_torchscript(model)
        _refuse_tensors(model)
        _refuse_shared_memory(model)
        if not any(parameter.requires_grad and parameter.numel() for parameter in model.parameters()):
            raise PipelineRaised(
                "the model has no parameter that requires a gradient",
                "nothing could be trained; layers in a list or a dict are parts of a model in nn.ModuleList and nn.ModuleDict",
                code="model.no-parameter",
            )


def refuse_compiled(model: torch.nn.Module, plan: Plan) -> None:
    """Raises PipelineRaised where the pipeline has compiled a module, and the settings say nothing of it."""
    name = None if plan.run.compute.compiled else compiled_module(model)
    if name is not None:
        raise PipelineRaised(
            f"the module {name!r} is compiled",
            "set run.compile=true, which is part of what determines the result, or leave torch.compile out",
            code="model.compiled",
        )


def compiled_module(model: torch.nn.Module) -> str | None:
    """The first that the pipeline has compiled."""
    with naming("reading the model's layers"):
        return next((name or "model" for name, each in model.named_modules() if inductor.is_compiled(each)), None)


def _refuse_torchscript(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"the module {name!r}" if name else "the model"
            raise PipelineRaised(
                f"{what} is one of TorchScript, whose parameters and buffers a worker cannot exchange for those of the run",
                "have model() return what torch.jit.script or torch.jit.trace was given; functions may be scripted, and so may "
                "a trained model",
                code="model.torchscript",
            )


_SPARSE = (
    "have it dense, by .to_dense(); a sparse constant, such as the adjacency of a graph, may be a plain attribute of the "
    "pipeline, and .to(x.device) where it is used"
)


def _refuse_tensors(model: torch.nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "buffer"
        if torch.nn.parameter.is_lazy(tensor):
            raise PipelineRaised(
                f"{kind} {name!r} has no shape yet",
                "give lazy layers their sizes, or run one batch through them in model()",
                code="model.lazy",
            )
        if kind == "parameter" and tensor.dtype != torch.float32:
            raise PipelineRaised(
                f"parameter {name!r} is {tensor.dtype}",
                "keep its torch.view_as_real as the parameter, and take torch.view_as_complex of that in forward()"
                if tensor.is_complex()
                else "parameters have to be torch.float32: have model() return model.float(), or give from_pretrained() "
                "dtype=torch.float32; run.precision=bfloat16 computes in bfloat16",
                code="model.dtype",
            )
        _refuse_class(kind, name, tensor)
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise PipelineRaised(
                f"{kind} {name!r} is not an ordinary dense tensor in memory: {tensor.layout} on {tensor.device}",
                _SPARSE
                if tensor.layout != torch.strided
                else "have model() give dense tensors in host memory, and leave .to(device), .cuda(), "
                "torch.set_default_device and DataParallel out: run.device says where the run moves them",
                code="model.not-dense",
            )


def _refuse_class(kind: str, name: str, tensor: torch.Tensor) -> None:
    """Raises PipelineRaised for what is made of other tensors, which a run would have to move, and for parameters whose state
    in the optimizer would be of their class, which no checkpoint holds."""
    found = type(tensor)
    is_made = found.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if is_made or (tensor.requires_grad and type(tensor.detach()) is not torch.Tensor):
        raise PipelineRaised(
            f"{kind} {name!r} is a {found.__module__}.{found.__qualname__}, a class of tensors of its own",
            "keep ordinary tensors, as nn.Parameter(weight.as_subclass(torch.Tensor)), or the parts of a quantized weight as "
            "buffers, and make one of its class of them in forward()",
            code="model.tensor-class",
        )


def _refuse_shared_memory(model: torch.nn.Module) -> None:
    """Raises PipelineRaised for parameters that share memory: they are moved, and would be separated. Buffers may share
    memory among themselves."""
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and any(
            size > 1 and not stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True)
        ):
            raise PipelineRaised(
                f"elements of the parameter {name!r} share memory, as those of an expanded tensor",
                "no optimizer of torch can step it: keep what is expanded as the parameter and expand it in forward(), or "
                "make each element its own by contiguous()",
                code="model.expanded",
            )
        owner = owners.setdefault(_address(parameter), name) if parameter.numel() else name
        if owner != name:
            raise PipelineRaised(
                f"{owner!r} and {name!r} share memory but are two objects",
                "tie them by assigning the same Parameter to both places. One that forward() makes of the other, as WeightDrop "
                "of torchnlp does, passes no gradient on: have it assign the tensor, without nn.Parameter(...)",
                code="model.shared-memory",
            )
    for name, buffer in model.named_buffers():
        if buffer.numel() and _address(buffer) in owners:
            raise PipelineRaised(
                f"the buffer {name!r} lies in the memory of the parameter {owners[_address(buffer)]!r}",
                "register a copy (tensor.clone()), or none where forward() computes it from the parameter: spectral norm is "
                "torch.nn.utils.parametrizations.spectral_norm",
                code="model.buffer-in-parameter",
            )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def refuse_unwatched(plan: Plan, *, validates: bool) -> None:
    """Raises ConfigurationError where something watches a metric that nobody computes."""
    monitors = plan.update.monitors_a_metric or plan.checkpoints.best is not None
    if monitors and not validates:
        who = "early_stopping, schedule=plateau and checkpoint.best"
        raise ConfigurationError(
            [f"{who} watch a metric, but datasets() returned no validation set"],
            "return one as its second result, from val_dataloader() of a data module, or as the split that "
            "pipeline.args.data.validation names; or leave these settings out",
            code="evaluation.no-validation",
        )


def refuse_epochs(plan: Plan) -> None:
    """Raises ConfigurationError for what counts epochs, which a stream has not."""
    given = {f"schedule.{key}": value for key, value in plan.update.schedule.options.items()}
    given |= {"evaluation.every": plan.cadence.evaluation, "checkpoint.every": plan.checkpoints.every}
    found = [key for key, value in given.items() if isinstance(value, Span | Every) and value.epochs is not None]
    if found:
        raise ConfigurationError(
            [f"{key}: the training set is a Stream, which has no length; give it in steps" for key in found],
            code="streams.schedule-epochs",
        )


def refuse_live(plan: Plan) -> None:
    """Raises ConfigurationError for what would ask a live stream for samples that it has given."""
    found = [
        (not plan.lockstep, f"sync: {plan.sync.name} computes samples again", "sync=bsp"),
        (plan.cluster.members.stages > 1, "cluster.stages: several workers would take its samples", "cluster.stages=1"),
        (
            plan.run.compute.arithmetic != "native",
            "run.arithmetic: portable looks at the first micro-batch",
            "run.arithmetic=native",
        ),
    ]
    problems = [
        coded("streams.live", f"{why}, and a live Stream gives each once; set {instead}")
        for refused, why, instead in found
        if refused
    ]
    if problems:
        raise ConfigurationError(problems)


def refuse_absence(plan: Plan, *, keeps: bool) -> None:
    """Raises ConfigurationError where a site may sit out, and with it would go what its shards keep."""
    if plan.data.sits_out and keeps:
        raise ConfigurationError(
            ["data.absent: shards keep something from step to step here, which is lost with a site that goes"],
            "set data.absent=wait, or train without what is kept (compression, a contribution with a state, a Stream)",
            code="site.absent",
        )


def refuse_kept_of_clients(*, drawn: bool, keeps: bool) -> None:
    """Raises ConfigurationError where a shard would add what it kept of one client to the gradient of another."""
    if drawn and keeps:
        raise ConfigurationError(
            [
                "data.partition: there are more clients than shards, so a shard plays another one in each round, and what "
                "it keeps from step to step (error feedback, a contribution's state) belongs to the one before"
            ],
            "set compression.error_feedback=false, train without what is kept, or have as many data.shards as clients",
            code="data.kept-of-clients",
        )


def refuse_kept(plan: Plan, *, keeps: bool) -> None:
    """Raises ConfigurationError where others are to compute contributions that have a state."""
    kept = (
        "what shards keep from step to step (a Stream, error feedback, a contribution's state) stays with their workers"
    )
    if keeps and plan.cluster.claims_required:
        raise ConfigurationError([f"cluster.claims: {kept}; leave cluster.claims out"], code="claims.kept")
    if keeps and plan.cadence.check_every:
        raise ConfigurationError([f"check.every: {kept}; leave check.every out"], code="check.kept")
