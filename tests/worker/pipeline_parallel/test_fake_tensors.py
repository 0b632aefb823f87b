"""Operations on tensors of other stages give the shapes, strides and types that they have there, under autocast, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from orchestrator.worker.pipeline_parallel.fake_tensors import FakeTensor

WATCHER = SimpleNamespace(value_of=lambda _: None)
Given = Callable[[Tensor], Tensor]
X, S, IMAGE = torch.ones(4, 8), torch.ones(4, 6, 8), torch.ones(2, 3, 8, 8)
LOW = X.bfloat16()
GRU, LSTM = nn.GRU(8, 8, batch_first=True), nn.LSTM(8, 8, batch_first=True, bidirectional=True)
ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True)
OPERATIONS: dict[str, Callable[[Given], object]] = {
    "linear": lambda of: functional.linear(of(X), of(X)),
    "matmul": lambda of: of(S) @ of(S).transpose(1, 2),
    "einsum": lambda of: torch.einsum("bsd,btd->bst", of(S), of(S)),
    "convolution": lambda of: functional.conv2d(of(IMAGE), of(IMAGE[:, :, :3, :3])),
    "attention": lambda of: functional.scaled_dot_product_attention(of(S)[:, None], of(S)[:, None], of(S)[:, None]),
    "layer": lambda of: ATTENTION(of(S), of(S), of(S), need_weights=False)[0],
    "lstm": lambda of: LSTM(of(S)),
    "gru": lambda of: GRU(of(S)),
    "layer_norm": lambda of: functional.layer_norm(of(LOW), (8,)),
    "softmax": lambda of: of(LOW).softmax(1),
    "cross_entropy": lambda of: functional.cross_entropy(of(LOW), torch.arange(4)),
    "mse_loss": lambda of: functional.mse_loss(of(LOW), of(LOW)),
    "mixed types": lambda of: torch.cat([of(LOW), of(X)]),
    "in place": lambda of: of(LOW.clone()).add_(of(X)),
    "float64": lambda of: functional.linear(of(X.double()), of(X.double())),
    "product of types": lambda of: of(LOW) * of(X),
}


def of_another_stage(tensor: Tensor, home: str = "cpu") -> Tensor:
    return FakeTensor.of(
        torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"), WATCHER, home=home
    )


def form(result: object) -> list[object]:
    return [(each.dtype, tuple(each.shape), each.stride()) for each in tree_leaves(result)]


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_result_has_the_form_that_it_has_in_its_stage(name: str, mixed: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed, cache_enabled=False):
        expected, found = OPERATIONS[name](lambda tensor: tensor), OPERATIONS[name](of_another_stage)
    assert form(found) == form(expected)


@contextmanager
def autocast_on_a_gpu() -> Iterator[None]:
    """`torch.autocast` refuses where there is none."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_autocast_is_that_of_the_device() -> None:
    """On a GPU norms are float32. A fused GRU is all bfloat16: its kernel is one whose shapes torch does not know."""
    with autocast_on_a_gpu():
        there, here = of_another_stage(S, "cuda:0"), of_another_stage(S)
        assert (functional.linear(there, X).dtype, functional.linear(here, X).dtype) == (torch.bfloat16, torch.float32)
        assert functional.layer_norm(of_another_stage(LOW, "cuda:0"), (8,)).dtype is torch.float32
        state = of_another_stage(torch.ones(1, 4, 8), "cuda:0")
        weights = [each.detach() for each in GRU.parameters()]
        output, last = torch.gru(there, state, weights, True, 1, 0.0, True, False, True)
    assert (output.dtype, tuple(output.shape), last.dtype) == (torch.bfloat16, (4, 6, 8), torch.bfloat16)
