"""Pooling, interpolation, padding and sampling of images."""

from __future__ import annotations

from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case

CASES: dict[str, Case] = {
    "max pool 1d": lambda d: d.both(lambda x: F.max_pool1d(x, 3), d(4, 8, 31)),
    "max pool 2d": lambda d: d.both(lambda x: F.max_pool2d(x, 2), d(4, 16, 12, 12)),
    "max pool 2d overlapping": lambda d: d.both(lambda x: F.max_pool2d(x, 3, 2, 1), d(4, 16, 13, 13)),
    "max pool 3d": lambda d: d.both(lambda x: F.max_pool3d(x, 2), d(2, 4, 6, 6, 6)),
    "average pool 1d": lambda d: d.both(lambda x: F.avg_pool1d(x, 3), d(4, 8, 31)),
    "average pool 2d": lambda d: d.both(lambda x: F.avg_pool2d(x, 3, 2, 1), d(4, 16, 13, 13)),
    "average pool 3d": lambda d: d.both(lambda x: F.avg_pool3d(x, 2), d(2, 4, 6, 6, 6)),
    "adaptive average pool 1d": lambda d: d.both(lambda x: F.adaptive_avg_pool1d(x, 5), d(4, 8, 31)),
    "adaptive average pool 2d": lambda d: d.both(lambda x: F.adaptive_avg_pool2d(x, (3, 5)), d(4, 16, 13, 13)),
    "global average pool 2d": lambda d: d.both(lambda x: F.adaptive_avg_pool2d(x, 1), d(4, 16, 13, 13)),
    "adaptive max pool 2d": lambda d: d.both(lambda x: F.adaptive_max_pool2d(x, 4), d(4, 16, 13, 13)),
    "lp pool 2d": lambda d: d.both(lambda x: F.lp_pool2d(x, 2, 2), d.positive(2, 4, 8, 8)),
    "interpolate nearest": lambda d: d.both(lambda x: F.interpolate(x, scale_factor=2), d(2, 4, 7, 7)),
    "interpolate nearest exact": lambda d: d.both(
        lambda x: F.interpolate(x, size=(11, 5), mode="nearest-exact"), d(2, 4, 7, 7)
    ),
    "interpolate linear": lambda d: d.both(lambda x: F.interpolate(x, size=23, mode="linear"), d(2, 4, 17)),
    "interpolate bilinear": lambda d: d.both(
        lambda x: F.interpolate(x, size=(15, 11), mode="bilinear", align_corners=False), d(2, 4, 7, 7)
    ),
    "interpolate bilinear smoothed": lambda d: d.both(
        lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True), d(2, 4, 13, 13)
    ),
    "interpolate bicubic": lambda d: d.both(lambda x: F.interpolate(x, size=(15, 11), mode="bicubic"), d(2, 4, 7, 7)),
    "interpolate trilinear": lambda d: d.both(
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), d(1, 3, 4, 5, 5)
    ),
    "grid sample": lambda d: d.both(
        lambda x, g: F.grid_sample(x, g, align_corners=False), d(2, 4, 7, 7), d.uniform(2, 5, 6, 2)
    ),
    "affine grid": lambda d: d.both(lambda t: F.affine_grid(t, [2, 3, 6, 7], align_corners=False), d(2, 2, 3)),
    "pad constant": lambda d: d.both(lambda x: F.pad(x, (1, 2, 3, 4)), d(2, 3, 5, 6)),
    "pad reflect": lambda d: d.both(lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), d(2, 3, 5, 6)),
    "pad replicate": lambda d: d.both(lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), d(2, 3, 5, 6)),
    "pad circular": lambda d: d.both(lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), d(2, 3, 5, 6)),
}
