"""A model from what the configuration says of it: a folder with weights, or a class and its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orchestrator.adapters.transformers.library import folder, own, package
from orchestrator.errors import ConfigurationError, PipelineRaised

_KEYS = ("class", "config", "folder", "options")
_FORM = (
    "model: FOLDER, or model: {class: AutoModelForCausalLM, folder: FOLDER}, or "
    "model: {class: GPT2LMHeadModel, config: {n_layer: 2}}"
)


class DescribedModel:
    """The model that `pipeline.args.model` describes. It is looked up when it is made of, and built by `make`.

    Raises ConfigurationError.
    """

    def __init__(self, given: Any) -> None:
        entry: Any = {"folder": given} if isinstance(given, str) else given
        if not isinstance(entry, Mapping) or not set(entry) <= set(_KEYS) or ("folder" in entry) == ("config" in entry):
            raise ConfigurationError(
                [f"pipeline.args.model: {given!r} is neither a folder nor a class with a configuration"],
                f"write {_FORM}",
                code="transformers.model-form",
            )
        self._options = _in_float32(entry.get("options", {}))  # of from_pretrained, or values of the configuration
        self.folder = folder("model", entry["folder"]) if "folder" in entry else None
        self._config = _values(entry["config"]) if "config" in entry else {}
        self.kind = self._class(entry.get("class"))  # of transformers, or the user's

    def make(self) -> Any:
        """A new model in float32: its weights read from the folder, or drawn."""
        if self.folder is not None:
            return self.kind.from_pretrained(self.folder, local_files_only=True, dtype=torch.float32, **self._options)
        config = self.configuration()
        return self.kind.from_config(config, dtype=torch.float32) if _is_auto(self.kind) else self.kind(config)

    def configuration(self) -> Any:
        """The configuration object of the model."""
        transformers = package("transformers")
        if self.folder is not None:
            return transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        values = {**self._config, **self._options}
        if not _is_auto(self.kind):
            return self.kind.config_class(**values)
        kind = values.pop("model_type", None)
        if kind is None:
            raise ConfigurationError(
                ["pipeline.args.model.config: an Auto class needs model_type in it"],
                "add it, such as model_type: gpt2, or name a class such as GPT2LMHeadModel",
                code="transformers.model-type",
            )
        return transformers.AutoConfig.for_model(kind, **values)

    def concrete(self) -> Any:
        """The class that is built, also behind an Auto class."""
        if not _is_auto(self.kind):
            return self.kind
        with torch.device("meta"):  # without memory
            return type(self.kind.from_config(self.configuration()))

    def _class(self, name: Any) -> Any:
        if name is None and self.folder is not None:
            name = _architecture(self.folder)
        if not isinstance(name, str):
            raise ConfigurationError(
                [f"pipeline.args.model.class: expected the name of a class of transformers, got {name!r}"],
                f"write {_FORM}",
                code="transformers.model-class",
            )
        if ":" in name:
            return own("model.class", name)
        found = getattr(package("transformers"), name, None)
        if found is None:
            raise ConfigurationError(
                [f"pipeline.args.model.class: transformers has no class {name!r}"],
                "name one of transformers, or one of yours as module:Class",
                code="transformers.no-such-class",
            )
        return found


def _values(given: Any) -> dict[str, Any]:
    """The values of a configuration: the mapping itself, or that of a JSON file or of the config.json of a folder."""
    if isinstance(given, Mapping):
        return dict(given)
    file = Path(str(given))
    file = file / "config.json" if file.is_dir() else file
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            [f"pipeline.args.model.config: {given!r} cannot be read: {error}"],
            "give a mapping, a JSON file, or a folder with config.json",
            code="transformers.config-unreadable",
        ) from None
    return {key: value for key, value in found.items() if key not in ("architectures", "transformers_version")}


def _in_float32(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the kind of the parameters. Raises ConfigurationError for another kind than that of all runs."""
    for name in ("dtype", "torch_dtype"):
        if str(options.get(name)).removeprefix("torch.") not in ("None", "auto", "float32"):
            raise ConfigurationError(
                [f"pipeline.args.model.options.{name}: {options[name]!r}, but the parameters of a run are float32"],
                "leave it out; run.precision=bfloat16 computes in bfloat16",
                code="transformers.dtype",
            )
    return {name: value for name, value in options.items() if name not in ("dtype", "torch_dtype")}


