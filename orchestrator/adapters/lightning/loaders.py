"""The data of a module: its data module or its own loaders, prepared once on each host of a run, and what of a
DataLoader has a meaning in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from orchestrator.adapters.adapted import Course
from orchestrator.common import once
from orchestrator.errors import PipelineRaised, coded

_FOLDER = Path(".orchestrator")
_KNOWN = (WeightedRandomSampler, RandomSampler, SequentialSampler)


class Visits(NamedTuple):
    """How a training loader visits its samples."""

    sampler: str  # the name of its class
    batch_sampler: str | None = None  # likewise, where it is not that of torch
    each_once: bool = True  # whether a RandomSampler draws every sample once in an epoch


def misfits(visits: Visits, course: Course) -> Iterator[str]:
    """The traits that the settings do not have too, a sentence each."""
    for sentence in _misfits(visits, course):
        yield coded("lightning.loader-misfit", f"pipeline.data: {sentence}")


def _misfits(visits: Visits, course: Course) -> Iterator[str]:
    sampler = visits.sampler
    if visits.batch_sampler is not None:
        yield (
            f"the training loader has a batch_sampler, {visits.batch_sampler}: give it batch_size, and data.batch_size to the "
            "run"
        )
    elif sampler == "WeightedRandomSampler":
        if course.sampling != "weighted":
            yield "the training loader has a WeightedRandomSampler: set data.sampling=weighted, which takes its weights"
    elif sampler == "RandomSampler":
        if not visits.each_once:
            yield "the RandomSampler of the training loader does not visit each sample once: leave the sampler out"
        elif course.sampling == "uniform" and course.order == "sequential":
            yield "the training loader shuffles: leave data.order=sequential out"
    elif sampler == "SequentialSampler":
        if course.order != "sequential":
            yield "the training loader does not shuffle: give it shuffle=True, or set data.order=sequential"
    else:
        yield (
            f"the training loader has the sampler {sampler}: there are RandomSampler, SequentialSampler and "
            "WeightedRandomSampler; others are an order of your own (data.order=package.module:name)"
        )


class Loaders:
    """The training loader and the validation loader, None where there is none. holder: has their methods. Raises
    PipelineRaised."""

    def __init__(self, holder: Any) -> None:
        if hasattr(holder, "prepare_data"):
            once.on_this_host("prepare-data", _FOLDER, holder.prepare_data)
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
        own = None if batches in ("BatchSampler", "NoneType") else batches
        drawn = isinstance(sampler, RandomSampler) and (
            sampler.replacement or sampler.num_samples != len(self.train.dataset)
        )
        name = next((kind.__name__ for kind in _KNOWN if isinstance(sampler, kind)), type(sampler).__name__)
        return misfits(Visits(name, own, not drawn), course)

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
