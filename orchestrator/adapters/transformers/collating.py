"""Batches as Trainer makes them: columns that the model does not take are left out, then a collator of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from orchestrator.adapters.transformers.library import folder, own, package
from orchestrator.errors import ConfigurationError

Collator = Callable[[list[Any]], Any]
_ALWAYS = ("label", "label_ids")  # which collators rename


def tokenizer_of(given: str | None) -> Any:
    """The tokenizer of a folder, None where none is named. Raises ConfigurationError."""
    if given is None:
        return None
    place = folder("tokenizer", given)
    return package("transformers").AutoTokenizer.from_pretrained(place, local_files_only=True)


def collator_of(given: Any, tokenizer: Any) -> Collator:
    """The collator of a model of Hugging Face. given: a name of transformers, or one of the user's as module:name, with its
    arguments beside `name`; None: as Trainer chooses. Raises ConfigurationError."""
    transformers = package("transformers")
    if given is None:
        usual = transformers.default_data_collator
        found: Any = usual if tokenizer is None else transformers.DataCollatorWithPadding(tokenizer)
        return found  # type: ignore[no-any-return]
    arguments = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise ConfigurationError(
            [f"pipeline.args.collator: expected a name, got {given!r}"],
            "such as DataCollatorWithPadding, {name: DataCollatorForLanguageModeling, mlm: false}, or module:function",
            code="transformers.collator-form",
        )
    found = own("collator", name) if ":" in name else getattr(transformers, name, None)
    if found is None:
        raise ConfigurationError(
            [f"pipeline.args.collator: transformers has no {name!r}"],
            "name one of its data collators, or a function of yours as module:function",
            code="transformers.no-such-collator",
        )
    if inspect.isclass(found):
        return _built(found, name, arguments, tokenizer)
    return (lambda items: found(items, **arguments)) if arguments else found


def _built(kind: Any, name: str, arguments: dict[str, Any], tokenizer: Any) -> Collator:
    wanted = inspect.signature(kind).parameters
    if "tokenizer" in wanted and tokenizer is None:
        raise ConfigurationError(
            [f"pipeline.args.collator: {name} needs a tokenizer"],
            "name its folder: pipeline.args.tokenizer",
            code="transformers.collator-tokenizer",
        )
    given = {"tokenizer": tokenizer} if "tokenizer" in wanted else {}
    try:
        made: Collator = kind(**given, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            [f"pipeline.args.collator: {name}{inspect.signature(kind)}: {error}"],
            "give arguments that it has",
            code="transformers.collator-arguments",
        ) from None
    return made


def taken_by(kind: Any, labels: Sequence[str]) -> frozenset[str]:
    """The columns that a class of models takes, as Trainer finds them. labels: the names of its labels."""
    return frozenset([*inspect.signature(kind.forward).parameters, *labels, *_ALWAYS])


def batch_of(items: Sequence[Any], collator: Collator, taken: Collection[str] | None) -> Any:
    """Make a batch of samples, as Trainer does. taken: the columns that the model takes; None where all are left as they
    are."""
    kept = [
        {key: value for key, value in item.items() if key in taken}
        if taken is not None and isinstance(item, Mapping)
        else item
        for item in items
    ]
    batch = collator(kept)
    return dict(batch) if isinstance(batch, Mapping) else batch
