"""The data of a module: its data module or its own loaders, prepared once on each host of a run, and what of a
DataLoader has a meaning in a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from orchestrator.adapters.adapted import Course
from orchestrator.adapters.lightning import generators
from orchestrator.adapters.lightning.reading import is_frameworks
from orchestrator.common import once
from orchestrator.errors import PipelineRaised, coded

_FOLDER = Path(".orchestrator")
_KNOWN = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler, SequentialSampler)


class Visits(NamedTuple):
    """How a training loader visits its samples."""

    sampler: str  # the name of its class
    batch_sampler: str | None = None  # likewise, where it is not that of torch
    each_once: bool = True  # whether a RandomSampler draws every sample once in an epoch


def misfits(visits: Visits, course: Course) -> Iterator[str]:
    """The traits that the settings do not have too, a sentence each."""
    for sentence in _misfits(visits, course):
        yield _misfit(sentence)


def _misfit(sentence: str) -> str:
    return coded("lightning.loader-misfit", f"pipeline.data: {sentence}")


def _misfits(visits: Visits, course: Course) -> Iterator[str]:
    sampler = visits.sampler
    if visits.batch_sampler is not None:
        yield (
            f"the training loader has a batch_sampler, {visits.batch_sampler}: give it batch_size and shuffle=True, and "
            "data.batch_size to the run"
        )
    elif sampler == "WeightedRandomSampler":
        if course.sampling != "weighted":
            yield "the training loader has a WeightedRandomSampler: set data.sampling=weighted, which takes its weights"
    elif sampler in ("RandomSampler", "SubsetRandomSampler"):
        if not visits.each_once:
            yield "the RandomSampler of the training loader does not visit each sample once: leave the sampler out"
        elif course.sampling == "uniform" and course.order == "sequential":
            yield "the training loader shuffles: leave data.order=sequential out"
    elif sampler == "SequentialSampler":
        if course.order != "sequential":
            yield "the training loader does not shuffle: give it shuffle=True, or set data.order=sequential"
    else:
        yield (
            f"the training loader has the sampler {sampler}: there are RandomSampler, SubsetRandomSampler, "
            "SequentialSampler and WeightedRandomSampler; others are an order of your own (data.order=package.module:name)"
        )


class HeldOut(Dataset[Any]):
    """The samples of a validation loader that puts batches together otherwise than the training loader does."""

    class Items(list[Any]):
        """The samples of a validation batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        batched = getattr(self._dataset, "__getitems__", None)
        return self.Items([self._dataset[index] for index in indices] if batched is None else batched(indices))


