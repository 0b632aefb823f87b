"""Operations that torch refuses as not deterministic are known by name and in a graph, and the replacement named computes the
same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.common.nondeterministic import OPERATIONS, Operation, raised

pytestmark = pytest.mark.slow

# As torch names them where it raises, in its own tests of that.
NAMES = {
    "cross-entropy over images": ["nll_loss2d_forward_out_cuda_template"],
    "AdaptiveAvgPool2d to more than 1x1": ["adaptive_avg_pool2d_backward_cuda"],
    "AdaptiveAvgPool3d to more than 1x1x1": ["adaptive_avg_pool3d_backward_cuda"],
    "AdaptiveMaxPool2d": ["adaptive_max_pool2d_backward_cuda"],
    "AvgPool3d": ["avg_pool3d_backward_cuda"],
    "FractionalMaxPool2d and 3d": ["fractional_max_pool2d_backward_cuda", "fractional_max_pool3d_backward_cuda"],
    "MaxUnpool": ["max_unpooling2d_forward_out", "max_unpooling3d_forward_out"],
    "linear and bicubic interpolation, and antialias=True": [
        "upsample_linear1d_backward_out_cuda",
        "upsample_bicubic2d_backward_out_cuda",
        "upsample_bicubic2d_aa_backward_out_cuda",
    ],
    "padding by reflection, but for images": [
        "reflection_pad1d_backward_out_cuda",
        "reflection_pad3d_backward_out_cuda",
    ],
    "CTCLoss": ["ctc_loss_backward_gpu"],
    "grid_sample": ["grid_sampler_2d_backward_cuda", "grid_sampler_3d_backward_cuda"],
    "cumsum of floats": ["cumsum_cuda_kernel"],
    "EmbeddingBag with mode='max'": ["embedding_bag_backward_cuda_max"],
    "histc": ["_histc_cuda"],
    "bincount with weights": ["_bincount_cuda"],
    "scatter_reduce with 'prod'": ["scatter_reduce_cuda_prod_"],
    "kthvalue": ["kthvalue CUDA"],
    "median with a dimension": ["median CUDA with indices output"],
    "put_": ["put_"],
}
SAID = " does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can turn"


def of(*shape: int) -> Tensor:
    torch.manual_seed(2)
    return torch.rand(shape, requires_grad=True)


def over_depth(x: Tensor) -> Tensor:
    rows = x.movedim(2, -1)
    pooled = functional.avg_pool1d(rows.flatten(0, 3).unsqueeze(1), 2).squeeze(1)
    return pooled.view(*rows.shape[:-1], -1).movedim(-1, 2)


IDS = torch.tensor([2, 0, 2, 1])
LINE, IMAGE, VOLUME = (2, 3, 6), (2, 3, 6, 4), (2, 3, 6, 4, 4)
# For each operation: the shape of its input, the form that is refused, and the form that the table names instead.
PAIRS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "cross-entropy over images": (
        IMAGE,
        lambda x: functional.cross_entropy(x, torch.ones(2, 6, 4, dtype=torch.int64)),
        lambda x: functional.cross_entropy(
            x.movedim(1, -1).flatten(0, -2), torch.ones(2, 6, 4, dtype=torch.int64).flatten()
        ),
    ),
    "AdaptiveAvgPool2d to more than 1x1": (
        IMAGE,
        lambda x: functional.adaptive_avg_pool2d(x, (3, 2)),
        lambda x: functional.avg_pool2d(x, (2, 2)),
    ),
    "AdaptiveAvgPool3d to more than 1x1x1": (
        VOLUME,
        lambda x: functional.adaptive_avg_pool3d(x, (3, 2, 1)),
        lambda x: x.unflatten(4, (1, -1)).unflatten(3, (2, -1)).unflatten(2, (3, -1)).mean((3, 5, 7)),  # type: ignore[no-untyped-call]
    ),
    "AdaptiveMaxPool2d": (
        IMAGE,
        lambda x: functional.adaptive_max_pool2d(x, (3, 2)),
        lambda x: functional.max_pool2d(x, (2, 2)),
    ),
    "AvgPool3d": (
        VOLUME,
        lambda x: functional.avg_pool3d(x, 2),
        lambda x: over_depth(functional.avg_pool2d(x.flatten(1, 2), 2).unflatten(1, (3, 6))),  # type: ignore[no-untyped-call]
    ),
    "linear and bicubic interpolation, and antialias=True": (
        LINE,
        lambda x: functional.interpolate(x, size=9, mode="linear"),
        lambda x: functional.interpolate(x.unsqueeze(2), size=(1, 9), mode="bilinear").squeeze(2),
    ),
    "padding by reflection, but for images": (
        LINE,
        lambda x: functional.pad(x, (2, 1), mode="reflect"),
        lambda x: functional.pad(x.unsqueeze(-2), (2, 1, 0, 0), mode="reflect").squeeze(-2),
    ),
    "cumsum of floats": (LINE, lambda x: x.cumsum(-1), lambda x: x @ torch.ones(6, 6, device=x.device).triu()),
    "EmbeddingBag with mode='max'": (
        (3, 5),
        lambda x: functional.embedding_bag(IDS.view(2, 2), x, mode="max"),
        lambda x: functional.embedding(IDS.view(2, 2), x).amax(1),
    ),
    "histc": (
        (50,),
        lambda x: torch.histc(x.detach(), 4, 0, 1),
        lambda x: torch.bincount(torch.bucketize(x.detach(), torch.tensor([0.25, 0.5, 0.75]), right=True)).float(),
    ),
    "bincount with weights": (
        (4,),
        lambda x: torch.bincount(IDS, x.detach()).float(),
        lambda x: torch.zeros(3, device=x.device).index_add(0, IDS, x.detach()),
    ),
    "scatter_reduce with 'prod'": (
        (4,),
        lambda x: torch.ones(3).scatter_reduce(0, IDS, x, "prod"),
        lambda x: torch.zeros(3).scatter_add(0, IDS, x.log()).exp(),
    ),
    "kthvalue": (LINE, lambda x: x.kthvalue(2, -1).values, lambda x: x.sort(dim=-1, stable=True).values.select(-1, 1)),
    "median with a dimension": (
        LINE,
        lambda x: x.median(-1).values,
        lambda x: x.sort(dim=-1, stable=True).values.select(-1, (6 - 1) // 2),
    ),
}
OTHERS: dict[str, Callable[[], Tensor]] = {
    "FractionalMaxPool2d and 3d": lambda: functional.fractional_max_pool2d(of(*IMAGE), 2, output_size=2),
    "CTCLoss": lambda: functional.ctc_loss(
        of(5, 1, 4).log_softmax(-1), IDS[:1].view(1, 1), torch.tensor([5]), torch.tensor([1]), reduction="none"
    ),
    "grid_sample": lambda: functional.grid_sample(of(*IMAGE), torch.zeros(2, 2, 2, 2), align_corners=False),
    "linear and bicubic interpolation, and antialias=True": lambda: functional.interpolate(
        of(*IMAGE), size=9, mode="bicubic"
    ),
    "padding by reflection, but for images": lambda: functional.pad(of(*VOLUME), (1,) * 6, mode="reflect"),
    "cumsum of floats": lambda: of(4).cumprod(0),
}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_it_is_known_by_the_names_of_torch(row: Operation) -> None:
    for name in NAMES[row.name]:
        assert raised(RuntimeError(name + SAID)) is row


def test_what_is_not_in_the_table_is_told_by_its_name() -> None:
    found = raised(RuntimeError("odd_cuda" + SAID))
    assert found is not None
    assert (found.name, found.nodes) == ("odd_cuda", ())
    assert "run.device=cpu" in found.instead
    assert raised(RuntimeError("out of memory")) is None


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_said_instead_computes_the_same(name: str) -> None:
    shape, refused, instead = PAIRS[name]
    x = of(*shape)
    found, wanted = instead(x), refused(x)
    torch.testing.assert_close(found, wanted)
    if wanted.requires_grad:
        gradients = (torch.autograd.grad(each.square().sum(), x)[0] for each in (found, wanted))
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", [*PAIRS, *OTHERS])
def test_it_is_found_in_a_graph_by_its_nodes(name: str) -> None:
    (row,) = (row for row in OPERATIONS if row.name == name)
    made = [PAIRS[name][1](of(*PAIRS[name][0]))] if name in PAIRS else []
    for each in [*made, *([OTHERS[name]()] if name in OTHERS else [])]:
        names, waiting = set(), [each.grad_fn]
        for node in waiting:
            if node is not None:
                names.add(node.name())
                waiting.extend(following for following, _ in node.next_functions)
        assert not row.nodes or any(each.startswith(row.nodes) for each in names)


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    assert "".join(f"| {row.name} | {row.instead} |\n" for row in OPERATIONS) in page
