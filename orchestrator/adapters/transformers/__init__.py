"""Models, data, collators and arguments of Hugging Face as a pipeline.

    pipeline: {target: "orchestrator.adapters.transformers:Trainable", args: {model: models/bert, data: data/sentences}}

`Trainable` has the optimizer and the schedule of transformers' Trainer, `Model` those of the configuration. Nothing is ever
asked of a hub: models, tokenizers and data are folders and files of the project.
"""

from orchestrator.adapters.transformers.trainable import Model, Trainable

__all__ = ["Model", "Trainable"]
