"""Small pipelines, each with one property that could make a run depend on how it is executed.

All of them classify random rows; the subclasses replace the model, the rows or the loss. The sizes are awkward on purpose:
22 rows in steps of 10 leave an uneven last batch of 2, with empty shards; 7 held-out rows do not divide evenly either.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn
from torch.utils.data import Dataset, TensorDataset

from orchestrator import Pipeline

FEATURES, CLASSES = 6, 3

Batch = tuple[Tensor, ...]


class Small(Pipeline):
    """Rows of FEATURES numbers, a linear model."""

    def __init__(self, rows: int = 22, held_out: int | None = 7) -> None:
        self.rows = rows
        self.held_out = held_out

    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, FEATURES)

    def datasets(self) -> tuple[Dataset[Any], Dataset[Any] | None]:
        train, held_out = (
            TensorDataset(self.inputs(rows), torch.randint(CLASSES, (rows,)))
            for rows in (self.rows, self.held_out or 0)
        )
        return train, None if self.held_out is None else held_out

    def model(self) -> nn.Module:
        return nn.Linear(FEATURES, CLASSES)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs), labels)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        inputs, labels = batch
        return {
            "accuracy": (model(inputs).argmax(1) == labels).float().mean(),
            "share_of_0": (labels == 0).float().mean(),
        }


class Runaway(Small):
    """Each step moves the bias by the learning rate."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:  # noqa: ARG002
        assert isinstance(model, nn.Linear)
        return -model.bias.sum()


class Mlp(Small):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, CLASSES))


class Wide(Small):
    """More than one block of the layout, so that several chunks are on their way."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 2000), nn.Tanh(), nn.Linear(2000, CLASSES))


class Images(Small):
    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, 2, 6, 6)

    def norm(self, channels: int) -> nn.Module:  # noqa: ARG002
        return nn.Identity()

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), self.norm(4), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(4 * 4 * 4, CLASSES)
        )


class Batchnorm(Images):
    """One row in a shard is enough, since a channel has many elements."""

    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)


class CumulativeBatchnorm(Images):
    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels, momentum=None)


class BatchnormWithoutStatistics(Images):
    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels, track_running_stats=False)


class BatchnormWithoutParameters(Images):
    def norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels, affine=False)


class FrozenBatchnorm2d(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> FrozenBatchnorm2d:  # noqa: ARG002
        super().train(False)
        return self


class FrozenBatchnorm(Images):
    """Its statistics keep their bits, also those that a sum on the grid would not."""

    def norm(self, channels: int) -> nn.Module:
        frozen = FrozenBatchnorm2d(channels)
        frozen.running_mean = torch.tensor([1.0, 1e-14, -2e-12, -0.0])
        frozen.running_var = torch.tensor([3.0, 0.3, 1e-13, 1e-3])
        return frozen


class BatchnormFrozenByLoss(Batchnorm):
    def loss(self, model: nn.Module, batch: Batch) -> Any:
        model.get_submodule("1").eval()
        return super().loss(model, batch)


class Groupnorm(Images):
    def norm(self, channels: int) -> nn.Module:
        return nn.GroupNorm(2, channels)


class Instancenorm(Images):
    def norm(self, channels: int) -> nn.Module:
        return nn.InstanceNorm2d(channels, track_running_stats=True, affine=True)


class ChannelsLast(Batchnorm):
    def model(self) -> nn.Module:
        return super().model().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs.to(memory_format=torch.channels_last)), labels)


class Sequences(Small):
    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, 5, 8)


def has_lstm_of_bfloat16() -> bool:
    """Whether torch has one for this processor; where it lacks AVX-512 there is none."""
    try:
        nn.LSTM(2, 2).bfloat16()(torch.zeros(1, 1, 2, dtype=torch.bfloat16))
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True


class LstmModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.3)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.lstm(inputs)
        logits: Tensor = self.out(states[:, -1])
        return logits


class Lstm(Sequences):
    def model(self) -> nn.Module:
        return LstmModel()


class AttentionModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        normed = self.norm(inputs)
        mixed = inputs + self.attention(normed, normed, normed, need_weights=False)[0]
        heads = mixed.unflatten(2, (2, 4)).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        logits: Tensor = self.out(attended.transpose(1, 2).flatten(2).mean(1))
        return logits


class Attention(Sequences):
    def model(self) -> nn.Module:
        return AttentionModel()


class TiedModel(nn.Module):
    """The embedding is the output layer too."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 8)
        self.out = nn.Linear(8, words, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.embedding(tokens))
        return logits


