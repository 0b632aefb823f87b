"""The data of a module: its data module or its own loaders, prepared by one process of a machine at a time, and what of a
DataLoader has a meaning in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from orchestrator.adapters.adapted import Course
from orchestrator.common import locks
from orchestrator.errors import PipelineRaised

_LOCK = Path(".orchestrator") / "prepare-data.lock"
_SAMPLERS = {"RandomSampler": "shuffled", "SequentialSampler": "sequential"}


class Loaders:
    """The training loader and the validation loader, None where there is none. holder: has their methods. Raises
    PipelineRaised."""

    def __init__(self, holder: Any) -> None:
        if hasattr(holder, "prepare_data"):
            _LOCK.parent.mkdir(exist_ok=True)
            with locks.held(_LOCK):
                holder.prepare_data()
        if hasattr(holder, "setup"):
            holder.setup("fit")
        self.holder = holder
        self.train = _one(holder.train_dataloader(), "train_dataloader")
        held_out = holder.val_dataloader() if _is_written(holder, "val_dataloader") else None
        self.validation = None if held_out is None else _one(held_out, "val_dataloader")

    @property
    def collate(self) -> Any:
        return self.train.collate_fn

    @property
    def weights(self) -> Any:
        """Those of the training samples; None where they count alike."""
        sampler = self.train.sampler
        return sampler.weights if isinstance(sampler, WeightedRandomSampler) else None

    def misfits(self, course: Course) -> Iterator[str]:
        """The traits of the training loader that the settings do not have too, a sentence each."""
        sampler, batches = self.train.sampler, type(self.train.batch_sampler).__name__
        if batches not in ("BatchSampler", "NoneType"):
            yield f"the training loader has a batch_sampler, {batches}: give it batch_size, and data.batch_size to the run"
        elif isinstance(sampler, WeightedRandomSampler):
            if course.sampling != "weighted":
                yield "the training loader has a WeightedRandomSampler: set data.sampling=weighted, which takes its weights"
        elif isinstance(sampler, RandomSampler):
            if sampler.replacement or sampler.num_samples != len(self.train.dataset):
                yield "the RandomSampler of the training loader does not visit each sample once: leave the sampler out"
            elif course.sampling == "uniform" and course.order == "sequential":
                yield "the training loader shuffles: leave data.order=sequential out"
        elif isinstance(sampler, SequentialSampler):
            if course.order != "sequential":
                yield "the training loader does not shuffle: give it shuffle=True, or set data.order=sequential"
        else:
            yield (
                f"the training loader has the sampler {type(sampler).__name__}: there are RandomSampler, SequentialSampler and "
                "WeightedRandomSampler; others are an order of your own (data.order=package.module:name)"
            )

    def notes(self, course: Course) -> Iterator[str]:
        """The traits of the training loader that the run does not have, a sentence each."""
        own = self.train.batch_size
        if own is not None and own != course.batch_size:
            yield f"the training loader has batch_size={own}, and the run data.batch_size={course.batch_size}, which counts"
        if self.train.drop_last and len(self.train.dataset) % course.batch_size:
            yield "the training loader drops an epoch's last batch where it is not full; the run trains it too"


def _is_written(holder: Any, name: str) -> bool:
    """Whether it has a method of the user's, and not Lightning's, which raises."""
    method = getattr(type(holder), name, None) or vars(holder).get(name)
    return method is not None and getattr(method, "__module__", "").partition(".")[0] not in (
        "lightning",
        "pytorch_lightning",
    )


def _one(found: Any, method: str) -> Any:
    while isinstance(found, (list, tuple)) and len(found) == 1:
        found = found[0]
    if not isinstance(found, DataLoader):
        raise PipelineRaised(
            f"{method}() returned a {type(found).__name__}",
            "return one torch DataLoader; several data sets are one ConcatDataset, or sources of a mixture (data.mixture)",
            code="lightning.loader",
        )
    return found
