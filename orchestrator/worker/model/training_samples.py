"""Which training samples micro-batch (step, shard) holds, in a run of this data set, and how messages call it.

It joins what `orchestrator.data` says of order, division, clients and sites. Nothing is read here but labels, and lengths
(`micro_batches.py` reads samples).

A step of the run may be a round of local steps. Micro-batches are numbered by local steps then, through the run.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from typing import Any

import torch

from orchestrator.checkpoint.stream_log import Logged
from orchestrator.comm.transports.available_memory import available_bytes
from orchestrator.common.figures import megabytes
from orchestrator.common.values import Span
from orchestrator.config.plan import Data
from orchestrator.data.clients import ClientSampler
from orchestrator.data.division import Division, divide
from orchestrator.data.drawn import Drawn, PassSampler, WeightedSampler
from orchestrator.data.files.stream import Stream
from orchestrator.data.labels import Labels
from orchestrator.data.mixture import Mixture, Sources
from orchestrator.data.order import Epochs
from orchestrator.data.poisson import PoissonSampler
from orchestrator.data.positions import Positions, positions
from orchestrator.data.sampling.orders import COMPUTED, ORDERS, Order
from orchestrator.data.sampling.partitions import PARTITIONS
from orchestrator.data.sampling.population import Whole
from orchestrator.data.sampling.subsets import chosen
from orchestrator.data.sites import Attendance
from orchestrator.errors import ConfigurationError, Inconsistent, PipelineRaised
from orchestrator.optim.privacy.keys import Keys
from orchestrator.pipeline import Pipeline, naming

_ROWS_TO_SHARE = 3  # from so many rows a batch on, batches of equal lengths leave none a single row
_LITTLE_BYTES = 2**20  # for so little nobody asks how much memory there is


class TrainingSamples:
    """Finds the training samples of each micro-batch. order: how many samples a step takes; steps_per_round: the most
    micro-batches that a shard has in a step of the run. Raises PipelineRaised, ConfigurationError."""

    def __init__(
        self,
        pipeline: Pipeline,  # tells the labels
        dataset: Any,  # the training set
        seed: int,  # of the run
        data: Data,  # what of the plan the micro-batches follow from
        attendance: Attendance,  # of the sites
    ) -> None:
        self.dataset = dataset
        self.attendance = attendance
        self.subset: Whole | None = None
        self._length: int | None = None  # of the data set, as its samples were numbered; None of a stream
        self.division: Division | None = None
        self.order: Epochs | Drawn
        self._sampler: Order | PassSampler | WeightedSampler | ClientSampler | Mixture | Positions
        if isinstance(dataset, Stream):
            self.order = self._sampler = order = positions(data)
            if dataset.live and data.stream_log is not None:
                per_round = _steps_per_round(data, order)
                self.dataset = Logged(
                    data.stream_log, lambda steps, shard: order.indices(steps * per_round, shard).start
                )
        else:
            self._number(pipeline, seed, data)
        # Whether which samples are drawn is known only to those who have the keys of a private run.
        self.is_secret = isinstance(self._sampler, PoissonSampler)
        self.file_lengths = _file_lengths(self.dataset)
        self.steps_per_round = _steps_per_round(data, self._sampler)
        self._in_rounds = data.local is not None
        self._has_least = data.partition is not None and "least" in PARTITIONS.options(data.partition.name)
        self._store_timeout_s = data.store_timeout_s

    def _number(self, pipeline: Pipeline, seed: int, data: Data) -> None:
        samples = length_of(self.dataset, "training")
        if data.subset is not None:
            self.subset = chosen(data.subset.name, data.subset.options, samples)
        if self.attendance.is_pinned and hasattr(self.dataset, "only"):
            self.dataset.only(frozenset())  # until it is known whose they are
        self._labels = Labels(pipeline, self.dataset, samples, seed, self.subset)
        samples = samples if self.subset is None else len(self.subset)
        self.division = divide(self._labels, data)
        if self.attendance.is_pinned:
            self.attendance.confine(self.dataset, self.division, _file_lengths(self.dataset), self.subset)
        self.order, self._sampler = _order(seed, self.dataset, samples, data, self.division)
        self._refuse_small_cache()
        self._refuse_large_order(data.order.name, samples)
        with naming("len() of the training dataset"):
            self._length = len(self.dataset)

    def refuse_another_length(self, step: int) -> None:
        """Before a step of the run: raises Inconsistent where the data set has another length by now."""
        if self._length is None:
            return
        with naming("len() of the training dataset"):
            length = len(self.dataset)
        if length != self._length:
            raise Inconsistent(
                f"before step {step}: the training set has {length} samples, and had {self._length} when the run began, by "
                "which its order was made",
                "have the data set number all samples from the beginning, and loss(self, model, batch, step) give no weight to "
                "those that are not to count yet; or train on what has come in another run, with initial=",
                code="pipeline.length-changed",
            )

    def indices(self, step: int, shard: int) -> Sequence[int]:
        """The numbers of the samples of micro-batch (step, shard), in the data set or in the order of its stream."""
        if shard in self.attendance.absent(step // self.steps_per_round):
            return ()
        found = self._sampler.indices(step, shard)
        if self.subset is None:
            return found
        used: list[int] = self.subset[found].tolist()
        return used

    def local_steps(self, step: int, shard: int) -> range:
        """The local steps of a shard in a step of the run, numbered through the run as micro-batches are then; of some the
        micro-batch may be empty."""
        if shard in self.attendance.absent(step):
            return range(0)
        local = (
            self._sampler.local_steps(step, shard) if isinstance(self._sampler, ClientSampler) else self.steps_per_round
        )
        return range(step * self.steps_per_round, step * self.steps_per_round + local)

    def single_row(self, steps: int) -> tuple[int, int] | None:
        """The (step, shard) of a micro-batch that the end of the first epoch leaves a single row, in a run of `steps`; None
        where there is none, or other epochs end otherwise."""
        if self._in_rounds or not isinstance(self.order, Epochs) or (last := self.order.steps_per_epoch - 1) >= steps:
            return None
        return next(((last, shard) for shard in self.attendance.own if len(self.indices(last, shard)) == 1), None)

    def rounds(self, steps: int) -> range:
        """The borders between the steps of a run of `steps`, counted in micro-batches of a shard."""
        return range(0, steps * self.steps_per_round + 1, self.steps_per_round)

    def end_of_stream(self, steps: int) -> int:
        """How many samples shard 0 takes of its stream in a run of `steps`."""
        return self._sampler.indices(steps * self.steps_per_round - 1, 0)[-1] + 1

    def unlock(self, keys: Keys) -> None:
        """From now on it is known which clients play."""
        if isinstance(self._sampler, PoissonSampler):
            self._sampler.unlock(keys)

    def sampled_clients(self, step: int, shard: int) -> tuple[int, ...]:
        """The numbers that a shard computes in a step of the run: its own, or those of the clients that it plays. Each is
        asked for in the place of a shard."""
        return self._sampler.sampled_clients(step, shard) if isinstance(self._sampler, PoissonSampler) else (shard,)

    def shard_of(self, step: int, client: int) -> int:
        """Which shard computes one of its `sampled_clients`."""
        return self._sampler.slot_of(step, client) if isinstance(self._sampler, PoissonSampler) else client

    def partition(self) -> dict[str, Any] | None:
        """How the samples are divided, for a picture; None where they are not."""
        return None if self.division is None else self.division.table(self._labels)

    @property
    def may_wait_s(self) -> float:
        """For files from elsewhere."""
        return self._store_timeout_s if getattr(self.dataset, "is_elsewhere", False) else 0.0

    def where(self, step: int, shard: int) -> str:
        """A micro-batch for messages."""
        round_, local_step = divmod(step, self.steps_per_round)
        when = f"round {round_}, local step {local_step}" if self._in_rounds else f"step {step}"
        return f"{when}{self.whose(round_, shard)}"

    def whose(self, round_: int, shard: int) -> str:
        """Client and shard, to follow a step of the run in a message. Under noise it is told to nobody who plays."""
        if self.is_secret:
            return ""
        client = f", client {self._sampler.client(round_, shard)}" if isinstance(self._sampler, ClientSampler) else ""
        return f"{client}, shard {shard}"

    @property
    def draws_clients(self) -> bool:
        """Whether a shard plays another client in each round."""
        return isinstance(self._sampler, ClientSampler) and self._sampler.are_drawn

    def remedy_for_one_row(self, step: int, shard: int) -> str | None:
        """The remedy if batch normalisation found a single row in a client's micro-batch; None if it is not a client's."""
        if not isinstance(self._sampler, ClientSampler) or self.is_secret:
            return None
        samples = self._sampler.samples(step // self.steps_per_round, shard)
        instead = "or put GroupNorm or LayerNorm in its place"
        if samples == 1:
            given = "set data.partition.least=2" if self._has_least else "give each client two samples or more"
            return f"batch normalisation needs two rows, and this client owns one sample: {given}, {instead}"
        return (
            f"batch normalisation needs two rows, and of this client's {samples} samples a batch was left one: set "
            f"data.batch_size={_ROWS_TO_SHARE * self.order.shards}, so that a shard takes {_ROWS_TO_SHARE} at a time, {instead}"
        )

    def _refuse_small_cache(self) -> None:
        """Raises ConfigurationError where the cache does not hold what a shard reads together."""
        need_room = getattr(self.dataset, "need_room", None)
        if need_room is not None:
            need_room(getattr(self._sampler, "together", 1))

    def _refuse_large_order(self, name: str, samples: int) -> None:
        """Raises ConfigurationError where there is not the memory for what the order of the samples holds."""
        held = getattr(self._sampler, "held_bytes", 0)
        if held > _LITTLE_BYTES and held > (available := available_bytes()):
            raise ConfigurationError(
                [
                    f"data.order: {name} holds {megabytes(held)} in each worker for the order of {samples:,} training samples, "
                    f"and {megabytes(available)} of memory are available"
                ],
                COMPUTED,
                code="data.order-memory",
            )


def _order(
    seed: int, train: Any, samples: int, data: Data, division: Division | None
) -> tuple[Epochs | Drawn, Order | PassSampler | WeightedSampler | ClientSampler | Mixture]:
    """The sampler may be a PoissonSampler, which is asked by client."""
    order = ORDERS.build(data.order.name, data.order.options)
    if isinstance(train, Sources):
        drawn = Drawn(len(train), data.batch_size, data.shards)
        return drawn, Mixture(seed, drawn, train, data.mixture, order, _file_lengths)
    if division is None:
        epochs = Epochs(seed, samples, data.batch_size, data.shards, _file_lengths(train))
        return epochs, order(epochs)
    drawn = Drawn(samples, data.batch_size, data.shards)
    if data.privacy is not None and data.privacy.noise:
        return drawn, PoissonSampler(seed, data, division.parts)
    if len(division.parts) > data.shards or (data.local is not None and data.local.epochs is not None):
        return drawn, ClientSampler(seed, drawn, division.parts, data.local or Span(steps=1))
    by_weight = any(part.weights is not None for part in division.parts)
    return drawn, (WeightedSampler if by_weight else PassSampler)(seed, drawn, division.parts)


def _steps_per_round(data: Data, sampler: object) -> int:
    """The most local steps that a shard has in a step of the run."""
    if isinstance(sampler, ClientSampler):
        return sampler.steps_per_round
    return 1 if data.local is None else data.local.in_steps(0)


def length_of(dataset: Any, which: str) -> int:
    """The length of a data set. which: for messages. Raises PipelineRaised where its samples have no numbers."""
    with naming(f"len() of the {which} dataset"):
        if not _is_addressed(dataset):
            raise PipelineRaised(
                f"the {which} dataset is a {type(dataset).__name__}",
                "return its dataset: batches are made here, of data.batch_size rows, by collate() of the pipeline if it has one"
                if isinstance(dataset, torch.utils.data.DataLoader)
                else "it needs __len__ and __getitem__ (a map-style dataset): exact order needs samples that can be addressed; "
                "what cannot be is read by an orchestrator.Stream, one for each shard",
                code="pipeline.dataset-type",
            )
        length = len(dataset)
        _refuse_columns(dataset, which)
        _refuse_several(dataset, which)
    if length == 0 and which == "training":
        raise PipelineRaised(
            "the training dataset is empty", "look at what datasets() reads", code="pipeline.no-samples"
        )
    return length


def _refuse_columns(dataset: Any, which: str) -> None:
    """Raises PipelineRaised for a table of pandas, whose numbers are names of columns."""
    if any(kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas.") for kind in type(dataset).__mro__):
        raise PipelineRaised(
            f"the {which} dataset is a DataFrame of pandas, whose [0] is a column and no row",
            "return its rows, frame.to_dict('records'), or a TensorDataset of torch.tensor(frame[COLUMNS].to_numpy())",
            code="pipeline.data-frame",
        )


def _refuse_several(dataset: Any, which: str) -> None:
    """Raises PipelineRaised for a mapping or a list of data sets in the place of one."""
    if isinstance(dataset, dict | UserDict):  # another mapping may be read by number, as a TensorDict
        several = len(dataset) > 0 and 0 not in dataset
    else:
        several = isinstance(dataset, list | tuple) and isinstance(next(iter(dataset), None), torch.utils.data.Dataset)
    if several:
        raise PipelineRaised(
            f"the {which} dataset is a {type(dataset).__name__} of {len(dataset)} data sets",
            "return one, such as torch.utils.data.ConcatDataset([...]); metrics() can tell samples apart by what they hold"
            if which == "validation"
            else "return one, such as torch.utils.data.ConcatDataset([...]), or a dict of several and data.mixture",
            code="pipeline.several-datasets",
        )


def _is_addressed(dataset: Any) -> bool:
    """Whether samples are read by number, whatever the class inherits from: torch's IterableDataset only seems to have
    __getitem__, MosaicML's StreamingDataset has it."""
    read = getattr(type(dataset), "__getitem__", None)
    return hasattr(dataset, "__len__") and read not in (None, torch.utils.data.Dataset.__getitem__)


def _file_lengths(dataset: Any) -> Sequence[int] | None:
    """How many samples each file of a training set holds, where it says so (`file_lengths`)."""
    lengths = getattr(dataset, "file_lengths", None)
    if lengths is not None and sum(lengths) != len(dataset):
        raise PipelineRaised(
            f"file_lengths of the training dataset add up to {sum(lengths)}, and its length is {len(dataset)}",
            "let file_lengths say how many samples each file holds, in the order of the indices",
            code="pipeline.file-lengths",
        )
    return lengths