class MaskedTokens(Small):
    """Rows weigh as many tokens as they have; some shards have none at all, and a mean that is not a number."""

    WORDS = 11

    def inputs(self, rows: int) -> Tensor:
        tokens = torch.randint(self.WORDS, (rows, 4))
        return tokens.masked_fill(torch.rand(rows, 4) < 0.4, -1) * (torch.rand(rows, 1) < 0.6)

    def model(self) -> nn.Module:
        return TiedModel(self.WORDS)

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        tokens = batch[0]
        known = tokens > 0
        return functional.cross_entropy(model(tokens[known]), tokens[known].roll(1)), known.sum()

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {"known": (batch[0] > 0).float().mean()}


class Frozen(Mlp):
    def model(self) -> nn.Module:
        model = super().model()
        model.get_submodule("0").requires_grad_(False)
        return model


class DroppingModel(nn.Module):
    """`rare` and its statistics are used by some shards of some steps, `idle` by none; `scale` has one element, `empty`
    none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.rare = nn.Linear(8, 8)
        self.rare_norm = nn.InstanceNorm1d(2, track_running_stats=True, affine=True)
        self.idle = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.empty = nn.Parameter(torch.empty(0))
        self.out = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        if self.training and random.random() < 0.15:
            hidden = self.rare_norm(self.rare(hidden).unflatten(1, (2, 4))).flatten(1)
        logits: Tensor = self.out(hidden) * self.scale
        return logits


class Cached(nn.Linear):
    """Keeps what may be kept: a table for the largest batch so far, the last of several things, a count of its own."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.largest, self.table = 0, torch.empty(0)
        self.last_mean, self._calls = 0.0, 0
        self._seen: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self._calls += 1
        self._seen.append(len(inputs))
        if len(inputs) > self.largest:
            # `out` puts the table where the inputs are. The device of tests/worker/apart.py has no name to be given.
            self.largest, self.table = len(inputs), torch.arange(len(inputs), out=inputs.new_empty(len(inputs))) / 10
        outputs = super().forward(inputs) * self.table[: len(inputs), None].cos()
        self.last_mean = outputs.mean().item()
        return outputs


class Caching(Small):
    def model(self) -> nn.Module:
        return Cached()


class LayerDrop(Small):
    def model(self) -> nn.Module:
        return DroppingModel()


class Noisy(Dataset[Any]):
    """Augments with all three generators, and reads several rows at once where it is asked to."""

    def __init__(self, rows: int) -> None:
        self.inputs = torch.randn(rows, FEATURES)
        self.labels = torch.randint(CLASSES, (rows,))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(FEATURES) * random.gauss(1, 0.1) + float(numpy.random.normal())
        return self.inputs[index] + noise / 10, self.labels[index]


class Augmented(Mlp):
    def datasets(self) -> tuple[Dataset[Any], Dataset[Any]]:
        return Noisy(self.rows), Noisy(self.held_out or 0)


class Annealed(Mlp):
    """A loss with a schedule of its own."""

    def loss(self, model: nn.Module, batch: Batch, step: int = 0) -> Any:
        return super().loss(model, batch) / (1 + step)


class SetsThreads(Mlp):
    """As scripts begin; another number may give other bits."""

    seen: ClassVar[set[int]] = set()

    def model(self) -> nn.Module:
        torch.set_num_threads(2)
        return super().model()

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self.seen.add(torch.get_num_threads())
        return super().loss(model, batch)


