"""Sums, norms, softmax, scans and sorting."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics import foreach
from orchestrator.numerics.portable.conformance.drawing import Case

CASES: dict[str, Case] = {
    "sum": lambda d: d.both(torch.sum, d(100001)),
    "sum over rows": lambda d: d.both(lambda x: x.sum(0), d(1000, 37)),
    "sum over columns": lambda d: d.both(lambda x: x.sum(1), d(37, 1000)),
    "sum over the middle": lambda d: d.both(lambda x: x.sum(1), d(13, 40, 17)),
    "sum strided": lambda d: d.both(lambda x: x.transpose(0, 2).sum(1), d(13, 40, 17)),
    "sum float64": lambda d: d.both(torch.sum, d(10001).double()),
    "mean": lambda d: d.both(lambda x: x.mean(1), d(64, 999)),
    "mean of all": lambda d: d.both(torch.mean, d(64, 99)),
    "product": lambda d: d.both(lambda x: x.prod(1), d.positive(20, 17)),
    "variance": lambda d: d.both(lambda x: x.var(0), d(64, 99)),
    "standard deviation": lambda d: d.both(lambda x: x.std(1), d(64, 99)),
    "variance of all": lambda d: d.both(torch.var, d(64, 99)),
    "norm": lambda d: d.both(torch.linalg.vector_norm, d(9999)),
    "norm over rows": lambda d: d.both(lambda x: torch.linalg.vector_norm(x, dim=0), d(99, 64)),
    "norm 1": lambda d: d.both(lambda x: torch.linalg.vector_norm(x, 1, dim=1), d(99, 64)),
    "norm 3": lambda d: d.both(lambda x: torch.linalg.vector_norm(x, 3, dim=1), d(99, 64)),
    "frobenius norm": lambda d: d.both(torch.linalg.matrix_norm, d(33, 44)),
    "foreach norm": lambda d: list(foreach.norms([d(999), d(33, 44), d(7)])),
    "clip grad norm": lambda d: _clipped([d(999), d(33, 44), d(7)]),
    "max": lambda d: d.both(lambda x: x.max(1)[0], d(64, 99)),
    "min of all": lambda d: d.both(torch.min, d(64, 99)),
    "amax": lambda d: d.both(lambda x: x.amax(0), d(64, 99)),
    "argmax": lambda d: d(64, 99).argmax(1),
    "logsumexp": lambda d: d.both(lambda x: x.logsumexp(1), d(64, 99)),
    "softmax": lambda d: d.both(lambda x: F.softmax(x, -1), d(50, 333)),
    "softmax over rows": lambda d: d.both(lambda x: F.softmax(x, 0), d(50, 33)),
    "softmax over the middle": lambda d: d.both(lambda x: F.softmax(x, 1), d(5, 13, 33)),
    "log softmax": lambda d: d.both(lambda x: F.log_softmax(x, -1), d(50, 333)),
    "log softmax over rows": lambda d: d.both(lambda x: F.log_softmax(x, 0), d(50, 33)),
    "softmin": lambda d: d.both(lambda x: F.softmin(x, -1), d(50, 33)),
    "cumulative sum": lambda d: d.both(lambda x: x.cumsum(1), d(20, 333)),
    "cumulative product": lambda d: d.both(lambda x: x.cumprod(1), d.positive(20, 17)),
    "cumulative max": lambda d: d.both(lambda x: x.cummax(1)[0], d(20, 33)),
    "logcumsumexp": lambda d: d.both(lambda x: x.logcumsumexp(1), d(20, 33)),
    "sort": lambda d: d.both(lambda x: x.sort(1)[0], d(20, 333)),
    "argsort": lambda d: d(20, 333).argsort(dim=1, stable=True),
    "topk": lambda d: d.both(lambda x: x.topk(5)[0], d(20, 99)),
    "kth value": lambda d: d.both(lambda x: x.kthvalue(5)[0], d(20, 99)),
    "median": lambda d: d.both(lambda x: x.median(1)[0], d(20, 99)),
    "quantile": lambda d: d.both(lambda x: x.quantile(0.3, 1), d(20, 99)),
    "unique": lambda d: d.integers(20, 300).unique(return_counts=True),  # type: ignore[no-untyped-call]
    "histogram": lambda d: torch.histc(d(999), 20, -3, 3),
    "bincount": lambda d: d.integers(20, 300).bincount(),
    "searchsorted": lambda d: torch.searchsorted(d(99).sort()[0], d(50)),
    "cdist": lambda d: d.both(torch.cdist, d(12, 9), d(14, 9)),
    "cdist many": lambda d: d.both(torch.cdist, d(40, 9), d(44, 9)),
    "pdist": lambda d: d.both(F.pdist, d(12, 9)),
    "cosine similarity": lambda d: d.both(F.cosine_similarity, d(20, 33), d(20, 33)),
    "pairwise distance": lambda d: d.both(F.pairwise_distance, d(20, 33), d(20, 33)),
    "trace": lambda d: d.both(torch.trace, d(33, 33)),
    "count nonzero": lambda d: torch.count_nonzero(d.integers(3, 99)),
}


def _clipped(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return [nn.utils.clip_grad_norm_(parameters, 1.0), *gradients]
