"""The Llama of `pipelines/llama.py`: its size, its parts, and that stages give the bits of the unsplit one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from pipelines import llama
from pipelines.llama import Llama, Transformer
from tests.worker.runs import ONE, Layout, train

TINY: dict[str, Any] = {
    "width": 16,
    "layers": 4,
    "heads": 4,
    "groups": 2,
    "inner": 24,
    "vocabulary": 128,
    "window": 128,
}


def test_it_has_1_3_billion_parameters() -> None:
    whole = Llama()
    with torch.device("meta"):
        model = Transformer(whole.vocabulary, whole.width, whole.layers, whole.heads, whole.groups, inner=whole.inner)
    assert sum(each.numel() for each in model.parameters()) == 1_288_800_256


def test_every_parameter_gets_a_value() -> None:
    model = Llama(**TINY).model()
    assert {str(each.device) for each in model.state_dict().values()} == {"cpu"}
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:
            assert abs(float(parameter.detach().std()) - 0.02) < 0.005


def test_what_is_turned_goes_by_the_distance_alone() -> None:
    query, key = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).double()
    turns = llama._turns(40, 64, torch.device("cpu"))
    queries, keys = (llama._turned(each.expand(40, 64), turns) for each in (query, key))
    products = queries @ keys.T
    torch.testing.assert_close(products[3, 1], products[39, 37], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(products[3, 1], products[39, 1])


def test_heads_of_a_group_share_keys_and_values() -> None:
    block = llama.Block(16, heads=4, groups=2, inner=24)
    each = torch.randn(2, 2, 5, 4)
    assert torch.equal(block._shared(each), each.repeat_interleave(2, dim=1))


def test_a_token_sees_none_behind_it() -> None:
    model = Llama(**TINY).model()
    tokens = torch.arange(12)[None]
    other = tokens.clone()
    other[0, 8:] += 1
    one, two = model(tokens), model(other)
    assert torch.equal(one[:, :8], two[:, :8])
    assert not torch.equal(one[:, 8:], two[:, 8:])
    assert one.shape == (1, 12, 128)


@pytest.mark.long
def test_stages_give_the_bits_of_the_unsplit_model(tmp_path: Path) -> None:
    for part, rows in (("train", 40), ("validation", 4)):
        numpy.save(tmp_path / f"{part}.npy", numpy.arange(rows * 16 + 1, dtype=numpy.uint16) ** 2 % 128)
    settings: dict[str, Any] = {
        "args": {**TINY, "folder": str(tmp_path)},
        "shards": 4,
        "batch_size": 4,
        "steps": 2,
        "precision": "bfloat16",
        "clip": 1.0,
        "optimizer": {"name": "adamw", "lr": 0.01, "betas": [0.9, 0.95]},
    }
    unsplit = train(Llama, ONE, **settings)
    for stages in (2, 4):
        split = train(Llama, Layout(stages, stages=stages), **settings)
        assert (split.trace, split.digest) == (unsplit.trace, unsplit.digest)
        assert str(split.metrics) == str(unsplit.metrics)