class OwnOptimizer(Mlp):
    """Two groups, one of them with momentum; built over drawn numbers, which are the run's too."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        first, last = (list(model.get_submodule(name).parameters()) for name in "03")
        groups: list[dict[str, Any]] = [
            {"params": first, "lr": 0.05 + random.random() / 100, "momentum": 0.9},
            {"params": last},
        ]
        return torch.optim.SGD(groups, lr=0.2)


class RateInATensor(Mlp):
    """torch computes with such a rate in float32, so its steps have other bits than those with the same number."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        first, last = (list(model.get_submodule(name).parameters()) for name in "03")
        groups: list[dict[str, Any]] = [{"params": first, "lr": 0.02}, {"params": last}]
        return torch.optim.Adam(groups, lr=torch.tensor(0.01))


class NumbersOfNumpy(Mlp):
    """Rates from numpy.linspace, as are averages; the class keeps another one in its state."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        rates = numpy.linspace(0.01, 0.3, 2, dtype=numpy.float32)
        groups: list[dict[str, Any]] = [
            {"params": list(model.get_submodule(name).parameters()), "lr": rate, "decay": numpy.float16(0.9)}
            for name, rate in zip("03", rates, strict=True)
        ]
        return Decaying(groups, {"lr": numpy.float64(0.1), "factors": (numpy.float32(0.1), [numpy.int64(2)])})


class Decaying(torch.optim.Optimizer):
    """Its arithmetic shows of which type numbers are: 0.1 as a float32 to any power is another number than as a float64."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["kept"] = state.get("kept", numpy.float32(1)) * numpy.float32(group["decay"])
                factor = group["factors"][0] ** group["factors"][1][0] / 3
                parameter.add_(parameter.grad, alpha=-group["lr"] * (1 - factor) * float(state["kept"] / 3))


class Langevin(Small):
    """An optimizer that draws numbers of its own."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return NoisySgd(model.parameters(), lr=0.1)


class NoisySgd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        return loss


class OfNoClassOfTorchs(Mlp):
    """An optimizer derived from the base alone; of what it remembers a part is in its groups, and an average of the weights
    lies in frozen parameters of the model."""

    def model(self) -> nn.Module:
        trained, average = super().model(), super().model().requires_grad_(False)
        average.load_state_dict(trained.state_dict())
        return nn.ModuleDict({"trained": trained, "average": average})

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trained, average = (list(model.get_submodule(name).parameters()) for name in ("trained", "average"))
        optimizer = Sign(trained, {"lr": 0.01, "steps": 0})
        optimizer.average = average
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model.get_submodule("trained" if model.training else "average"), batch)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"logits": model.get_submodule("average")(batch[0]).mean()}


class Sign(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), Algorithm 2, with one rate for both averages."""

    average: Sequence[Tensor]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            group["steps"] += 1
            for parameter, average in zip(group["params"], self.average, strict=True):
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 0.1)
                parameter.add_(momentum.sign(), alpha=-group["lr"])
                average.lerp_(parameter, 1 / group["steps"])


class Jump(Small):
    """One row in 20 makes every gradient 2**40 times as large as the others do."""

    losses: ClassVar[io.BytesIO] = io.BytesIO()  # a byte for each; no worker puts a file back

    def inputs(self, rows: int) -> Tensor:
        inputs = torch.cat([torch.randn(rows, FEATURES), torch.ones(rows, 1)], 1)
        inputs[3:4, -1] = 2.0**40
        return inputs

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self.losses.write(b".")
        inputs, labels = batch
        each = functional.cross_entropy(model(inputs[:, :-1]), labels, reduction="none")
        return (each * inputs[:, -1]).mean()


class CustomBatches(Small):
    """Items that `default_collate` would not take, through `collate`; read through `__getitems__`."""

    def datasets(self) -> tuple[Dataset[Any], Dataset[Any]]:
        return Texts(self.rows), Texts(self.held_out or 0)

    def collate(self, items: Any) -> Batch:
        return torch.stack([torch.tensor([len(text) / 9, *range(FEATURES - 1)]) for text in items]), torch.tensor(
            [len(text) % CLASSES for text in items]
        )


