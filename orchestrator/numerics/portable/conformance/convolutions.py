"""Convolutions in one, two and three dimensions, and their transposes, with the shapes that choose other kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case


def _last(image: Tensor) -> Tensor:
    return image.to(memory_format=torch.channels_last)


CASES: dict[str, Case] = {
    "conv1d": lambda d: d.both(lambda x, w, b: F.conv1d(x, w, b, padding=2), d(4, 8, 50), d(16, 8, 5), d(16)),
    "conv1d dilated": lambda d: d.both(lambda x, w: F.conv1d(x, w, dilation=3), d(4, 8, 50), d(16, 8, 3)),
    "conv1d causal depthwise": lambda d: d.both(
        lambda x, w: F.conv1d(x, w, padding=3, groups=8), d(2, 8, 40), d(8, 1, 4)
    ),
    "conv2d": lambda d: d.both(lambda x, w, b: F.conv2d(x, w, b, padding=1), d(8, 16, 12, 12), d(32, 16, 3, 3), d(32)),
    "conv2d one channel": lambda d: d.both(
        lambda x, w, b: F.conv2d(x, w, b, padding=1), d(8, 1, 8, 8), d(16, 1, 3, 3), d(16)
    ),
    "conv2d three channels": lambda d: d.both(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=3), d(2, 3, 32, 32), d(16, 3, 7, 7), d(16)
    ),
    "conv2d 1x1": lambda d: d.both(F.conv2d, d(4, 24, 9, 9), d(40, 24, 1, 1), d(40)),
    "conv2d strided": lambda d: d.both(lambda x, w: F.conv2d(x, w, stride=2), d(4, 16, 15, 15), d(24, 16, 3, 3)),
    "conv2d dilated": lambda d: d.both(lambda x, w: F.conv2d(x, w, dilation=2), d(4, 16, 15, 15), d(24, 16, 3, 3)),
    "conv2d grouped": lambda d: d.both(lambda x, w: F.conv2d(x, w, groups=4), d(4, 16, 10, 10), d(24, 4, 3, 3)),
    "conv2d depthwise": lambda d: d.both(
        lambda x, w: F.conv2d(x, w, padding=1, groups=16), d(4, 16, 10, 10), d(16, 1, 3, 3)
    ),
    "conv2d 5x5": lambda d: d.both(lambda x, w, b: F.conv2d(x, w, b), d(4, 6, 14, 14), d(16, 6, 5, 5), d(16)),
    "conv2d odd channels": lambda d: d.both(lambda x, w: F.conv2d(x, w, padding=1), d(3, 13, 11, 9), d(19, 13, 3, 3)),
    "conv2d channels last": lambda d: d.both(
        lambda x, w: F.conv2d(_last(x), _last(w), padding=1), d(4, 16, 10, 10), d(32, 16, 3, 3)
    ),
    "conv2d one image": lambda d: d.both(lambda x, w: F.conv2d(x, w, padding=1), d(1, 32, 16, 16), d(64, 32, 3, 3)),
    "conv2d same": lambda d: d.both(lambda x, w: F.conv2d(x, w, padding="same"), d(2, 8, 9, 9), d(8, 8, 4, 4)),
    "conv2d bfloat16": lambda d: d.both(
        lambda x, w: F.conv2d(x, w, padding=1), d(4, 16, 10, 10).bfloat16(), d(32, 16, 3, 3).bfloat16()
    ),
    "conv3d": lambda d: d.both(lambda x, w: F.conv3d(x, w, padding=1), d(2, 4, 6, 8, 8), d(8, 4, 3, 3, 3)),
    "conv transpose 1d": lambda d: d.both(lambda x, w: F.conv_transpose1d(x, w, stride=2), d(2, 8, 20), d(8, 12, 4)),
    "conv transpose 2d": lambda d: d.both(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1), d(4, 16, 7, 7), d(16, 8, 4, 4), d(8)
    ),
    "conv transpose 2d grouped": lambda d: d.both(
        lambda x, w: F.conv_transpose2d(x, w, groups=2, output_padding=0), d(4, 16, 7, 7), d(16, 4, 3, 3)
    ),
    "conv transpose 3d": lambda d: d.both(lambda x, w: F.conv_transpose3d(x, w), d(2, 4, 4, 5, 5), d(4, 6, 3, 3, 3)),
    "unfold": lambda d: d.both(lambda x: F.unfold(x, 3, padding=1), d(2, 4, 8, 8)),
    "fold": lambda d: d.both(lambda x: F.fold(x, (8, 8), 3, padding=1), d(2, 36, 64)),
    "pixel shuffle": lambda d: d.both(lambda x: F.pixel_shuffle(x, 2), d(2, 16, 5, 5)),
}
