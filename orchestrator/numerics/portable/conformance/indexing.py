"""Embeddings, indexing, and what moves elements."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case

CASES: dict[str, Case] = {
    "embedding": lambda d: d.both(lambda w, i: F.embedding(i, w), d(65, 33), d.integers(65, 8, 32)),
    "embedding padded": lambda d: d.both(
        lambda w, i: F.embedding(i, w, padding_idx=0), d(65, 33), d.integers(65, 8, 32)
    ),
    "embedding bag sum": lambda d: d.both(
        lambda w, i: F.embedding_bag(i, w, mode="sum"), d(65, 33), d.integers(65, 8, 12)
    ),
    "embedding bag mean": lambda d: d.both(
        lambda w, i: F.embedding_bag(i, w, mode="mean"), d(65, 33), d.integers(65, 8, 12)
    ),
    "embedding bag max": lambda d: d.both(
        lambda w, i: F.embedding_bag(i, w, mode="max"), d(65, 33), d.integers(65, 8, 12)
    ),
    "gather": lambda d: d.both(lambda x, i: x.gather(1, i), d(20, 33), d.integers(33, 20, 50)),
    "scatter add": lambda d: d.both(
        lambda x, i: torch.zeros(20, 33).scatter_add(1, i, x), d(20, 50), d.integers(33, 20, 50)
    ),
    "index select": lambda d: d.both(lambda x, i: x.index_select(0, i), d(20, 33), d.integers(20, 50)),
    "index": lambda d: d.both(lambda x, i: x[i], d(20, 33), d.integers(20, 50)),
    "index of pairs": lambda d: d.both(lambda x, i, j: x[i, j], d(20, 33), d.integers(20, 50), d.integers(33, 50)),
    "index add": lambda d: d.both(lambda x, i: torch.zeros(20, 33).index_add(0, i, x), d(50, 33), d.integers(20, 50)),
    "index copy": lambda d: d.both(lambda x: torch.zeros(20, 33).index_copy(0, torch.arange(9) * 2, x), d(9, 33)),
    "index put adding": lambda d: d.both(
        lambda x, i: torch.zeros(20, 33).index_put((i,), x, accumulate=True), d(50, 33), d.integers(20, 50)
    ),
    "masked fill": lambda d: d.both(lambda x: x.masked_fill(x > 0.5, 0.0), d(20, 33)),
    "masked select": lambda d: d.both(lambda x: x.masked_select(x > 0.5), d(20, 33)),
    "take along": lambda d: d.both(lambda x, i: x.take_along_dim(i, 1), d(20, 33), d.integers(33, 20, 7)),
    "one hot": lambda d: F.one_hot(d.integers(10, 30), 10),
    "cat": lambda d: d.both(lambda a, b: torch.cat([a, b], 1), d(20, 33), d(20, 9)),
    "stack": lambda d: d.both(lambda a, b: torch.stack([a, b]), d(20, 33), d(20, 33)),
    "split": lambda d: d.both(lambda x: x.split(7, 1), d(20, 33)),
    "chunk of three": lambda d: d.both(lambda x: x.chunk(3, -1), d(20, 33)),
    "permute": lambda d: d.both(lambda x: x.permute(2, 0, 1).contiguous(), d(5, 6, 7)),
    "roll": lambda d: d.both(lambda x: x.roll(3, 1), d(20, 33)),
    "flip": lambda d: d.both(lambda x: x.flip(1), d(20, 33)),
    "repeat": lambda d: d.both(lambda x: x.repeat(2, 3), d(20, 33)),
    "repeat interleave": lambda d: d.both(lambda x: x.repeat_interleave(3, 0), d(20, 33)),
    "lower triangle": lambda d: d.both(torch.tril, d(33, 33)),
    "diagonal": lambda d: d.both(torch.diag_embed, d(5, 9)),
    "scatter reduce mean": lambda d: d.both(
        lambda x, i: torch.zeros(20, 33).scatter_reduce(1, i, x, "mean"), d(20, 50), d.integers(33, 20, 50)
    ),
    "scatter reduce max": lambda d: d.both(
        lambda x, i: torch.zeros(20, 33).scatter_reduce(1, i, x, "amax"), d(20, 50), d.integers(33, 20, 50)
    ),
}