class FromOne(Small):
    """Labels that begin at 1, which the loss changes in place: done twice with the same batch, they are out of range."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def collate(self, samples: Sequence[Any]) -> Any:
        return [torch.stack([row for row, _ in samples]), torch.stack([label for _, label in samples]) + 1]

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        answers = model(batch[0])
        return functional.cross_entropy(answers, batch[1].sub_(1))

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


class Overlapping(Small):
    """The inputs and what they are compared with lie in the same memory, and the loss changes one of them in place."""

    def model(self) -> nn.Module:
        return nn.Linear(FEATURES - 1, FEATURES - 1)

    def collate(self, samples: Sequence[Any]) -> Any:
        rows = torch.stack([row for row, _ in samples])
        return rows[:, :-1], rows[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        inputs, following = batch
        return (model(inputs.mul_(0.5).clone()) - following).square().mean()

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        return {}


class Texts(Dataset[Any]):
    def __init__(self, rows: int) -> None:
        self.texts = ["x" * random.randrange(9) for _ in range(rows)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitems__(self, indices: list[int]) -> list[str]:
        return [self.texts[index] for index in indices]

    def __getitem__(self, index: int) -> str:
        raise AssertionError("read rows through __getitems__")


@dataclass
class Sentences:
    words: rnn.PackedSequence
    labels: Tensor
    names: list[str]


class PackedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, words: rnn.PackedSequence) -> Tensor:
        _, states = self.rnn(words)
        logits: Tensor = self.out(states.transpose(0, 1).flatten(1))
        return logits


class Packed(Small):
    """Sequences of different lengths with a name each, in a batch of a class of its own."""

    def datasets(self) -> Any:
        return tuple(
            [(torch.randn(random.randint(1, 6), 4), random.randrange(CLASSES), f"row {row}") for row in range(rows)]
            for rows in (self.rows, self.held_out or 0)
        )

    def collate(self, items: Any) -> Any:
        words, labels, names = zip(*items, strict=True)
        return Sentences(rnn.pack_sequence(list(words), enforce_sorted=False), torch.tensor(labels), ["names", *names])

    def model(self) -> nn.Module:
        return PackedModel()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch.words), batch.labels)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"spread": model(batch.words).std()}


class RareStatistics(Small):
    """The first row alone goes through the normalisation, with the mean 8."""

    def inputs(self, rows: int) -> Tensor:
        inputs = torch.zeros(rows, 1, 4)
        inputs[0] = torch.tensor([6.0, 10.0, 7.0, 9.0])
        return inputs

    def model(self) -> nn.Module:
        return RareModel()


class RareModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        used = bool(inputs.any())
        logits: Tensor = self.out((self.norm(inputs) if used else inputs).flatten(1))
        return logits


class AwkwardBuffers(Mlp):
    """Buffers that nobody changes, whose bits are easily misjudged as changed."""

    def model(self) -> nn.Module:
        model = super().model()
        model.register_buffer(
            "not_a_number", torch.full((2, 3, 4, 4), float("nan")).to(memory_format=torch.channels_last)
        )
        model.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1).T)
        model.register_buffer("flags", torch.tensor([True, False]), persistent=False)
        model.register_buffer("nothing", torch.empty(0, 3))
        model.register_buffer("phase", torch.tensor(1j))
        model.register_buffer("wide", torch.zeros(1).expand(6))
        model.register_buffer("lowest", torch.tensor([-(2**63), 2**63 - 1]))
        model.register_buffer("table", torch.arange(40))
        return model


class WeightlessStatistics(RareStatistics):
    """The row that changes the statistics weighs nothing, so they stay."""

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        return super().loss(model, batch), int(not batch[0].any())


class Spectral(Small):
    """Vectors of power iterations, of both implementations of torch; nothing is declared."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(FEATURES, 8)),
            nn.Tanh(),
            nn.utils.spectral_norm(nn.Linear(8, CLASSES)),
        )


