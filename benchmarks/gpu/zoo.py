"""A zoo of small models for `benchmarks.gpu`: what people build them from, and how passes are written that no graph can hold.

Self-contained, since a copy of this file is a part of the project of each run. All samples are random numbers.
Legend: B = rows, C = channels, T = tokens of a row, V = tokens of the vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from orchestrator import Pipeline

_SAMPLES, _TOKENS, _VOCABULARY, _WIDTH, _CLASSES = 256, 12, 40, 32, 10

Batch = tuple[Tensor, Tensor]


class _Images(Pipeline):
    """Images of 3 x 16 x 16, with a class each."""

    def datasets(self) -> tuple[TensorDataset, None]:
        dice = torch.Generator().manual_seed(0)
        images = torch.rand(_SAMPLES, 3, 16, 16, generator=dice)
        return TensorDataset(images, torch.randint(0, _CLASSES, (_SAMPLES,), generator=dice)), None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)


class _Texts(Pipeline):
    """Rows of tokens. The label of each is the next one; token 0 stands for none."""

    def datasets(self) -> tuple[TensorDataset, None]:
        dice = torch.Generator().manual_seed(0)
        drawn = torch.randint(1, _VOCABULARY, (_SAMPLES, _TOKENS + 1), generator=dice)
        ends = torch.randint(_TOKENS // 2, _TOKENS + 1, (_SAMPLES, 1), generator=dice)
        drawn = drawn.masked_fill(torch.arange(_TOKENS + 1) > ends, 0)
        return TensorDataset(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()), None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=0)


class _Layers(nn.Module):
    """An embedding, layers of a kind that returns a pair or a tensor, and an output."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.layers = layers
        self.head = nn.LazyLinear(_VOCABULARY)
        self(torch.zeros(1, 2, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.layers(self.embedding(inputs))
        logits: Tensor = self.head(found[0] if isinstance(found, tuple) else found)
        return logits


class Convolutions(_Images):
    """Batch normalisation, maximum and average pooling, dropout."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1)),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(32, _CLASSES),
        )


class Separable(_Images):
    """Depthwise convolutions with channels last, group norm, GELU."""

    def model(self) -> nn.Module:
        layers = nn.Sequential(
            *(nn.Conv2d(3, 32, 4, stride=4), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.GroupNorm(4, 32)),
            *(nn.Conv2d(32, 64, 1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, _CLASSES)),
        )
        return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class Segments(_Images):
    """A U-Net: transposed convolutions, interpolation, cross-entropy over images."""

    def model(self) -> nn.Module:
        return _Unet()

    def datasets(self) -> tuple[TensorDataset, None]:
        images = super().datasets()[0].tensors[0]
        return TensorDataset(images, (images.mean(1) * 3).long().clamp(max=2)), None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels, ignore_index=2)


class _Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.deep, self.up = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.norm, self.last = nn.InstanceNorm2d(32, affine=True), nn.Conv2d(40, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = functional.relu(self.first(images))
        down = functional.relu(self.down(first))
        up = self.norm(torch.cat([down, self.up(functional.relu(self.deep(down)))], 1))
        wide = functional.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
        found: Tensor = self.last(torch.cat([first, wide], 1))
        return found


class Lstm(_Texts):
    """Two layers in both directions."""

    def model(self) -> nn.Module:
        return _Layers(nn.LSTM(_WIDTH, _WIDTH, 2, batch_first=True, bidirectional=True))


class GruDropout(_Texts):
    """Dropout between recurrent layers, for which cuDNN takes its seed from the processor's generator."""

    def model(self) -> nn.Module:
        return _Layers(nn.GRU(_WIDTH, _WIDTH, 2, batch_first=True, dropout=0.2))


class Packed(_Texts):
    """Sequences of different lengths, which the processor has to know."""

    def model(self) -> nn.Module:
        return _Layers(nn.LSTM(_WIDTH, _WIDTH, batch_first=True))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        assert isinstance(model, _Layers)
        lengths = (inputs > 0).sum(1).cpu()
        packed = rnn.pack_padded_sequence(model.embedding(inputs), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = rnn.pad_packed_sequence(model.layers(packed)[0], batch_first=True, total_length=inputs.shape[1])
        return functional.cross_entropy(model.head(hidden).flatten(0, 1), targets.flatten(), ignore_index=0)


class Encoder(_Texts):
    """torch's own transformer layers, with dropout."""

    precision: ClassVar[str] = "bfloat16"

    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        return _Layers(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


class Attention(_Texts):
    """Attention with a causal mask, with one of padding, and with dropout of its weights."""

    def model(self) -> nn.Module:
        return _Layers(nn.Sequential(_Attends(causal=True), _Attends(causal=False)))


class _Attends(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm, self.all = nn.RMSNorm(_WIDTH), nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = self.all(self.norm(hidden)).unflatten(-1, (3, 4, _WIDTH // 4)).permute(2, 0, 3, 1, 4)
        mask = None if self.causal else (hidden.detach().sum(-1) > -100)[:, None, None, :]
        dropped = 0.1 * self.training
        found = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropped, is_causal=self.causal
        )
        return hidden + found.transpose(1, 2).flatten(2)


class Embeddings(_Texts):
    """Large tables, their rows gathered, in bags, and added up by index."""

    def model(self) -> nn.Module:
        return nn.ModuleDict(
            {
                "words": nn.Embedding(_VOCABULARY, _WIDTH, padding_idx=0),
                "bags": nn.EmbeddingBag(_VOCABULARY, _WIDTH, mode="mean"),
                "head": nn.Linear(2 * _WIDTH, _VOCABULARY),
            }
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        assert isinstance(model, nn.ModuleDict)
        words = model["words"](inputs)
        after = torch.zeros_like(words).index_add(1, torch.arange(_TOKENS, device=inputs.device).roll(1), words)
        spread = torch.zeros_like(words).scatter_add(1, inputs[..., None].expand_as(words) % _TOKENS, words)
        found = torch.cat([after + spread, model["bags"](inputs)[:, None].expand_as(words)], -1)
        return functional.cross_entropy(model["head"](found).flatten(0, 1), targets.flatten(), ignore_index=0)


class Draws(_Images):
    """A variational autoencoder, which draws on the card, with an activation checkpoint and spectral norm."""

    def model(self) -> nn.Module:
        into = nn.Sequential(
            nn.Flatten(), parametrizations.spectral_norm(nn.Linear(768, 64)), nn.ELU(), nn.Linear(64, 16)
        )
        return nn.ModuleDict(
            {"into": into, "out": nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.1), nn.Linear(64, 768))}
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, _ = batch
        assert isinstance(model, nn.ModuleDict)
        mean, spread = model["into"](images).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (spread / 2).exp()
        again: Tensor = checkpoint(model["out"], drawn, use_reentrant=False)
        near = functional.mse_loss(again.sigmoid(), images.flatten(1), reduction="sum")
        far = (mean**2 + spread.exp() - spread - 1).sum() / 2
        loss: Tensor = (near + far) / len(images)
        return loss


class Turns(_Images):
    """A generator and a discriminator, which take turns: passes differ from step to step, and graphs serve those of a turn."""

    def model(self) -> nn.Module:
        generator = nn.Sequential(nn.Linear(_WIDTH, 64), nn.ReLU(), nn.Linear(64, 3 * 16 * 16), nn.Sigmoid())
        discriminator = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
        return nn.ModuleDict({"generator": generator, "discriminator": discriminator})

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Tensor:
        parts: Any = model
        images, _ = batch
        drawn = torch.randn(len(images), _WIDTH, device=images.device)
        if step % 2 == 0:
            with torch.no_grad():
                made = parts["generator"](drawn)
            real, false = parts["discriminator"](images), parts["discriminator"](made)
            return functional.softplus(-real).mean() + functional.softplus(false).mean()
        still = {name: each.detach() for name, each in parts["discriminator"].named_parameters()}
        judged: Tensor = functional_call(parts["discriminator"], still, (parts["generator"](drawn),))
        return functional.softplus(-judged).mean()


class Looks(Convolutions):
    """A loss that looks at a value unless it is captured, as masks of transformers do, and draws random numbers behind that."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        if not (loss.is_cuda and torch.cuda.is_current_stream_capturing()) and loss.item() > 1e6:
            return loss * 0.5
        return loss + 0.01 * functional.dropout(model(batch[0]), 0.5).square().mean()


class Chosen(_Texts):
    """Rows that are chosen by a mask, so that their number is known to the card alone; weighted by it."""

    def model(self) -> nn.Module:
        return _Layers(nn.Sequential(nn.LayerNorm(_WIDTH), nn.Dropout(0.1)))

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        inputs, targets = batch
        known = targets > 0
        return functional.cross_entropy(model(inputs)[known], targets[known]), known.sum()


class Reflected(_Images):
    """Padding of sequences by reflection has no deterministic backward pass on a card."""

    refused: ClassVar[str] = "padding by reflection, but for images"  # as the table of the page names it

    def model(self) -> nn.Module:
        padded = nn.Conv1d(8, 8, 3, padding=1, padding_mode="reflect")
        return nn.Sequential(nn.Flatten(2), nn.Conv1d(3, 8, 3), padded, nn.Flatten(), nn.Linear(8 * 254, _CLASSES))


ZOO = (
    *(
        Looks,
        Convolutions,
        Segments,
        Encoder,
        Attention,
        Embeddings,
        Chosen,
        Separable,
        Draws,
        Turns,
        Lstm,
        GruDropout,
        Packed,
    ),
    Reflected,
)
