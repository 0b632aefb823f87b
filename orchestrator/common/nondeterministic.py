"""Operations of torch that have no deterministic kernel, mostly on CUDA, and what to write instead.

torch raises for them by a name of its own, such as "reflection_pad2d_backward_cuda", many of them in the backward pass, where
no line of the user's stands. `raised` finds the row of the table; its `nodes` find the operation in autograd's graph.
`docs/gpu.md` holds the table, too. An operation without a row is told by torch's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RAISED = re.compile(r"(.+?) does not have a deterministic implementation")
GENERAL = "put another operation in its place; one that only GPUs lack will do with run.device=cpu"


@dataclass(frozen=True)
class Operation:
    """A row of the table."""

    name: str  # as a user calls it
    instead: str  # what to write in its place
    sign: re.Pattern[str]  # of the names by which torch raises
    nodes: tuple[str, ...] = ()  # beginnings of its names in autograd's graph; none where only its forward pass raises


def _row(name: str, sign: str, instead: str, *nodes: str) -> Operation:
    return Operation(name, instead, re.compile(sign), nodes)


OPERATIONS = (
    _row(
        "cross-entropy over images",
        r"nll_loss2d",
        "F.cross_entropy(x.movedim(1, -1).flatten(0, -2), target.flatten())",
        "NllLoss2D",
    ),
    _row(
        "AdaptiveAvgPool2d to more than 1x1",
        r"adaptive_avg_pool2d",
        "AvgPool2d with kernel_size=in // out where that divides; or its input in memory_format=torch.channels_last",
        "AdaptiveAvgPool2D",
    ),
    _row(
        "AdaptiveAvgPool3d to more than 1x1x1",
        r"adaptive_avg_pool3d",
        "where sizes divide, x.unflatten(dim, (out, -1)) of each dimension, and the mean of the parts",
        "AdaptiveAvgPool3D",
    ),
    _row(
        "AdaptiveMaxPool2d",
        r"adaptive_max_pool2d",
        "MaxPool2d with kernel_size=in // out where that divides",
        "AdaptiveMaxPool2D",
    ),
    _row(
        "AvgPool3d",
        r"avg_pool3d",
        "AvgPool2d with the depth folded into the rows, then AvgPool1d over the depth",
        "AvgPool3D",
    ),
    _row(
        "FractionalMaxPool2d and 3d",
        r"fractional_max_pool",
        "MaxPool2d or MaxPool3d",
        "FractionalMaxPool",
    ),
    _row("MaxUnpool", r"max_unpooling", "F.interpolate(mode='nearest'), or a transposed convolution"),
    _row(
        "linear and bicubic interpolation, and antialias=True",
        r"upsample_\w*(linear|bicubic|_aa)",
        "bilinear without antialias, of one dimension as of an image one pixel high; bilinear and trilinear have kernels",
        "UpsampleLinear1D",
        "UpsampleBicubic2D",
        "UpsampleBilinear2DAa",
    ),
    _row(
        "padding by reflection, but for images",
        r"reflection_pad[13]d",
        "mode='replicate'; of a sequence, F.pad(x.unsqueeze(-2), (left, right, 0, 0), mode='reflect').squeeze(-2); of a "
        "volume, torch.cat of the edges, flipped, with the rest",
        "ReflectionPad1D",
        "ReflectionPad3D",
    ),
    _row(
        "CTCLoss",
        r"ctc_loss",
        "cuDNN's, which torch takes for float32, blank=0, inputs of full length, and targets joined in one dimension, as "
        "targets.int().cpu()",
        "CtcLoss",
    ),
    _row(
        "grid_sample",
        r"grid_sampler",
        "F.interpolate where the grid only scales; or the four neighbours taken by index, x[:, :, rows, columns], and weighted",
        "GridSampler",
    ),
    _row(
        "cumsum of floats",
        r"cumsum",
        "cumsum of integers; or a triangular product, x @ torch.ones(n, n, device=x.device).triu(); for cumprod of positive "
        "numbers the exponential of that product, of x.log()",
        "Cumsum",
        "Cumprod",
    ),
    _row("EmbeddingBag with mode='max'", r"embedding_bag\w*max", "Embedding, and .amax(1) of it", "EmbeddingBag"),
    _row("histc", r"histc", "torch.bincount of torch.bucketize(x, edges), without weights"),
    _row("bincount with weights", r"bincount", "torch.zeros(n, device=x.device).index_add(0, x, weights)"),
    _row(
        "scatter_reduce with 'prod'",
        r"scatter_reduce\w*prod",
        "scatter_add of logarithms, and exp, where factors are above 0",
        "ScatterReduce",
    ),
    _row("kthvalue", r"kthvalue", "x.sort(dim=dim, stable=True).values.select(dim, k - 1)"),
    _row("median with a dimension", r"median", "x.sort(dim=dim, stable=True).values.select(dim, (n - 1) // 2)"),
    _row("put_", r"^put_$", "index_put_, with accumulate=True where indices repeat"),
)


def raised(error: BaseException) -> Operation | None:
    """The operation that torch has refused, None where the error says something else."""
    found = _RAISED.search(str(error))
    if found is None:
        return None
    name = found.group(1)
    return next((row for row in OPERATIONS if row.sign.search(name)), _row(name, re.escape(name), GENERAL))


def known(operator: str) -> Operation | None:
    """The row of an operator of torch's dispatcher, such as "aten::grid_sampler_2d_backward"; None where none has it."""
    name = operator.partition("::")[2].partition(".")[0]
    return next((row for row in OPERATIONS if row.sign.search(name)), None)