def _architecture(place: Path) -> str | None:
    names = _values(place) and json.loads((place / "config.json").read_text(encoding="utf-8")).get("architectures")
    return names[0] if names else None


def _is_auto(kind: Any) -> bool:
    return hasattr(kind, "from_config")


def with_adapter(model: Any, given: Any) -> Any:
    """The model with an adapter of peft, whose parameters alone are trained. given: a mapping, or a folder or file with
    adapter_config.json."""
    peft = package("peft")
    if isinstance(given, Mapping):
        values = dict(given)
    else:
        file = Path(str(given))
        values = _values(file / "adapter_config.json" if file.is_dir() else file)
    try:
        config = peft.get_peft_config(values)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            [f"pipeline.args.peft: peft refuses it: {type(error).__name__}: {error}"],
            "write it as peft's LoraConfig has it, such as {peft_type: LORA, r: 8, target_modules: [c_attn]}",
            code="transformers.peft",
        ) from None
    return peft.get_peft_model(model, config)


def is_changed_by_chance(model: Any) -> bool:
    """Whether its adapter began by a change of the model's own weights that follows from random numbers, as a fast PiSSA does.
    peft would draw others where it loads the adapter, and so compute with another model."""
    begins = (str(getattr(each, "init_lora_weights", "")) for each in model.peft_config.values())
    return any(each.startswith("pissa_niter_") for each in begins)


def merged(model: Any) -> Any:
    """A model of transformers with the change that its adapter makes. Raises PipelineRaised as `require_merge` does."""
    require_merge(model)
    return model.merge_and_unload()


def require_merge(model: Any) -> None:
    """Raises PipelineRaised for a kind of adapter that is no change of weights, such as a prompt, and for one that changes a
    tied weight in one of its places alone: merged, it would change all of them."""
    if not hasattr(model.base_model, "merge_and_unload"):
        raise PipelineRaised(
            "pipeline.args.peft: an adapter of this kind cannot be merged into its model, whose weights the run draws, so "
            "nobody could export it",
            "give the model as a folder with weights, which the adapter names then",
            code="transformers.no-merge",
        )
    if (tied := _changed_apart(model)) is not None:
        raise PipelineRaised(
            f"pipeline.args.peft: the adapter changes {tied[0]}, whose weight is that of {tied[1]}, too: merged into the model "
            "for its export it would change both, and so compute with another model",
            "give the model as a folder with weights, beside which an adapter is exported alone, or tie_word_embeddings: false "
            "in its configuration, or leave that layer out of target_modules",
            code="transformers.merge-tied",
        )


def _changed_apart(model: Any) -> tuple[str, str] | None:
    """A layer that an adapter changes, and another one with the same weight; None where there are none. Tokens that are trained
    themselves are so in all places of a tied weight."""
    layer_of_peft = package("peft").tuners.tuners_utils.BaseTunerLayer
    changed, places = set[int](), dict[int, list[str]]()
    for name, module in model.named_modules():
        if isinstance(module, layer_of_peft) and type(module).__name__ != "TrainableTokensLayer":
            changed |= {id(each) for each in module.get_base_layer().parameters(recurse=False)}
        for each in module.parameters(recurse=False):
            places.setdefault(id(each), []).append(name.removesuffix(".base_layer").rpartition(".")[2])
    return next(((names[0], names[1]) for each, names in places.items() if each in changed and len(names) > 1), None)


def unwrapped(model: Any) -> Any:
    """The model of transformers itself, within an adapter of peft."""
    inner = getattr(model, "get_base_model", None)
    return model if inner is None else inner()
