"""Models that are served, and what they answer under portable arithmetic.

    python -m tests.portable.answering       # one JSON object: model -> digest of its answers, in batches of several sizes

To be started as `golden.py` is.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.numerics import batch_invariance, determinism
from orchestrator.numerics.streams import seeded

BATCHES = (1, 7, 20)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.recurrent = nn.GRU(16, 13, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.recurrent(self.embedding(tokens))[0][:, -1]
        return found


class Attending(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 48, batch_first=True)
        self.attending = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.attending(self.embedding(tokens)).mean(1)
        return found


class Joining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.inner, self.first, self.second = nn.Linear(11, 37), nn.Linear(37, 5), nn.Linear(37, 2)

    def forward(self, inputs: Any) -> Any:
        hidden = self.inner(torch.cat([self.embedding(inputs["words"]).mean(1), inputs["numbers"]], 1)).tanh()
        return {"scores": self.first(hidden), "others": [self.second(hidden)]}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 65), nn.GELU(), nn.Linear(65, 33), nn.Tanh(), nn.Linear(33, 10), nn.Softmax(1))


def cnn() -> nn.Module:
    first = [nn.Conv2d(1, 9, 3, padding=1), nn.BatchNorm2d(9), nn.SiLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(9, 17, 3), nn.BatchNorm2d(17), nn.ReLU(), nn.Flatten(), nn.Linear(68, 10))


def inputs_of(name: str, number: int) -> Any:
    draw = torch.Generator().manual_seed(5)
    words, numbers = torch.randint(0, 50, (number, 6), generator=draw), torch.randn(number, 20, generator=draw)
    images = torch.randn(number, 1, 8, 8, generator=draw)
    by_name = {"mlp": numbers, "cnn": images, "several": {"words": words, "numbers": numbers[:, :3]}}
    return by_name.get(name, words)


MODELS = {"mlp": mlp, "cnn": cnn, "gru": Recurrent, "transformer": Attending, "several": Joining}


def picked(tree: Any, rows: Any) -> Any:
    return batch_invariance.mapped(lambda part: part[rows], tree)


def bits(tree: Any) -> list[bytes]:
    return [
        (part.numpy() if isinstance(part, torch.Tensor) else part).tobytes()
        for _, part in batch_invariance.parts(tree, lists=True)
    ]


def answered(name: str) -> str:
    """A digest of the answers to the same rows in batches of several sizes. Raises AssertionError where they differ."""
    with seeded(2, "model"), torch.no_grad():
        model = MODELS[name]().eval()
        rows = inputs_of(name, max(BATCHES))
        answers = [
            bits(batch_invariance.batch_invariant(model, picked(rows, range(number)), batch_invariance.ROWS))
            for number in BATCHES
        ]
    for few in answers[:-1]:
        assert all(all_.startswith(part) for part, all_ in zip(few, answers[-1], strict=True))
    return hashlib.sha256(b"".join(answers[-1])).hexdigest()


if __name__ == "__main__":
    determinism.prepare_thread(1, arithmetic="portable")
    print(json.dumps({name: answered(name) for name in MODELS}))
