"""Facts of a batch, found in host memory before transformers would look for them on the device.

It looks in each pass, waits for the device, and takes another way while a pass is recorded as a CUDA graph:

    positions         whether a row holds several sequences. Without positions in the batch a model counts them itself, from the
                      first token to the last, so there is one sequence in a row.
    attention_mask    whether it masks anything. If not, attention has faster kernels, with other bits. The collated batch says
                      so by an entry of its own, so micro-batches with padding and without have recordings of their own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from orchestrator.adapters.transformers.library import package

_MASK: Final = "attention_mask"
_MASKS_NOTHING: Final = "attention_mask_masks_nothing"
_here = threading.local()


def noted(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch, with the entry on its mask if that is the only one."""
    mask = batch.get(_MASK)
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or sum(key.endswith("mask") for key in batch) > 1:
        return dict(batch)
    return {**batch, _MASKS_NOTHING: bool(mask.all())}


def plain(batch: Any) -> Any:
    """The batch without that entry."""
    return {key: part for key, part in batch.items() if key != _MASKS_NOTHING} if isinstance(batch, Mapping) else batch


class Facts(NamedTuple):
    """The known facts of a batch. mask: on the device, None if it is not known whether it masks anything."""

    one_sequence: bool
    mask: torch.Tensor | None
    masks_nothing: bool

    @contextmanager
    def told(self) -> Iterator[None]:
        """Within the block transformers looks at nothing that is known."""
        _answering()
        _here.facts, _here.asks_of_mask = self, False
        try:
            yield
        finally:
            _here.facts = None


def of(batch: dict[str, Any]) -> Facts:
    """Takes the entry on the mask out of the batch, since it is no input of a model."""
    masks_nothing = batch.pop(_MASKS_NOTHING, None)
    return Facts("position_ids" not in batch, None if masks_nothing is None else batch[_MASK], bool(masks_nothing))


@functools.cache
def _answering() -> None:
    """Have transformers ask here before it looks, where this version of it looks."""
    masking: Any = package("transformers.masking_utils")
    answers: dict[str, Callable[..., Any]] = {
        "find_packed_sequence_indices": _packed,
        "_preprocess_mask_arguments": _prepared,
        "_ignore_causal_mask_sdpa": _ignored,
        "_ignore_bidirectional_mask_sdpa": _ignored,
    }
    for name, answering in answers.items():
        if (look := getattr(masking, name, None)) is not None:
            setattr(masking, name, functools.wraps(look)(functools.partial(answering, look)))


def _facts() -> Facts | None:
    """None where nothing is known."""
    return getattr(_here, "facts", None)


def _facts_of_masks() -> Facts | None:
    """None for torch's compiler, too: transformers looks at no mask then, and which tensor is the batch's cannot be told."""
    return None if torch.compiler.is_compiling() else _facts()


def _packed(look: Callable[[Any], Any], positions: Any) -> Any:
    facts = _facts()
    return None if facts is not None and facts.one_sequence else look(positions)


def _prepared(prepare: Callable[..., Any], config: Any, embedded: Any, mask: Any, *others: Any, **options: Any) -> Any:
    """Before a mask is made of the one that a model names, which may be one of its own."""
    if (facts := _facts_of_masks()) is not None:
        _here.asks_of_mask = mask is not None and facts.mask is not None and _same(mask, facts.mask)
    return prepare(config, embedded, mask, *others, **options)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether these are the same numbers at the same place, such as a view that a model takes of its input."""
    return one.device == other.device and one.device.type != "meta" and one.is_set_to(other)


def _ignored(look: Callable[..., bool], mask: Any, *lengths: Any, **options: Any) -> bool:
    """Whether attention needs no mask, which depends on lengths, too."""
    facts = _facts_of_masks()
    if facts is None or mask is None or not _here.asks_of_mask:
        return look(mask, *lengths, **options)
    return facts.masks_nothing and look(None, *lengths, **options)
