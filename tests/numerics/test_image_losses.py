"""Cross-entropy over images as it is computed on CUDA, tried on the processor against torch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from orchestrator.numerics import image_losses

SHAPES = {"words": (3, 5, 7), "images": (2, 5, 4, 3), "volumes": (2, 5, 3, 2, 4)}
IGNORED = (-100, 2)


@contextmanager
def ours() -> Iterator[None]:
    """Within the block torch computes so on the processor."""
    held = image_losses.registered("CPU")
    try:
        yield
    finally:
        del held


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, targets of which some are passed over, weights of classes."""
    torch.manual_seed(1)
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    target.view(-1)[::5] = IGNORED[0]
    return torch.randn(shape, dtype=dtype), target, torch.rand(shape[1], dtype=dtype)


def computed(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    found = loss(leaf)
    found.backward(torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype).view(found.shape))  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return found.detach(), leaf.grad


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_loss_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Elements and gradients to the bit; sums and means but for the order of their sum."""
    x, target, weight = drawn(shape, dtype)
    for reduction, weights, ignored, smoothing in itertools.product(
        ("none", "sum", "mean"), (None, weight), IGNORED, (0.0, 0.1)
    ):
        if ignored != IGNORED[0]:
            target = target.clamp(min=0)
        options: dict[str, Any] = {
            "reduction": reduction,
            "weight": weights,
            "ignore_index": ignored,
            "label_smoothing": smoothing,
        }
        loss = lambda x, options=options, target=target: functional.cross_entropy(x, target, **options)  # noqa: E731
        theirs = computed(loss, x)
        with ours():
            found = computed(loss, x)
        torch.testing.assert_close(found[0], theirs[0], rtol=1e-6, atol=0)
        exact = reduction != "mean" or weights is None  # else the weights are added up in another order
        torch.testing.assert_close(found[1], theirs[1], rtol=0 if exact else 1e-6, atol=0 if exact else 1e-9)


def test_it_is_the_loss_of_flattened_pixels() -> None:
    x, target, weight = drawn(SHAPES["images"])
    flat = lambda x: functional.cross_entropy(x.movedim(1, -1).flatten(0, -2), target.flatten(), weight)  # noqa: E731
    with ours():
        found = computed(lambda x: functional.cross_entropy(x, target, weight), x)
    torch.testing.assert_close(found, computed(flat, x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_add_up_in_float32(dtype: torch.dtype) -> None:
    x, target = torch.randn(2, 3, 64, 64).to(dtype), torch.randint(3, (2, 64, 64))
    log = functional.log_softmax(x, 1)
    loss, total = image_losses.forward(log, target, None, 1, -100)
    assert (loss.dtype, total.item()) == (dtype, 8192.0)
    assert loss.item() == functional.nll_loss(log.float(), target).to(dtype).item()
    grad = image_losses.backward(torch.ones((), dtype=dtype), log, target, None, 1, -100, total)
    assert (grad.dtype, grad.unique().tolist()) == (dtype, [-1 / 8192, 0])  # type: ignore[no-untyped-call]


def test_a_mean_of_nothing_is_no_number_and_its_gradient_is_zero() -> None:
    x, target = torch.randn(1, 3, 2, 2), torch.full((1, 2, 2), -100)
    with ours():
        loss, grad = computed(lambda x: functional.cross_entropy(x, target), x)
    assert loss.isnan()
    theirs = computed(lambda x: functional.cross_entropy(x, target), x)
    torch.testing.assert_close((loss, grad), theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("target", "weight", "told"),
    [
        ((2, 3, 4), None, "sizes don't match"),
        ((2, 4, 2), None, "sizes don't match"),
        ((2, 4, 4), 4, "either for all 3 classes or no classes"),
    ],
)
def test_what_does_not_fit_is_refused_as_torch_does(target: tuple[int, ...], weight: int | None, told: str) -> None:
    weights = None if weight is None else torch.ones(weight)
    with ours(), pytest.raises(RuntimeError, match=told):
        functional.cross_entropy(torch.randn(2, 3, 4, 4), torch.zeros(target, dtype=torch.int64), weights)


def test_the_kernels_are_put_in_place_once_and_only_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    monkeypatch.setattr(image_losses, "_installed", [])
    monkeypatch.setattr(image_losses, "registered", keys.append)
    image_losses.install()
    image_losses.install()
    assert keys == ["CUDA"]
