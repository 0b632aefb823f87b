"""Models of many kinds, each with its loss and a batch, to be cut anywhere."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.characters import GPT

Loss = Callable[[Any, Any], Tensor]


class Case(NamedTuple):
    """borders: where it is cut into several stages."""

    make: Callable[[], nn.Module]
    loss: Loss
    batch: Any
    borders: tuple[str, ...]


def _random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _integers(below: int, *shape: int, seed: int = 4) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def pixels(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Dropout(0.2)),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 10)),
    )


class Vae(nn.Module):
    """Draws between its halves; what the first one gives is divided between module calls, and used by the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(latent), mean, log_variance


def evidence(model: nn.Module, x: Tensor) -> Tensor:
    found, mean, log_variance = model(x)
    return functional.mse_loss(found, x) - 0.1 * torch.mean(1 + log_variance - mean**2 - log_variance.exp())


class Selective(nn.Module):
    """Its last layers see what was masked only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.last, self.head = nn.Linear(16, 16), nn.Linear(16, 20)

    def forward(self, tokens: Tensor, mask: Tensor, *, selects: bool) -> Tensor:
        found = self.hidden(self.embedding(tokens)).tanh()
        found = torch.masked_select(found, mask[..., None]).view(-1, 16) if selects else found[mask]
        result: Tensor = self.head(functional.dropout(self.last(found), 0.1, self.training))
        return result


def masked(model: nn.Module, tokens: Tensor, *, selects: bool = False) -> Tensor:
    mask = torch.rand(tokens.shape) < 0.3
    mask[:, 0] = True
    labels = tokens.clone()
    labels[~mask] = -100
    logits = model(tokens.masked_fill(mask, 1), mask, selects=selects)
    return functional.cross_entropy(logits, labels[labels != -100])


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = self.shortcut(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += kept
        out: Tensor = self.relu(y)
        return out


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1), Residual(16, 32, 2))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.blocks(self.stem(x)).mean((2, 3)))
        return out


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        make = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))  # noqa: E731
        self.e1, self.e2, self.middle = make(3, 8), make(8, 16), make(16, 16)  # type: ignore[no-untyped-call]
        self.d2, self.d1 = make(32, 16), make(24, 8)  # type: ignore[no-untyped-call]
        self.out = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.e1(x)
        b = self.e2(functional.max_pool2d(a, 2))
        m = self.middle(functional.max_pool2d(b, 2))
        y = self.d2(torch.cat([functional.interpolate(m, scale_factor=2), b], 1))
        y = self.d1(torch.cat([functional.interpolate(y, scale_factor=2), a], 1))
        out: Tensor = self.out(y + a.mean())
        return out


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.first = nn.LSTM(24, 32, batch_first=True)
        self.second = nn.LSTM(32, 32, batch_first=True, num_layers=2, dropout=0.3)
        self.head = nn.Linear(32, 50)

    def forward(self, x: Tensor) -> Tensor:
        hidden, (last, cell) = self.first(self.embedding(x))
        hidden, _ = self.second(hidden, (last.repeat(2, 1, 1), cell.repeat(2, 1, 1)))
        out: Tensor = self.head(hidden)
        return out


class PlainLstm(Lstm):
    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.first(self.embedding(x))
        hidden, _ = self.second(hidden)
        out: Tensor = self.head(hidden)
        return out


class Shared(nn.Module):
    """One block that is used six times, and a tied output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.marks = nn.ModuleList([nn.Identity() for _ in range(6)])
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for mark in self.marks:
            hidden = self.block(mark(hidden))
        out: Tensor = self.head(hidden)
        return out


class Everywhere(nn.Module):
    """The first activation is used behind every border, and a parameter that was taken before them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight
        start = hidden = self.first(x)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) + 0.1 * start * start + start.sin()
        out: Tensor = hidden @ weight
        return out


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient + 0.01 * torch.randn_like(gradient)


class NoisyBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = Noise.apply(functional.dropout(torch.tanh(layer(x)), 0.2))  # type: ignore[no-untyped-call]
        return x


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.places = nn.Parameter(torch.randn(1, 17, 32))
        layer = lambda: nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True)  # noqa: E731
        self.blocks = nn.Sequential(*(layer() for _ in range(4)))  # type: ignore[no-untyped-call]
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.patches(x).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(x), -1, -1), hidden], 1) + self.places
        out: Tensor = self.head(self.blocks(hidden)[:, 0])
        return out


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.marks = nn.ModuleList([nn.Identity() for _ in range(4)])
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(32, 4, 64, 0.2, batch_first=True) for _ in range(4)])
        self.head = nn.Linear(32, 50)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for mark, block in zip(self.marks, self.blocks, strict=True):
            hidden = checkpoint(block, mark(hidden), use_reentrant=self.reentrant)
        out: Tensor = self.head(hidden)
        return out


class Transposed(nn.Module):
    """A sum over what a border carries transposed: its bits depend on the stride."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 64)
        self.mark = nn.Identity()
        self.weight = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mark(self.first(x).transpose(0, 1))
        out: Tensor = (hidden.sum((0, 1)) * self.weight).sum() + hidden.std()
        return out


