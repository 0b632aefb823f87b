"""The switches of torch by which products of float32 may be computed with fewer bits: in TF32 on a GPU, in bfloat16 on some
processors.

For some of them torch has an older switch, too (`set_float32_matmul_precision`, `allow_tf32`). It raises when it is asked for
that while the two contradict each other, as after a script that uses the newer one alone. So only the newer ones are read.

Source: PyTorch 2.9, notes on CUDA semantics, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FULL = ("none", "ieee")
_CUDNN = "torch.backends.cudnn"  # uses TF32 by default


def read() -> dict[str, str]:
    """All of them, by the object whose `fp32_precision` each is."""
    return {name: str(place.fp32_precision) for name, place in _places().items()}


def lowered() -> list[str]:
    """Those that somebody has lowered."""
    return [name for name, value in read().items() if value not in _FULL and not name.startswith(_CUDNN)]


def put_back(before: Mapping[str, str]) -> None:
    """before: as `read` gave them."""
    if read() != before:
        _set(before)


def prepare(*, tf32: bool) -> None:
    """Have products be computed in float32, or with `tf32` on a GPU in that."""
    _set({name: "tf32" if tf32 and "cud" in name else "ieee" for name in _places()})


def _set(values: Mapping[str, str]) -> None:
    import torch

    # The older switches first, for they set newer ones, and to what agrees with these.
    cudnn: Any = torch.backends.cudnn
    torch.set_float32_matmul_precision(_older(values))
    cudnn.allow_tf32 = values[f"{_CUDNN}.conv"] == "tf32"
    for name, place in _places().items():
        place.fp32_precision = values[name]


def _older(values: Mapping[str, str]) -> str:
    here, there = (values[f"torch.backends.{device}.matmul"] for device in ("mkldnn", "cuda"))
    return "medium" if here == "bf16" else "high" if "tf32" in (here, there) else "highest"


def _places() -> dict[str, Any]:
    """Those that others follow come before these. One is left out, that of all parts of oneDNN: an assignment to it sets
    `torch.backends` (torch 2.9 to 2.13), and the parts' own are here."""
    import torch

    backends: Any = torch.backends
    cudnn, onednn = backends.cudnn, backends.mkldnn
    return {
        "torch.backends": backends,
        _CUDNN: cudnn,
        "torch.backends.cuda.matmul": backends.cuda.matmul,
        f"{_CUDNN}.conv": cudnn.conv,
        f"{_CUDNN}.rnn": cudnn.rnn,
        **{f"torch.backends.mkldnn.{of}": getattr(onednn, of) for of in ("matmul", "conv", "rnn")},
    }
