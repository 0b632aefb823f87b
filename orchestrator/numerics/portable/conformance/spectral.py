"""Fourier transforms and linear algebra."""

from __future__ import annotations

import torch
from torch import Tensor

from orchestrator.numerics.portable.conformance.drawing import Case


def _definite(x: Tensor) -> Tensor:
    return x @ x.mT + 3 * torch.eye(x.shape[-1])


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x)


CASES: dict[str, Case] = {
    "fft": lambda d: d.both(lambda x: _real(torch.fft.fft(x)), d(5, 64)),
    "fft odd length": lambda d: d.both(lambda x: _real(torch.fft.fft(x)), d(5, 99)),
    "inverse fft": lambda d: d.both(lambda a, b: _real(torch.fft.ifft(torch.complex(a, b))), d(5, 64), d(5, 64)),
    "real fft": lambda d: d.both(lambda x: _real(torch.fft.rfft(x)), d(5, 64)),
    "real inverse fft": lambda d: d.both(lambda a, b: torch.fft.irfft(torch.complex(a, b)), d(5, 33), d(5, 33)),
    "fft in two dimensions": lambda d: d.both(lambda x: _real(torch.fft.fft2(x)), d(3, 16, 20)),
    "short-time fft": lambda d: d.both(
        lambda x: _real(torch.stft(x, 64, 16, window=torch.ones(64), return_complex=True)), d(2, 400)
    ),
    "cholesky": lambda d: d.both(lambda x: torch.linalg.cholesky(_definite(x)), d(4, 12, 12)),
    "inverse": lambda d: d.both(lambda x: torch.linalg.inv(_definite(x)), d(4, 12, 12)),
    "solve": lambda d: d.both(lambda x, y: torch.linalg.solve(_definite(x), y), d(4, 12, 12), d(4, 12, 3)),
    "triangular solve": lambda d: d.both(
        lambda x, y: torch.linalg.solve_triangular(x.tril() + 3 * torch.eye(12), y, upper=False), d(12, 12), d(12, 3)
    ),
    "determinant": lambda d: d.both(lambda x: torch.linalg.slogdet(_definite(x))[1], d(4, 12, 12)),
    "qr": lambda d: d.both(lambda x: torch.linalg.qr(x), d(4, 15, 9)),
    "svd": lambda d: d.both(lambda x: torch.linalg.svdvals(x), d(15, 9)),
    "svd with vectors": lambda d: torch.linalg.svd(d(15, 9), full_matrices=False),
    "eigh": lambda d: torch.linalg.eigh(_definite(d(12, 12))),
    "least squares": lambda d: torch.linalg.lstsq(d(15, 9), d(15, 2), driver="gelsd")[0],
    "matrix exponential": lambda d: d.both(torch.matrix_exp, d(9, 9)),
    "matrix power": lambda d: d.both(lambda x: torch.matrix_power(x, 5), d(9, 9)),
}
