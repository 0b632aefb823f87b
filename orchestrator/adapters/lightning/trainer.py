"""The `self.trainer` of a module: what of Lightning's Trainer its code may ask for, and nothing that acts."""

from __future__ import annotations

from typing import Any, Self

from orchestrator.adapters.adapted import Course
from orchestrator.errors import PipelineRaised

OFFERED = (
    *("current_epoch", "global_step", "num_training_batches", "estimated_stepping_batches", "max_epochs", "max_steps"),
    *("training", "validating", "sanity_checking", "datamodule", "callback_metrics", "is_global_zero", "global_rank"),
    *("local_rank", "world_size", "num_devices", "num_nodes", "barebones", "accumulate_grad_batches"),
)
AT_THE_END = "callback_metrics"
EVALUATED = (
    "on_validation_epoch_end alone has the metrics of an evaluation; let a step follow from its batch and its place"
)


class Trainer:
    """The run as a module sees it. Values change with the step; those of workers do not exist, since any worker computes any
    batch."""

    def __init__(self) -> None:
        self.datamodule: Any = None
        self.stage = "training"  # or "validating"; "scheduling" while a scheduler is stepped behind an update
        self.evaluated: dict[str, Any] | None = None  # the metrics of the evaluation that is looked at
        self.global_step = 0
        self.sanity_checking = self.barebones = False
        self.is_global_zero = True
        self.global_rank = self.local_rank = 0
        self.world_size = self.num_devices = self.num_nodes = self.accumulate_grad_batches = 1
        self.numbers: Any = None  # takes what is logged; None where nothing of it is recorded
        self._course: Course | None = None

    def log(
        self, name: str, value: Any, *_: Any, reduce_fx: Any = "mean", batch_size: int | None = None, **__: Any
    ) -> None:
        """The `self.log` of the module. The settings say where it is shown and how it is sent."""
        if self.numbers is not None:
            self.numbers.add(name, value, reduce_fx, batch_size)

    def __deepcopy__(self, _: object) -> Self:
        """A copy of the module is of the same run, and not of its data."""
        return self

    def begin(self, course: Course) -> None:
        self._course = course

    def updates_behind(self, step: int) -> int:
        """The number of updates that the model of a shard has had after this step of the run."""
        return (step + 1) * (1 if self._course is None else self._course.updates)

    @property
    def training(self) -> bool:
        return self.stage != "validating"

    @property
    def validating(self) -> bool:
        return self.stage == "validating"

    @property
    def num_training_batches(self) -> int:
        """The steps of an epoch: a batch is that of all workers together."""
        return self._known.epoch

    @property
    def estimated_stepping_batches(self) -> int:
        return self._known.steps

    @property
    def max_steps(self) -> int:
        return self._known.steps

    @property
    def max_epochs(self) -> int:
        return -(-self._known.steps * self._known.updates // self._known.epoch)

    @property
    def current_epoch(self) -> int:
        """An evaluation and a scheduler behind an epoch's last step are of that epoch still."""
        step = self.global_step if self.stage == "training" else max(0, self.global_step - 1)
        return 0 if self._course is None else step // self._course.epoch

    @property
    def callback_metrics(self) -> dict[str, Any]:
        if self.evaluated is None:
            raise PipelineRaised(
                f"the module asks for self.trainer.{AT_THE_END} before an evaluation has them",
                EVALUATED,
                code="lightning.evaluated",
            )
        return self.evaluated

    @property
    def batch_index(self) -> int:
        """The number of the step within its epoch."""
        return 0 if self._course is None else self.global_step % self._course.epoch

    @property
    def _known(self) -> Course:
        if self._course is None:
            raise PipelineRaised(
                "the module asks self.trainer for the length of the run before that is known",
                "ask for it in configure_optimizers or later, or hand it in with pipeline.args",
                code="lightning.trainer-early",
            )
        return self._course

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise PipelineRaised(
            f"the module asks for self.trainer.{name}, and there is no Trainer in a run",
            f"there are {', '.join(OFFERED)}",
            code="lightning.trainer",
        )
