"""Normalisation."""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case

CASES: dict[str, Case] = {
    "batch norm 1d": lambda d: d.both(d.module(nn.BatchNorm1d(37)), d(33, 37)),
    "batch norm 2d": lambda d: d.both(d.module(nn.BatchNorm2d(16)), d(8, 16, 7, 9)),
    "batch norm 3d": lambda d: d.both(d.module(nn.BatchNorm3d(5)), d(4, 5, 3, 4, 6)),
    "batch norm evaluating": lambda d: d.both(
        lambda x, w, b: F.batch_norm(x, d(16), d.positive(16), w, b), d(8, 16, 7, 9), d(16), d(16)
    ),
    "layer norm": lambda d: d.both(lambda x, w, b: F.layer_norm(x, (64,), w, b), d(40, 64), d(64), d(64)),
    "layer norm odd": lambda d: d.both(lambda x: F.layer_norm(x, (7, 11)), d(5, 7, 11)),
    "layer norm wide": lambda d: d.both(lambda x, w: F.layer_norm(x, (1000,), w), d(6, 1000), d(1000)),
    "group norm": lambda d: d.both(lambda x, w, b: F.group_norm(x, 4, w, b), d(3, 16, 6, 5), d(16), d(16)),
    "instance norm": lambda d: d.both(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), d(3, 8, 6, 5), d(8), d(8)),
    "rms norm": lambda d: d.both(lambda x, w: F.rms_norm(x, (64,), w), d(40, 64), d(64)),
    "local response norm": lambda d: d.both(lambda x: F.local_response_norm(x, 3), d(2, 8, 5, 5)),
    "normalize": lambda d: d.both(lambda x: F.normalize(x), d(20, 33)),
    "weight norm": lambda d: d.both(d.module(nn.utils.parametrizations.weight_norm(nn.Linear(20, 15))), d(7, 20)),
    "renorm": lambda d: d.both(lambda x: x.renorm(2, 0, 1.5), d(12, 20)),
}
