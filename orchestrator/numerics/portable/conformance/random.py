"""Random numbers and initialisation, from torch's own generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case

_SEED = 11


def _seeded(function: Callable[[torch.Generator], Any]) -> Case:
    return lambda _d: function(torch.Generator().manual_seed(_SEED))


def _init(function: Callable[..., Any], *shape: int) -> Case:
    return _seeded(lambda g: function(torch.empty(*shape), generator=g))


def _default(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that draws from the default generator, which is left as it was."""

    def call(x: Tensor) -> Tensor:
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(_SEED)
        try:
            return function(x)
        finally:
            torch.default_generator.set_state(state)

    return call


CASES: dict[str, Case] = {
    "rand": _seeded(lambda g: torch.rand(1003, generator=g)),
    "randn": _seeded(lambda g: torch.randn(1003, generator=g)),
    "randn few": _seeded(lambda g: torch.randn(7, generator=g)),
    "randn float64": _seeded(lambda g: torch.randn(1003, generator=g, dtype=torch.float64)),
    "randint": _seeded(lambda g: torch.randint(1000, (1003,), generator=g)),
    "random permutation": _seeded(lambda g: torch.randperm(1003, generator=g)),
    "bernoulli": _seeded(lambda g: torch.empty(1003).bernoulli_(0.3, generator=g)),
    "exponential": _seeded(lambda g: torch.empty(1003).exponential_(generator=g)),
    "multinomial": _seeded(lambda g: torch.multinomial(torch.arange(1.0, 50.0), 99, replacement=True, generator=g)),
    "poisson": _seeded(lambda g: torch.poisson(torch.arange(1.0, 50.0), generator=g)),
    "log normal": _seeded(lambda g: torch.empty(1003).log_normal_(generator=g)),
    "cauchy": _seeded(lambda g: torch.empty(1003).cauchy_(generator=g)),
    "geometric": _seeded(lambda g: torch.empty(1003).geometric_(0.3, generator=g)),
    "normal init": _init(nn.init.normal_, 40, 33),
    "uniform init": _init(nn.init.uniform_, 40, 33),
    "xavier init": _init(nn.init.xavier_normal_, 40, 33),
    "kaiming init": _init(nn.init.kaiming_uniform_, 40, 33),
    "truncated normal init": _init(nn.init.trunc_normal_, 40, 33),
    "orthogonal init": _init(nn.init.orthogonal_, 40, 33),
    "dropout": lambda d: d.both(_default(lambda x: F.dropout(x, 0.3)), d(50, 99)),
    "dropout of channels": lambda d: d.both(_default(lambda x: F.dropout2d(x, 0.3)), d(5, 16, 4, 4)),
    "alpha dropout": lambda d: d.both(_default(lambda x: F.alpha_dropout(x, 0.3, True)), d(50, 99)),
    "gumbel softmax": lambda d: d.both(_default(lambda x: F.gumbel_softmax(x)), d(50, 9)),
    "rrelu": lambda d: d.both(_default(lambda x: F.rrelu(x, training=True)), d(50, 99)),
}
