"""Kernels that find shapes alone find the same without torch's compiler, and do not import it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A process of its own, since a compiler that other tests have imported is there.
SHAPES = """
import json, sys
import torch
from torch.nn import functional
from orchestrator.numerics.shape_kernels import leave_the_compiler_out

def shapes():
    rows = torch.empty(2, 5, 8, device="meta")
    words = functional.embedding(torch.zeros(2, 5, dtype=torch.long, device="meta"), torch.empty(9, 8, device="meta"))
    hidden = functional.layer_norm(rows + words, (8,))
    heads = functional.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
    products = functional.linear(functional.gelu(heads), torch.empty(9, 8, device="meta"))
    loss = functional.cross_entropy(products.flatten(0, 1), torch.zeros(10, dtype=torch.long, device="meta"))
    images = functional.conv2d(torch.empty(2, 3, 6, 6, device="meta"), torch.empty(4, 3, 3, 3, device="meta"))
    found = [words, hidden, heads, products, loss, images, rows / 3, rows.mean(1), rows.where(rows > 0, 0)]
    return [[list(each.shape), list(each.stride()), str(each.dtype)] for each in found]

def refused():
    try:
        torch.empty(2, 3, device="meta") @ torch.empty(2, 3, device="meta")
    except RuntimeError as error:
        return str(error)

leave_the_compiler_out()
leave_the_compiler_out()
found = shapes(), refused()
early = "torch._dynamo" in sys.modules
import torch._dynamo
print(json.dumps([early, found == (shapes(), refused()), bool(found[1]), len(found[0])]))
"""


@pytest.mark.slow
def test_shapes_and_refusals_are_the_same_and_the_compiler_is_left_out() -> None:
    done = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True)
    early, same, is_refused, count = json.loads(done.stdout.splitlines()[-1])
    assert not early
    assert same
    assert is_refused
    assert count == 9
