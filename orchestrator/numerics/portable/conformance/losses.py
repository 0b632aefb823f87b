"""Losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case, Draw


def _classes(d: Draw) -> torch.Tensor:
    return d.integers(65, 50)


def _signs(d: Draw) -> torch.Tensor:
    return d.mask(40).float() * 2 - 1


CASES: dict[str, Case] = {
    "cross entropy": lambda d: d.both(F.cross_entropy, d(50, 65), _classes(d)),
    "cross entropy smoothed": lambda d: d.both(
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), d(50, 65), _classes(d)
    ),
    "cross entropy weighted": lambda d: d.both(_weighted(d.positive(65)), d(50, 65), _classes(d)),
    "cross entropy of shares": lambda d: d.both(lambda x: F.cross_entropy(x, torch.full((50, 65), 1 / 65)), d(50, 65)),
    "cross entropy of images": lambda d: d.both(F.cross_entropy, d(2, 7, 9, 9), d.integers(7, 2, 9, 9)),
    "negative log likelihood": lambda d: d.both(F.nll_loss, d(50, 65), _classes(d)),
    "mean squared error": lambda d: d.both(F.mse_loss, d(33, 40), d(33, 40)),
    "mean absolute error": lambda d: d.both(F.l1_loss, d(33, 40), d(33, 40)),
    "smooth l1": lambda d: d.both(F.smooth_l1_loss, d(33, 40), d(33, 40)),
    "huber": lambda d: d.both(F.huber_loss, d(33, 40), d(33, 40)),
    "binary cross entropy": lambda d: d.both(
        lambda x: F.binary_cross_entropy(x, torch.full((33, 40), 0.3)), d.uniform(33, 40, low=0.01, high=0.99)
    ),
    "binary cross entropy with logits": lambda d: d.both(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y), d(33, 40), d.uniform(33, 40, low=0, high=1)
    ),
    "kl divergence": lambda d: d.both(
        lambda x, y: F.kl_div(x, y, reduction="batchmean"), d(33, 40), d.positive(33, 40)
    ),
    "poisson nll": lambda d: d.both(F.poisson_nll_loss, d(33, 40), d.positive(33, 40)),
    "gaussian nll": lambda d: d.both(F.gaussian_nll_loss, d(33, 40), d(33, 40), d.positive(33, 40)),
    "hinge embedding": lambda d: d.both(lambda x: F.hinge_embedding_loss(x, torch.ones(33, 40)), d(33, 40)),
    "margin ranking": lambda d: d.both(lambda a, b: F.margin_ranking_loss(a, b, torch.ones(40)), d(40), d(40)),
    "soft margin": lambda d: d.both(lambda x: F.soft_margin_loss(x, torch.ones(33, 40)), d(33, 40)),
    "multi margin": lambda d: d.both(F.multi_margin_loss, d(50, 65), _classes(d)),
    "multilabel soft margin": lambda d: d.both(
        lambda x, y: F.multilabel_soft_margin_loss(x, y), d(33, 40), d.uniform(33, 40, low=0, high=1)
    ),
    "triplet margin": lambda d: d.both(F.triplet_margin_loss, d(20, 33), d(20, 33), d(20, 33)),
    "cosine embedding": lambda d: d.both(_cosine(_signs(d)), d(40, 33), d(40, 33)),
    "connectionist temporal classification": lambda d: d.both(
        lambda x: F.ctc_loss(
            x.log_softmax(-1), torch.ones(3, 5, dtype=torch.long), torch.tensor([20, 20, 20]), torch.tensor([5, 4, 3])
        ),
        d(20, 3, 11),
    ),
}


def _weighted(weight: torch.Tensor) -> Callable[..., Any]:
    return lambda x, y: F.cross_entropy(x, y, weight)


def _cosine(signs: torch.Tensor) -> Callable[..., Any]:
    return lambda a, b: F.cosine_embedding_loss(a, b, signs)
