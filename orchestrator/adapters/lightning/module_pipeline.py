"""A LightningModule as a pipeline: the module is the model, training_step its loss, validation_step its metrics.

The parts that a module may lack (an optimizer, schedulers, a hook after each evaluation) are classes of their own, so that a
pipeline defines what its module does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from orchestrator.adapters.adapted import Adapted, Course
from orchestrator.adapters.lightning import devices, generators, plateaus, schedules
from orchestrator.adapters.lightning.loaders import Loaders
from orchestrator.adapters.lightning.numbers import Numbers, NumbersAtTheEnd, is_metric, together
from orchestrator.adapters.lightning.trainer import Trainer
from orchestrator.errors import ConfigurationError, PipelineRaised

_VALIDATION = plateaus.METRICS
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_TRANSFER = ("on_before_batch_transfer", "on_after_batch_transfer")


class ModulePipeline(Adapted):
    """The base. Class attributes are those of one module, which `adapt` gives."""

    module_class: ClassVar[type]
    data_class: ClassVar[type | None]
    data_args: ClassVar[Mapping[str, Any]]
    own: ClassVar[frozenset[str]]  # the methods that the module overrides
    own_of_data: ClassVar[frozenset[str]]  # likewise of the data module
    counts: ClassVar[frozenset[str]]  # the counters and lengths of a run that the module asks for
    validated: ClassVar[frozenset[str] | None]  # the names that validation_step logs; None where that is not known
    told: ClassVar[tuple[str, ...]]  # what a launch tells of the module
    sets_modes = True

    def __init__(self, **args: Any) -> None:
        self._args = args
        self._trainer = Trainer()
        self._loaders: Loaders | None = None
        self._still: list[str] = []  # the outermost layers in evaluation mode
        self._rules: Any = {}  # of the module's buffers that move
        self._metrics: dict[str, Any] = {}  # of torchmetrics, by the name under which each is logged
        self._evaluated: tuple[Any, dict[str, float]] | None = None  # the batch whose loss came last, its metrics

    def model(self) -> torch.nn.Module:
        module: Any = self.built()
        if not module.automatic_optimization:
            raise PipelineRaised(
                f"{self.module_class.__name__} sets automatic_optimization to False",
                "return the loss from training_step; several optimizers step in one, at once or in turn (docs/porting.md)",
                code="lightning.manual-built",
            )
        self._rules = getattr(module, "buffer_rules", {})
        self.asks_step = sum(map(devices.is_lightnings, module.modules())) > 1
        self._still = [name for name, part in module.named_children() if not part.training]
        return module  # type: ignore[no-any-return]

    def built(self) -> Any:
        """The module, as its hooks around building make it."""
        module: Any = self.module_class(**self._args)
        self._attach(module)
        if "setup" in self.own:
            self._set_up(module)
        if "configure_model" in self.own:
            module.configure_model()
        return module

    def _set_up(self, module: Any) -> None:
        """A module that has the data too draws what it drew for its loaders, so that a random split is the same one."""
        if self.data_class is not None or self._loaders is None:
            module.setup("fit")
            return
        back = generators.keep()
        self._loaders.to_setup()
        try:
            module.setup("fit")
        finally:
            back()

    def buffers(self) -> Mapping[str, str]:
        """A module says it as `buffer_rules`: torch has a method of the name `buffers`."""
        return self._rules  # type: ignore[no-any-return]

    def datasets(self) -> tuple[Any, Any]:
        if self.data_class is None:
            holder: Any = self.module_class(**self._args)
            self._attach(holder)
        else:
            holder = self.data_class(**self.data_args)
            holder.trainer = self._trainer
            self._trainer.datamodule = holder
        self._loaders = Loaders(holder)
        return self._loaders.datasets()

    def collate(self, items: Sequence[Any]) -> Any:
        assert self._loaders is not None
        return self._loaders.collate(items)

    def weights(self, train: Any) -> Any:  # noqa: ARG002
        assert self._loaders is not None
        return self._loaders.weights

    def begin(self, course: Course) -> list[str]:
        self._trainer.begin(course)
        if self._loaders is None:
            return []
        found = list(self._loaders.misfits(course))
        if found:
            raise ConfigurationError(found)
        return [*self._counting(course), *self._loaders.notes(course)]

    def _counting(self, course: Course) -> list[str]:
        """A module that divides one by the other gets too much by a factor."""
        if course.updates == 1 or "global_step" not in self.counts or len(self.counts) == 1:
            return []
        lengths = " and ".join(sorted(self.counts - {"global_step"}))
        return [
            f"{self.module_class.__name__} asks for {lengths}, which with local steps is a number of rounds, as its schedulers "
            f"count; its global_step counts the local steps of a shard, up to {course.updates} in a round"
        ]

    def notes(self) -> list[str]:
        if not self._still:
            return list(self.told)
        name, layers = self.module_class.__name__, ", ".join(self._still)
        return [f"{name} builds layers in evaluation mode, which stay in it, as in a Trainer: {layers}", *self.told]

    def at(self, step: int) -> None:
        self._trainer.global_step = step

    def loss(self, model: Any, batch: Any) -> Any:
        return self._loss(model, batch)

    def metrics(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        if not self._validates(model):
            return {}
        if self._evaluated is None or self._evaluated[0] is not batch:
            self._validated(model, batch)
        assert self._evaluated is not None
        found, self._evaluated = self._evaluated[1], None
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}

    def summarized(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return together(metrics, self._metrics, _VALIDATION)

    def predict(self, model: Any, inputs: Any) -> Any:
        if "forward" not in self.own and "predict_step" in self.own:
            return model.predict_step(inputs, 0)
        return super().predict(model, inputs)

    def _loss(self, model: Any, batch: Any) -> Any:
        # A module may have put itself in evaluation mode, in which a Trainer trains it, too.
        evaluates = not model.training and not torch.is_grad_enabled()
        if evaluates and self._validates(model):
            loss = _loss_of_validation(self._validated(model, batch))
            if loss is not None:
                return loss
        return self._trained(model, batch, "validating" if evaluates else "training")

    def _validates(self, model: Any) -> bool:
        """A module without data to validate with may set validation_step to None."""
        return "validation_step" in self.own and model.validation_step is not None

    def _trained(self, model: Any, batch: Any, stage: str) -> Any:
        """The result of training_step. stage: in which a hook finds the trainer, as one that augments samples to train on."""
        self._trainer.stage, self._trainer.numbers = stage, None
        devices.follow(model)
        try:
            given = self._transferred(model, batch)
            returned = model.training_step(*_arguments(model.training_step, given, self._trainer.batch_index))
        finally:
            self._trainer.stage = "training"
        _reset(model)
        loss = _loss_in(returned)
        if loss is None:
            raise PipelineRaised(
                f"training_step returned a {type(returned).__name__}",
                'return the loss, or {"loss": loss}; a batch that is left out has a loss of weight 0: (loss, 0)',
                code="lightning.loss",
            )
        return loss

    def _validated(self, model: Any, batch: Any) -> Any:
        """The result of validation_step; what it logs is kept for `metrics`."""
        numbers = Numbers()
        self._trainer.stage, self._trainer.numbers = "validating", numbers
        devices.follow(model)
        _reset(model)
        try:
            given = self._transferred(model, batch)
            returned = model.validation_step(*_arguments(model.validation_step, given, self.validation_batch))
            numbers.check()
        finally:
            self._trainer.stage, self._trainer.numbers = "training", None
            self._metrics.update(numbers.metrics)
            _reset(model)
        self._evaluated = batch, numbers.found
        return returned

    def _transferred(self, model: Any, batch: Any) -> Any:
        """The batch after the hooks around its way to the device, where it is already."""
        for hook in _TRANSFER:
            if hook in self.own_of_data:
                batch = getattr(self._trainer.datamodule, hook)(batch, 0)
            elif hook in self.own:
                batch = getattr(model, hook)(batch, 0)
        return batch

    def _attach(self, module: Any) -> None:
        module.trainer = self._trainer
        module.log = self._trainer.log


class ToldSteps(ModulePipeline):
    """A module whose source shows that its steps ask where in the run they are."""

    def loss(self, model: Any, batch: Any, step: int = 0) -> Any:
        self.at(step)
        return self._loss(model, batch)


class Optimizes(ModulePipeline):
    """A module with configure_optimizers."""

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self._factors: list[float] | None = None
        self._course: Course | None = None

    def begin(self, course: Course) -> list[str]:
        self._course = course
        return super().begin(course)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        assert self._course is not None
        self._trainer.global_step, self._trainer.stage = 0, "training"
        optimizer, schedulers = schedules.optimizer_of(model.configure_optimizers(), self._course)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return optimizer  # type: ignore[no-any-return]
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        try:
            self._factors = schedules.factors(optimizer, schedulers, self._course, self._behind)
        finally:
            self._trainer.global_step, self._trainer.stage = 0, "training"
        watching = schedules.plateau(schedulers, rates)
        self.follows_settings = watching is not None
        if watching is not None and self._course.schedule != plateaus.NAME:
            self._take(watching)
        if self._factors is not None and not isinstance(self, Schedules):
            raise PipelineRaised(
                "configure_optimizers returned a scheduler that its source does not show",
                "name the scheduler's class or the key lr_scheduler in configure_optimizers itself",
                code="lightning.scheduler-hidden",
            )
        return optimizer

    def notes(self) -> list[str]:
        taken = [] if self.plateau is None else [f"ReduceLROnPlateau is recorded as {plateaus.said(self.plateau)}"]
        return [*super().notes(), *taken]

    def _behind(self, step: int) -> None:
        """The module asks for its place as its schedulers are stepped behind this step."""
        self._trainer.global_step, self._trainer.stage = step + 1, "scheduling"

    def _take(self, watching: Mapping[str, Any]) -> None:
        """The launch takes the schedule into its settings. In a worker it is too late for that: then the launch could not build
        the optimizer."""
        name = str(watching["metric"]).removeprefix(_VALIDATION)
        if self.validated is not None and name not in (*self.validated, "loss"):
            raise PipelineRaised(
                f"ReduceLROnPlateau watches {name!r}, and validation_step logs {', '.join(sorted(self.validated))}",
                "give it the monitor that validation_step logs; what training_step logs is not recorded",
                code="lightning.plateau-metric",
            )
        if self._loaders is not None:
            raise PipelineRaised(
                "configure_optimizers returned ReduceLROnPlateau, which the settings stand for",
                f"set {plateaus.said(watching)}",
                code="lightning.plateau",
            )
        self.plateau = watching


class Schedules(Optimizes):
    """A module with schedulers that depend on the step alone."""

    def rate(self, step: int) -> float:
        if not self._factors:
            return 1.0
        return self._factors[min(step, len(self._factors) - 1)]


class Looks(ModulePipeline):
    """A module with on_validation_epoch_end, which is called with a copy of the model, beside the training."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float], model: Any) -> Mapping[str, float]:
        numbers = NumbersAtTheEnd()
        trainer = self._trainer
        trainer.global_step = trainer.updates_behind(step)
        trainer.stage, trainer.numbers = "validating", numbers
        trainer.evaluated = {name.removeprefix(_VALIDATION): torch.tensor(value) for name, value in metrics.items()}
        devices.follow(model)
        model.on_validation_epoch_end()
        numbers.check()
        return numbers.found


def _loss_in(returned: Any) -> Any:
    if isinstance(returned, Mapping):
        return returned.get("loss")
    return returned if isinstance(returned, (torch.Tensor, tuple)) else None


def _loss_of_validation(returned: Any) -> Any:
    """None where it is no single number. A Trainer ignores the result of validation_step, so that may hold anything: a tuple is
    no loss with its weight, but perhaps predictions or a loss with an accuracy."""
    if isinstance(returned, Mapping):
        return returned.get("loss")
    is_number = isinstance(returned, torch.Tensor) and returned.numel() == 1 and returned.is_floating_point()
    return returned if is_number else None


def _arguments(step: Any, batch: Any, index: int) -> list[Any]:
    """The batch, and its number where the step takes one."""
    kinds = [each.kind for each in inspect.signature(step).parameters.values()]
    takes_both = inspect.Parameter.VAR_POSITIONAL in kinds or sum(map(_POSITIONAL.__contains__, kinds)) > 1
    return [batch, index] if takes_both else [batch]


def _reset(model: torch.nn.Module) -> None:
    """Metrics of torchmetrics keep nothing from batch to batch."""
    for module in model.modules():
        if is_metric(module):
            module.reset()  # type: ignore[operator]
