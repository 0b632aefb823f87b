"""Names of torch that no version promises, and for which there is no way round: no public one leads to what they hold.

They are as old as torch 2.2 and stand in the tested versions (`common.tested_versions.TORCH`). A torch that lacks one is
refused before a run starts, since what hangs on it would go wrong in the middle of one, or without a word.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

NEEDED = {
    "torch:_VF": "the LSTM under portable arithmetic",
    "torch:Tensor._version": "the proof that nobody has changed a tensor",
    "torch:Tensor._make_wrapper_subclass": "the types that autocast gives to what another stage computes",
    "torch:Tensor._backward_hooks": "the refusal of hooks that would see a part of a gradient",
    "torch:Tensor._post_accumulate_grad_hooks": "the refusal of hooks that would see a part of a gradient",
    "torch._C:_DisableTorchDispatch": "the types that autocast gives to what another stage computes",
    "torch._C:_len_torch_dispatch_stack": "the calls of a compiled model that are eager",
    "torch._C:_functorch.peek_interpreter_stack": "the calls of a compiled model that are eager",
    "torch.nn.modules.batchnorm:_BatchNorm": "the layers that need several rows",
    "torch.nn.modules.batchnorm:_NormBase": "the layers whose buffers move",
    "torch.nn.utils.parametrizations:_SpectralNorm": "the layers whose buffers move",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack": "the calls of a compiled model that are eager",
    "torch.utils._python_dispatch:_disable_current_modes": "the operators that depend on the processor",
}
# The same of a module of a model.
NEEDED_OF_MODULES = {
    "_parameters": "the places of parameters in a model",
    "_buffers": "the places of buffers in a model",
    "_modules": "the layers of a model",
    "_forward_pre_hooks": "the layers whose buffers move",
    "_backward_hooks": "the refusal of hooks that stages cannot set",
    "_backward_pre_hooks": "the refusal of hooks that stages cannot set",
    "_compiled_call_impl": "the refusal of compiled modules",
    "_call_impl": "the calls of a compiled model that are eager",
}


def problems() -> list[str]:
    """A sentence for each name that this torch lacks."""
    absent = {name.replace(":", "."): what for name, what in NEEDED.items() if not _is_there(*name.split(":"))}
    model = torch.nn.Module()
    absent |= {f"torch.nn.Module.{name}": what for name, what in NEEDED_OF_MODULES.items() if not hasattr(model, name)}
    return [f"torch {torch.__version__} has no {name}, on which hangs: {what}" for name, what in absent.items()]


def _is_there(module: str, path: str) -> bool:
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return False
    for name in path.split("."):
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True
