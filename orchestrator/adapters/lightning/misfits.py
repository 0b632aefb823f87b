"""The parts of a module or a data module that have no place in a run, a sentence each, found before anything is built. All
are told at once, each with what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestrator.adapters.adapted import Course
from orchestrator.adapters.lightning import loaders
from orchestrator.adapters.lightning.numbers import REDUCTIONS
from orchestrator.adapters.lightning.reading import Reading, logged, uses_of_self
from orchestrator.adapters.lightning.trainer import AT_THE_END, EVALUATED, OFFERED
from orchestrator.errors import coded

_BATCHES = "any worker may compute any batch, more than once: do it in training_step, from the batch alone"
_AVERAGES = "a moving average of weights is moved by the step() of an optimizer of your own (docs/porting.md)"
_AFTER = "do it in on_validation_epoch_end, which has a copy of the model, or after the run"
_EPOCHS = (
    "a run has steps, and no loop over epochs: compute in training_step what depends on self.current_epoch, and log numbers in "
    "validation_step"
)
_GRADIENTS = "gradients are summed over workers before anybody has them"
# Hooks of the training loop that have no equivalent, and what to do instead.
HOOKS = {
    "on_fit_start": "do it in __init__ or in setup",
    "on_fit_end": _AFTER,
    "on_train_start": "do it in __init__ or in setup",
    "on_train_end": _AFTER,
    "on_train_epoch_start": _EPOCHS,
    "on_train_epoch_end": _EPOCHS,
    "on_train_batch_start": _BATCHES,
    "on_train_batch_end": f"{_BATCHES}; {_AVERAGES}",
    "on_validation_start": "do it in validation_step",
    "on_validation_end": "name it on_validation_epoch_end",
    "on_validation_epoch_start": "do it in validation_step",
    "on_validation_batch_start": "do it in validation_step",
    "on_validation_batch_end": "do it in validation_step",
    "on_validation_model_eval": "override eval() of the layer",
    "on_validation_model_train": "override train() of the layer",
    "on_validation_model_zero_grad": "leave it out",
    "on_before_zero_grad": f"{_GRADIENTS}: leave it out; {_AVERAGES}",
    "on_before_backward": "change the loss in training_step",
    "on_after_backward": f"{_GRADIENTS}: set gradient.clip, or change the loss in training_step",
    "on_before_optimizer_step": f"{_GRADIENTS}: set gradient.clip, or write an optimizer whose step() does it",
    "backward": "change the loss in training_step",
    "optimizer_step": "write an optimizer whose step() does it; a warm-up is a scheduler, or schedule with warmup",
    "optimizer_zero_grad": "leave it out",
    "lr_scheduler_step": "return a scheduler that is stepped without arguments",
    "configure_gradient_clipping": "set gradient.clip, the largest norm of a gradient",
    "configure_callbacks": "checkpoints and early_stopping are settings; a callback of your own is on_validation_epoch_end",
    "configure_sharded_model": "name it configure_model",
    "transfer_batch_to_device": "give a batch of a class of your own a method to(device)",
    "on_save_checkpoint": "keep what belongs to the model in buffers",
    "on_load_checkpoint": "keep what belongs to the model in buffers",
}
# Methods and attributes that a step may not use.
_USES = {
    "manual_backward": "one optimizer steps by itself, or several in one, at once or in turn (docs/porting.md)",
    "optimizers": "one optimizer steps by itself, or several in one, at once or in turn (docs/porting.md)",
    "toggle_optimizer": "several optimizers step in one, at once or in turn (docs/porting.md)",
    "lr_schedulers": "the schedule is tabulated before the run: return the scheduler from configure_optimizers",
    "logger": "numbers are logged by self.log in validation_step; pictures are drawn in on_validation_epoch_end",
    "loggers": "numbers are logged by self.log in validation_step; pictures are drawn in on_validation_epoch_end",
    "all_gather": "a step has the samples of one shard alone: compute the loss from these",
    "clip_gradients": "set gradient.clip, the largest norm of a gradient",
}
_DATA_HOOKS = {
    "transfer_batch_to_device": HOOKS["transfer_batch_to_device"],
    "on_exception": "leave it out: files of a run that ended are removed by whoever started it",
    "state_dict": "which samples come next follows from the step alone: leave it out",
    "load_state_dict": "which samples come next follows from the step alone: leave it out",
}
_OF_A_LOADER = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")  # its arguments, in their order


def of_module(module: Reading, name: str, *, has_data: bool) -> Iterator[str]:
    """The sentences about a module, which is called `name`. has_data: whether pipeline.data gives the data."""
    if not module.overrides("training_step"):
        yield coded(
            "lightning.no-training-step",
            f"pipeline.target: {name} has no training_step; write one that returns the loss",
        )
    elif "dataloader_iter" in module.parameters("training_step"):
        yield coded(
            "lightning.loader-iterator",
            f"pipeline.target: training_step of {name} takes dataloader_iter; let it take a batch",
        )
    if not has_data and not module.overrides("train_dataloader"):
        yield coded(
            "lightning.no-data", f"pipeline.data: name the data module, since {name} has no train_dataloader of its own"
        )
    for hook, instead in HOOKS.items():
        if module.overrides(hook):
            yield coded("lightning.hook", f"pipeline.target: {name} overrides {hook}, which is not called; {instead}")
    yield from _manual(module, name)
    yield from _uses(module, name)
    yield from _reductions(module, name)
    yield from _at_the_end(module, name)
    yield from _gathered(module, name)


def of_data(data: Reading, name: str) -> Iterator[str]:
    """The sentences about a data module."""
    if not data.overrides("train_dataloader"):
        yield coded(
            "lightning.no-train-loader",
            f"pipeline.data: {name} has no train_dataloader; name a LightningDataModule, or a class with that method",
        )
    for hook, instead in _DATA_HOOKS.items():
        if data.overrides(hook):
            yield coded(
                "lightning.data-hook", f"pipeline.data: {name} overrides {hook}, which is not called; {instead}"
            )


def of_loaders(holder: Reading, name: str, course: Course) -> Iterator[str]:
    """The sentences about what the source of the loaders shows. The rest is told when they are made."""
    for method in ("train_dataloader", "val_dataloader"):
        if several := next(filter(None, map(_several_loaders, holder.returned(method))), None):
            yield coded(
                "lightning.loaders",
                f"pipeline.data: {method} of {name} returns {several}; return one torch DataLoader; several data sets are "
                "one ConcatDataset, or sources of a mixture (data.mixture)",
            )
    calls = [
        node
        for function in holder.through("train_dataloader")
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and _called(node) == "DataLoader"
    ]
    if len(calls) == 1 and (visits := _visits(calls[0])) is not None:
        yield from loaders.misfits(visits, course)


def _several_loaders(returned: ast.expr) -> str | None:
    if isinstance(returned, (ast.List, ast.Tuple)) and len(returned.elts) > 1:
        return f"{len(returned.elts)} loaders"
    if isinstance(returned, ast.Dict):
        return "a dict of loaders"
    if isinstance(returned, ast.Call) and _called(returned) == "CombinedLoader":
        return "a CombinedLoader"
    return None


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _visits(call: ast.Call) -> loaders.Visits | None:
    """As its arguments say; None where the source does not show it."""
    given = {each.arg: each.value for each in call.keywords}
    if None in given or any(isinstance(each, ast.Starred) for each in call.args):  # *args, **options
        return None
    given |= dict(zip(_OF_A_LOADER, call.args, strict=False))
    stated = {name: value for name, value in given.items() if not _is(value, None)}
    if "batch_sampler" in stated:
        batches = stated["batch_sampler"]
        if not isinstance(batches, ast.Call):
            return None
        if _called(batches) != "BatchSampler":
            return loaders.Visits("", _called(batches))
        named = [each.value for each in batches.keywords if each.arg == "sampler"]
        stated["sampler"] = [*batches.args, *named, batches][0]
    if "sampler" in stated:
        sampler = stated["sampler"]
        if not isinstance(sampler, ast.Call) or (_called(sampler) == "RandomSampler" and sampler.keywords):
            return None
        return loaders.Visits(_called(sampler)) if _called(sampler)[:1].isupper() else None
    shuffle = stated.get("shuffle")
    if shuffle is None or _is(shuffle, False):
        return loaders.Visits("SequentialSampler")
    return loaders.Visits("RandomSampler") if _is(shuffle, True) else None


def _is(value: ast.expr, what: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is what


def _manual(module: Reading, name: str) -> Iterator[str]:
    for function in module.through("__init__"):
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Assign)
                and any(ast.unparse(target) == "self.automatic_optimization" for target in node.targets)
                and not (isinstance(node.value, ast.Constant) and node.value.value)
            ):
                yield coded(
                    "lightning.manual",
                    f"pipeline.target: {name} sets automatic_optimization to False; return the loss from training_step "
                    "instead; several optimizers step in one, at once or in turn (docs/porting.md)",
                )
    if any(map(_several, module.returned("configure_optimizers"))):
        yield coded(
            "lightning.optimizers",
            f"pipeline.target: configure_optimizers of {name} returns several optimizers; return one, in which they "
            "step at once or in turn (docs/porting.md)",
        )


def _several(returned: ast.expr) -> bool:
    """Whether it says so itself: [a, b] or [a, b], [scheduler]."""
    if not isinstance(returned, (ast.List, ast.Tuple)):
        return False
    parts = returned.elts
    if len(parts) == 2 and all(isinstance(part, (ast.List, ast.Tuple)) for part in parts):
        return _several(parts[0])
    return len(parts) > 1


def _uses(module: Reading, name: str) -> Iterator[str]:
    told = set()
    in_steps = [each.name for each in module.through("training_step", "validation_step", "forward")]
    for function in module.through("training_step", "validation_step", "on_validation_epoch_end", "forward"):
        for used in uses_of_self(function):
            if used.attr in _USES and not module.overrides(used.attr) and used.attr not in told:
                told.add(used.attr)
                yield coded(
                    "lightning.use",
                    f"pipeline.target: {function.name} of {name} uses self.{used.attr}; {_USES[used.attr]}",
                )
        for node in ast.walk(function):
            if not isinstance(node, ast.Attribute) or ast.unparse(node.value) != "self.trainer" or node.attr in told:
                continue
            if node.attr == AT_THE_END and function.name in in_steps:
                told.add(node.attr)
                yield coded(
                    "lightning.evaluated-use",
                    f"pipeline.target: {function.name} of {name} uses self.trainer.{node.attr}, and {EVALUATED}",
                )
            elif node.attr not in OFFERED:
                told.add(node.attr)
                yield coded(
                    "lightning.trainer-use",
                    f"pipeline.target: {function.name} of {name} uses self.trainer.{node.attr}, and a run has no Trainer; "
                    f"there are {', '.join(OFFERED[:6])}",
                )


def _reductions(module: Reading, name: str) -> Iterator[str]:
    for metric, call in logged(module.through("validation_step")):
        given = next((each.value for each in call.keywords if each.arg == "reduce_fx"), None)
        if given is None or (isinstance(given, ast.Name) and given.id not in REDUCTIONS):
            continue  # a name of the user's is looked at when it is called
        how = str(given.value) if isinstance(given, ast.Constant) else ast.unparse(given).rpartition(".")[2]
        if how not in REDUCTIONS:
            yield coded(
                "lightning.reduction",
                f"pipeline.target: {name} logs {metric!r} with reduce_fx={ast.unparse(given)}; there are "
                f"{', '.join(sorted(set(REDUCTIONS.values())))}",
            )


def _at_the_end(module: Reading, name: str) -> Iterator[str]:
    """In on_validation_epoch_end no metric has seen a batch."""
    told = set()
    calls = (
        node for each in module.through("validation_step") for node in ast.walk(each) if isinstance(node, ast.Call)
    )
    # No other attribute is a metric that has seen a batch, as far as the source shows.
    fed = {ast.unparse(call.func).removesuffix(".update") for call in calls}
    for function in module.through("on_validation_epoch_end"):
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "compute" and ast.unparse(node.func.value).startswith("self."):
                told.add(ast.unparse(node.func.value))
        for _, call in logged([function]):
            told |= {ast.unparse(part) for part in call.args[1:2] if isinstance(part, ast.Attribute)} & fed
    for what in sorted(told):
        yield coded(
            "lightning.metric-at-the-end",
            f"pipeline.target: on_validation_epoch_end of {name} takes {what} over all batches; log it in validation_step, as "
            f"self.log(NAME, {what}) or a MetricCollection as self.log_dict({what}), and its value over all batches is "
            "recorded",
        )


def _gathered(module: Reading, name: str) -> Iterator[str]:
    """Attributes that validation_step fills, each worker that of its own batches, and that on_validation_epoch_end reads of a
    model that has seen none."""
    at_the_end = module.through("on_validation_epoch_end")
    shared = {function.name for function in at_the_end}  # such a helper fills them there, too
    filled = {
        used.attr
        for function in module.through("validation_step")
        if function.name not in shared
        for used in _filled(function)
    }
    read = {used.attr for function in at_the_end for used in _read(function)}
    for what in sorted(filled & read):
        yield coded(
            "lightning.gathered",
            f"pipeline.target: on_validation_epoch_end of {name} reads self.{what}, which validation_step fills on the workers "
            "that compute its batches; log the numbers of each batch by self.log in validation_step, and their values over all "
            "batches are recorded; pictures are of samples that the hook chooses itself",
        )


def _filled(function: ast.AST) -> Iterator[ast.Attribute]:
    """Each `self.name` that it sets or adds to."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "extend")
        ):
            part: ast.AST = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            part = node
        else:
            continue
        while isinstance(part, ast.Subscript):
            part = part.value
        yield from (used for used in uses_of_self(part) if used is part)


def _read(function: ast.AST) -> Iterator[ast.Attribute]:
    """Each `self.name` of which it takes more than `self.name.clear()`."""
    cleared = [
        node.func.value
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clear"
    ]
    for used in uses_of_self(function):
        if isinstance(used.ctx, ast.Load) and used not in cleared:
            yield used
