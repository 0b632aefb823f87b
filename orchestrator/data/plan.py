"""The part of the plan that says which samples a micro-batch holds and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.common.registry import Variant
from orchestrator.common.values import Span, Steps


@dataclass(frozen=True)
class Data:
    """batch_size: rows of a whole step; loaders: processes per worker that fetch batches ahead; partition: which samples a
    shard draws from, None for all; subset: which samples the run has at all, None for all; seed: of `datasets()`, None: that of
    the run; order: in which an epoch visits the samples; mixture: of a training set of several sources, the weight of each;
    sampling: with which weights, None for each once in a pass; local: how
    long a shard trains by itself in a step of the run, None for a single micro-batch; privacy: None where contributions are
    added as they are; cache_bytes, cache_folder: of files from elsewhere on each node, None: in the user's cache folder;
    store_timeout_s: for how long a store that does not answer is asked; sites: of each the shards whose bytes are read there
    only; sits_out: the run goes on without a site that is away; sat_out: by step of the run the shards that sat out in one that
    is repeated; stream_log: a file with what live streams gave in a run
    that is repeated."""

    shards: int
    batch_size: Steps
    loaders: int
    partition: Variant | None = None
    sampling: Variant | None = None
    local: Span | None = None
    privacy: Privacy | None = None
    subset: Variant | None = None
    seed: int | None = None
    order: Variant = field(default_factory=lambda: Variant("shuffled"))
    mixture: Mapping[str, float] = field(default_factory=dict)
    cache_bytes: int = 10**10
    cache_folder: str | None = None
    store_timeout_s: float = 600.0
    stream_log: str | None = None
    sites: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sits_out: bool = False
    sat_out: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def cache(self) -> tuple[int, str | None, float]:
        """As `data.files.cache.use` takes it."""
        return self.cache_bytes, self.cache_folder, self.store_timeout_s


@dataclass(frozen=True)
class Declared:
    """What the pipeline may read, as the settings say: files and folders, and variables of the environment."""

    inputs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Privacy:
    """What is done to contributions so that little is told of single ones. clipping_norm: of each; noise: its standard
    deviation in clipping norms, 0 for none; delta: of the promise; clients: how many there are, as everybody may know, of
    which `expected` play in a round on average."""

    clipping_norm: float
    noise: float
    delta: float
    clients: int
    expected: int

    @property
    def rate(self) -> float:
        """The chance of a client to play in a round."""
        return min(1.0, self.expected / self.clients)
