"""Products of matrices and vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.numerics.portable.conformance.drawing import Case


def _sparse(matrix: Tensor, mask: Tensor) -> Tensor:
    return (matrix * mask).to_sparse()


CASES: dict[str, Case] = {
    "mm": lambda d: d.both(torch.mm, d(64, 96), d(96, 80)),
    "mm small": lambda d: d.both(torch.mm, d(3, 5), d(5, 2)),
    "mm odd": lambda d: d.both(torch.mm, d(129, 67), d(67, 131)),
    "mm large": lambda d: d.both(torch.mm, d(200, 300), d(300, 250)),
    "mm transposed": lambda d: d.both(lambda a, b: a.t() @ b.t(), d(90, 33), d(70, 90)),
    "mm float64": lambda d: d.both(torch.mm, d(40, 50).double(), d(50, 60).double()),
    "mm bfloat16": lambda d: d.both(torch.mm, d(64, 96).bfloat16(), d(96, 80).bfloat16()),
    "mv": lambda d: d.both(torch.mv, d(64, 96), d(96)),
    "dot": lambda d: d.both(torch.dot, d(1001), d(1001)),
    "outer": lambda d: d.both(torch.outer, d(31), d(65)),
    "addmm": lambda d: d.both(torch.addmm, d(80), d(64, 96), d(96, 80)),
    "addmv": lambda d: d.both(torch.addmv, d(64), d(64, 96), d(96)),
    "bmm": lambda d: d.both(torch.bmm, d(4, 20, 30), d(4, 30, 25)),
    "baddbmm": lambda d: d.both(torch.baddbmm, d(4, 20, 25), d(4, 20, 30), d(4, 30, 25)),
    "addbmm": lambda d: d.both(torch.addbmm, d(20, 25), d(4, 20, 30), d(4, 30, 25)),
    "matmul broadcast": lambda d: d.both(torch.matmul, d(2, 3, 17, 24), d(24, 31)),
    "linear": lambda d: d.both(F.linear, d(33, 300), d(128, 300), d(128)),
    "linear one row": lambda d: d.both(F.linear, d(1, 64), d(10, 64), d(10)),
    "linear without bias": lambda d: d.both(F.linear, d(8, 16, 64), d(65, 64)),
    "bilinear": lambda d: d.both(F.bilinear, d(9, 12), d(9, 14), d(7, 12, 14), d(7)),
    "einsum": lambda d: d.both(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), d(2, 3, 8, 16), d(2, 3, 9, 16)),
    "tensordot": lambda d: d.both(lambda a, b: torch.tensordot(a, b, 2), d(5, 6, 7), d(6, 7, 8)),
    "mlp": lambda d: d.both(
        d.module(nn.Sequential(nn.Linear(64, 100), nn.Tanh(), nn.Linear(100, 50), nn.Sigmoid(), nn.Linear(50, 10))),
        d(33, 64),
    ),
    "sparse mm": lambda d: torch.sparse.mm(_sparse(d(40, 50), d.mask(40, 50)), d(50, 30)),
    "sparse addmm": lambda d: torch.sparse.addmm(d(40, 30), _sparse(d(40, 50), d.mask(40, 50)), d(50, 30)),
    "sparse csr mm": lambda d: _sparse(d(40, 50), d.mask(40, 50)).to_sparse_csr() @ d(50, 30),
    "sparse csr mv": lambda d: _sparse(d(40, 50), d.mask(40, 50)).to_sparse_csr() @ d(50),
    "sparse times sparse": lambda d: torch.sparse.mm(
        _sparse(d(20, 30), d.mask(20, 30)), _sparse(d(30, 25), d.mask(30, 25))
    ).to_dense(),
    "sparse sum": lambda d: torch.sparse.sum(_sparse(d(40, 50), d.mask(40, 50)), 0).to_dense(),
}
