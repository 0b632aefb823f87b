"""The part of the plan that says which samples a micro-batch holds and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.common.registry import Variant
from orchestrator.common.values import Span, Steps


@dataclass(frozen=True)
class Data:
    """Which samples a micro-batch holds, and where they come from."""

    shards: int  # the slices into which each step is divided
    batch_size: Steps  # rows of a whole step, over all shards
    loaders: int  # processes per worker that fetch batches ahead; 0: the worker fetches them
    partition: Variant | None = None  # which samples a shard draws from; None for all
    sampling: Variant | None = None  # with which weights samples are drawn; None for each once in a pass
    local: Span | None = None  # how long a shard trains by itself in a step; None for a single micro-batch
    privacy: Privacy | None = None  # what is done to contributions; None where they are added as they are
    subset: Variant | None = None  # which samples the run has at all; None for all
    seed: int | None = None  # of `datasets()`; None for that of the run
    order: Variant = field(default_factory=lambda: Variant("shuffled"))  # in which an epoch visits the samples
    mixture: Mapping[str, float] = field(default_factory=dict)  # by source of the training set, its weight
    cache_bytes: int = 10**10  # of files from elsewhere, on each node
    cache_folder: str | None = None  # where a node keeps them; None for the user's cache folder
    store_timeout_s: float = 600.0  # how long a store that does not answer is asked again
    stream_log: str | None = None  # a file with what live streams gave in a run that is repeated; None otherwise
    # by site, the shards whose bytes are read there only
    sites: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sits_out: bool = False  # whether the run goes on without a site that is away
    # by step of a run that is repeated, the shards that sat out in it
    sat_out: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def step_samples(self) -> int | None:
        """Samples of a step; None where that changes, is secret, or hangs on how much each shard trains by itself."""
        is_known = self.batch_size.is_constant and self.local is None and self.privacy is None
        return self.batch_size.at(0) if is_known else None

    @property
    def cache(self) -> tuple[int, str | None, float]:
        """As `data.files.cache.use` takes it."""
        return self.cache_bytes, self.cache_folder, self.store_timeout_s


@dataclass(frozen=True)
class Declared:
    """The declared inputs of the pipeline, as the settings say: files and folders, and variables of the environment."""

    inputs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Privacy:
    """The treatment of contributions that hides single ones. clipping_norm: of each; noise: its standard deviation in
    clipping norms, 0 for none; delta: of the promise; clients: how many there are, as everybody may know, of which `expected`
    play in a round on average."""

    clipping_norm: float
    noise: float
    delta: float
    clients: int
    expected: int

    @property
    def rate(self) -> float:
        """The chance of a client to play in a round."""
        return min(1.0, self.expected / self.clients)