class Loaders:
    """The training loader and the validation loader, None where there is none. Raises PipelineRaised."""

    def __init__(self, holder: Any) -> None:
        """holder: has their methods."""
        # Puts generators to where `setup` finds them, whether this process prepares data or not.
        self.to_setup = generators.keep()
        if getattr(holder, "prepare_data", None) is not None:  # None takes that of a base class away
            once.on_this_host("prepare-data", _FOLDER, holder.prepare_data)
            self.to_setup()
        if getattr(holder, "setup", None) is not None:
            holder.setup("fit")
        self.holder = holder
        self.train = _one(holder.train_dataloader(), "train_dataloader")
        held_out = holder.val_dataloader() if _is_written(holder, "val_dataloader") else None
        has_none = held_out is None or (isinstance(held_out, list | tuple) and not held_out)
        self.validation = None if has_none else _one(held_out, "val_dataloader")

    def datasets(self) -> tuple[Any, Any]:
        """The samples of both."""
        held_out = None if self.validation is None else _visited(self.validation)
        if self.validation is not None and self.validation.collate_fn != self.train.collate_fn:
            held_out = HeldOut(held_out)
        return _visited(self.train), held_out

    def collate(self, items: Sequence[Any]) -> Any:
        loader = self.validation if isinstance(items, HeldOut.Items) else self.train
        assert loader is not None
        return loader.collate_fn(list(items))

    @property
    def weights(self) -> Any:
        """Those of the training samples; None where they count alike."""
        sampler = _drawing(self.train).sampler
        return sampler.weights if isinstance(sampler, WeightedRandomSampler) else None

    def misfits(self, course: Course) -> Iterator[str]:
        """The traits of the loaders that the settings do not have too, a sentence each."""
        sampler = _drawing(self.train).sampler
        yield from misfits(Visits(_name(sampler), _own_batches(self.train), _each_once(sampler)), course)
        if isinstance(sampler, WeightedRandomSampler) and not sampler.replacement:
            yield _misfit("the WeightedRandomSampler of the training loader has replacement=False: leave that out")
        for loader, which in ((self.train, "training"), (self.validation, "validation")):
            if loader is not None and loader.batch_sampler is None:
                yield _misfit(
                    f"the {which} loader has batch_size=None: give it a data set of samples, and their number in a batch"
                )
        if self.validation is not None and not _visits_all(held_out := _drawing(self.validation).sampler):
            yield _misfit(
                f"the validation loader has the sampler {_name(held_out)}: give it none, and a data set of the samples "
                "that it visits, such as a Subset"
            )

    def notes(self, course: Course) -> Iterator[str]:
        """The traits of the loaders that the run does not have, a sentence each."""
        own = _drawing(self.train)
        size, sampler = own.batch_size, own.sampler
        if size is not None and size != course.batch_size:
            yield f"the training loader has batch_size={size}, and the run data.batch_size={course.batch_size}, which counts"
        if own.drop_last and len(sampler) % course.batch_size:
            yield "the training loader drops an epoch's last batch where it is not full; the run trains it too"
        if isinstance(sampler, WeightedRandomSampler) and sampler.num_samples != len(self.train.dataset):
            yield (
                f"the WeightedRandomSampler of the training loader draws {sampler.num_samples} samples in an epoch, and the "
                f"run {len(self.train.dataset)}, as the data set has"
            )
        for loader, which in ((self.train, "training"), (self.validation, "validation")):
            if loader is not None and loader.worker_init_fn is not None:
                yield (
                    f"the {which} loader has a worker_init_fn, which is not called: what it prepares is for the data set to do "
                    "as it reads its first sample; random numbers have seeds of the run"
                )
        if self.validation is None:
            return
        held_out = _drawing(self.validation)
        if (batches := _own_batches(self.validation)) is not None:
            yield (
                f"the validation loader has a batch_sampler, {batches}; the run evaluates all samples of its data set, in "
                "their order"
            )
        elif held_out.drop_last and len(held_out.sampler) % (held_out.batch_size or 1):
            yield "the validation loader drops the last batch where it is not full; the run evaluates it too"


def _is_written(holder: Any, name: str) -> bool:
    """Whether it has a method of the user's, and not Lightning's, which raises."""
    method = getattr(type(holder), name, None) or vars(holder).get(name)
    return method is not None and not is_frameworks(getattr(method, "__module__", ""))


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


def _drawing(loader: Any) -> Any:
    """The part of it with the sampler, batch_size and drop_last that count: a loader that is given a batch_sampler has the
    defaults of all three."""
    return loader.batch_sampler if type(loader.batch_sampler) is BatchSampler else loader


def _name(sampler: Any) -> str:
    """Its class, or a known one that it takes its order from."""
    return next((kind.__name__ for kind in _KNOWN if _is_one(sampler, kind)), type(sampler).__name__)


def _is_one(sampler: Any, kind: type) -> bool:
    """Whether it draws as that does: a class that is derived from it may have an order of its own."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__  # type: ignore[attr-defined]


def _each_once(sampler: Any) -> bool:
    """Unless it is a RandomSampler that draws with replacement, or fewer samples or more."""
    drawn = isinstance(sampler, RandomSampler)
    return not (drawn and (sampler.replacement or sampler.num_samples != len(sampler.data_source)))


def _visits_all(sampler: Any) -> bool:
    """Whether it visits each of its samples once, as far as is known."""
    is_known = any(_is_one(sampler, kind) for kind in _KNOWN if kind is not WeightedRandomSampler)
    return is_known and _each_once(sampler)


def _own_batches(loader: Any) -> str | None:
    """The class of a batch sampler that is not torch's."""
    batches = loader.batch_sampler
    return None if batches is None or type(batches) is BatchSampler else type(batches).__name__


def _visited(loader: Any) -> Any:
    """The samples that it visits."""
    sampler = _drawing(loader).sampler
    return Subset(loader.dataset, list(sampler.indices)) if isinstance(sampler, SubsetRandomSampler) else loader.dataset