class Codebook(Small):
    """Vector quantization whose codes are moving averages (van den Oord et al., 2017, appendix A.1), and a number of floats
    that counts calls."""

    def model(self) -> nn.Module:
        return Quantized()

    def buffers(self) -> dict[str, str]:
        return {"codes.*": "mean", "calls": "largest"}


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.randn(5, 4))
        self.register_buffer("counts", torch.ones(5))

    def forward(self, vectors: Tensor) -> Tensor:
        assert isinstance(self.sums, Tensor)
        assert isinstance(self.counts, Tensor)
        codes = self.sums / self.counts.unsqueeze(1)
        nearest = functional.one_hot(torch.cdist(vectors.detach(), codes).argmin(1), 5).float()
        if self.training:
            self.sums.mul_(0.9).add_(nearest.T @ vectors.detach(), alpha=0.1)
            self.counts.mul_(0.9).add_(nearest.sum(0), alpha=0.1)
        return vectors + (nearest @ codes - vectors).detach()


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 4)
        self.codes = Codes()
        self.out = nn.Linear(4, CLASSES)
        self.register_buffer("calls", torch.tensor(0.0))

    def forward(self, inputs: Tensor) -> Tensor:
        assert isinstance(self.calls, Tensor)
        if self.training:
            self.calls += 1
        logits: Tensor = self.out(self.codes(self.encoder(inputs)))
        return logits


class KeyQueue(Small):
    """Keys of earlier batches to compare with (MoCo, He et al., 2020), and where the next ones go. The largest inputs seen,
    flags, numbers of many types, a count for each key, and the last keys of some places move, too."""

    def model(self) -> nn.Module:
        return Contrasting()

    def buffers(self) -> dict[str, str]:
        return {"keys.seen_*": "largest", "keys.told": "sum", "keys.last": "changed", "keys.*": "first"}


class Keys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", functional.normalize(torch.randn(9, 4), dim=1).T)
        self.register_buffer("next", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.register_buffer("phase", torch.tensor(1j))
        self.register_buffer("seen_most", torch.full((4,), float("-inf")))
        self.register_buffer("seen_signs", torch.zeros(2, 2, dtype=torch.bool))
        self.register_buffer("seen_precisely", torch.tensor(-0.0, dtype=torch.float64))
        self.register_buffer("told", torch.zeros(4, dtype=torch.uint8))
        self.register_buffer("last", torch.zeros(11, 2))

    def forward(self, keys: Tensor) -> Tensor:
        buffers = dict(self.named_buffers())
        similar = keys @ buffers["queue"].clone()
        if self.training:
            with torch.no_grad():
                self._enqueue(keys.float(), buffers)
        return similar

    def _enqueue(self, keys: Tensor, buffers: dict[str, Tensor]) -> None:
        start = buffers["next"]
        places = (start + torch.arange(len(keys))) % 9
        buffers["queue"][:, places] = keys.T
        buffers["next"].copy_((start + len(keys)) % 9)
        buffers["phase"].mul_(torch.polar(torch.tensor(1.0), keys[0, 0]))
        buffers["seen_most"].copy_(torch.maximum(buffers["seen_most"], keys.amax(0)))
        buffers["seen_signs"] |= keys[0].view(2, 2) > 0
        buffers["seen_precisely"].add_(keys.double().sum())
        buffers["told"] += keys.argmax(1).bincount(minlength=4).to(torch.uint8)
        buffers["last"][(keys[:, 0] * 1000).long() % 11] = keys[:, :2]


class Contrasting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 4)
        self.keys = Keys()
        self.out = nn.Linear(4 + 9, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        keys = functional.normalize(self.encoder(inputs), dim=1)
        logits: Tensor = self.out(torch.cat([keys, self.keys(keys)], 1))
        return logits