class Experts(nn.Module):
    """The sizes of what the experts get depend on values. spares: one to which no row goes is not called."""

    def __init__(self, experts: int = 2, *, spares: bool = False) -> None:
        super().__init__()
        self.spares = spares
        self.inputs = nn.Linear(16, 16)
        self.gate = nn.Linear(16, experts)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(experts)])
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inputs(x)
        chosen = self.gate(hidden).argmax(-1)
        mixed = torch.zeros_like(hidden)
        for i, expert in enumerate(self.experts):
            at = (chosen == i).nonzero().flatten()
            if len(at) or not self.spares:
                mixed = mixed.index_add(0, at, expert(hidden[at]))
        out: Tensor = self.out(mixed)
        return out


class Router(nn.Module):
    """Sends each row to the expert of its choice. Nobody knows before how many rows an expert gets, nor what `forward` returns
    beside its mixture: a number, rows of some expert, and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 3)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)])

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        chances = self.gate(x).softmax(-1)
        chosen, mixed = chances.argmax(-1), torch.zeros(x.shape)
        for i, expert in enumerate(self.experts):
            (at,) = torch.where(chosen == i)
            if len(at):
                mixed[at] = mixed[at] + expert(x[at]) * chances[at, i, None]
        return mixed, {"most": chances.max().item(), "some": x[chosen == 0] * 2, "given": x, "count": len(at)}


class Routed(nn.Module):
    """A mixture of experts, whose routers look at values in each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(16, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.routers = nn.ModuleList([Router() for _ in range(3)])
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, extra = functional.dropout(self.inputs(x), 0.1, self.training), torch.zeros(())
        for norm, router in zip(self.norms, self.routers, strict=True):
            mixed, found = router(norm(x))
            x = x + mixed
            extra = extra + found["some"].sum() * found["most"] + found["count"] * found["given"].mean()
        out: Tensor = self.out(x) + extra * 1e-2
        return out


def draws(model: nn.Module, batch: Any) -> Tensor:
    """Random draws of all three kinds, before and after the model."""
    x = batch[0].clone()
    x[torch.rand(x.shape) < 0.1] = int(numpy.random.randint(50))
    y = model(x)
    y = y * (torch.rand(y.shape) < 0.9) * random.random()
    return functional.cross_entropy(y.flatten(0, -2), batch[1].flatten())


def _last() -> nn.Module:
    model: nn.Module = ResNet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def squares(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = (model(batch) ** 2).mean()
    return loss


_TOKENS = _integers(50, 4, 8), _integers(50, 4, 8, seed=5)
_LAST = torch.channels_last
_IMAGES = _random(4, 3, 32, 32), _integers(10, 4)

CASES = {
    "mlp": Case(mlp, pixels, (_random(16, 32), _integers(10, 16)), ("2", "4", "7")),
    "resnet": Case(ResNet, pixels, _IMAGES, ("blocks.0.conv2", "blocks.1", "blocks.3.bn1")),
    "resnet, channels last": Case(_last, pixels, (_IMAGES[0].to(memory_format=_LAST), _IMAGES[1]), ("blocks.1", "fc")),
    "unet": Case(UNet, pixels, (_random(2, 3, 16, 16), _integers(4, 2, 16, 16)), ("middle", "d2", "d1")),
    "lstm": Case(PlainLstm, cross_entropy, _TOKENS, ("first", "second", "head")),
    "lstm, draws": Case(PlainLstm, draws, _TOKENS, ("first", "second", "head")),
    "gpt": Case(
        lambda: GPT(50, 32, 3, 4, 8, 0.1), cross_entropy, _TOKENS, ("blocks.0.project", "blocks.1", "blocks.2.norm_mlp")
    ),
    "shared block": Case(Shared, cross_entropy, _TOKENS, ("marks.1", "marks.3", "head")),
    "used everywhere": Case(Everywhere, squares, _random(8, 16), ("layers.1", "layers.3", "layers.5")),
    "noise in backward": Case(NoisyBackward, squares, _random(8, 16), ("layers.1", "layers.2", "layers.3")),
    "vision": Case(Vision, pixels, (_random(4, 3, 16, 16), _integers(5, 4)), ("blocks.1", "blocks.3", "head")),
    "checkpoints": Case(lambda: Checkpointed(reentrant=False), cross_entropy, _TOKENS, ("marks.1", "marks.3", "head")),
    "reentrant checkpoints": Case(
        lambda: Checkpointed(reentrant=True), cross_entropy, _TOKENS, ("marks.1", "marks.3", "head")
    ),
    "variational": Case(Vae, evidence, _random(8, 32), ("encoder.2", "decoder", "decoder.2")),
    "of the masked": Case(Selective, masked, _integers(20, 4, 6), ("hidden", "last", "head")),
    "of the selected": Case(
        Selective, functools.partial(masked, selects=True), _integers(20, 4, 6), ("hidden", "last", "head")
    ),
    "transposed": Case(Transposed, lambda model, batch: model(batch), _random(7, 40, 48), ("mark",)),
    "routed": Case(Routed, pixels, (_random(12, 16), _integers(4, 12)), ("norms.1", "routers.1.gate", "out")),
}
