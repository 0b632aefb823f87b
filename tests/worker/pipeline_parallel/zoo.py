"""Pipelines of architectures that people train, small, on random data: each is trained whole and in stages.

Hugging Face's models are built from configurations; nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline
from tests.worker.pipeline_parallel import models

VOCABULARY, LENGTH = 50, 8


class _Random(Pipeline):
    """rows: uneven at the end of a pass, as real data are."""

    def __init__(self, rows: int = 19, held_out: int = 5) -> None:
        self.rows = rows
        self.held_out = held_out

    def samples(self, rows: int) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def datasets(self) -> tuple[TensorDataset, TensorDataset]:
        return TensorDataset(*self.samples(self.rows)), TensorDataset(*self.samples(self.held_out))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return models.pixels(model, batch)


class BatchnormMlp(_Random):
    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 8, 32), torch.randint(10, (rows, 8))

    def model(self) -> nn.Module:
        return models.mlp()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        inputs, labels = batch
        return functional.cross_entropy(model(inputs.flatten(0, 1)), labels.flatten())


class ResNet(_Random):
    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 3, 16, 16), torch.randint(10, (rows,))

    def model(self) -> nn.Module:
        return models.ResNet()

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


class UNet(_Random):
    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 3, 16, 16), torch.randint(4, (rows, 16, 16))

    def model(self) -> nn.Module:
        return models.UNet()


class _Tokens(_Random):
    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return torch.randint(VOCABULARY, (rows, LENGTH)), torch.randint(VOCABULARY, (rows, LENGTH))

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return models.cross_entropy(model, batch)


class Lstm(_Tokens):
    def model(self) -> nn.Module:
        return models.PlainLstm()


class Gpt2(_Tokens):
    """Its output layer is tied to its embedding."""

    def model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        model: nn.Module = GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=4, n_head=2, use_cache=False)
        )
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(input_ids=batch[0], labels=batch[0]).loss


class Mixtral(_Tokens):
    """Each layer sorts rows by their experts, and multiplies each group by a matrix of its own."""

    def model(self) -> nn.Module:
        from transformers import MixtralConfig, MixtralForCausalLM

        sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
        config: dict[str, Any] = {**sizes, **heads, "max_position_embeddings": 16, "use_cache": False}
        model: nn.Module = MixtralForCausalLM(MixtralConfig(**config))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(input_ids=batch[0], labels=batch[0]).loss


class Routed(_Random):
    """Each router looks at values, and returns as many rows as it likes."""

    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 16), torch.randint(4, (rows,))

    def model(self) -> nn.Module:
        return models.Routed()

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


class T5(_Tokens):
    """All blocks of the decoder use the encoder's result, as the other blocks use the biases of the first. Both halves and
    the output layer use one embedding."""

    def model(self) -> nn.Module:
        from transformers import T5Config, T5ForConditionalGeneration

        sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        config: dict[str, Any] = {**sizes, "decoder_start_token_id": 0, "use_cache": False}
        model: nn.Module = T5ForConditionalGeneration(T5Config(**config))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(input_ids=batch[0], labels=batch[1]).loss


class Bert(_Tokens):
    """Masks tokens at random, in evaluation and for its metrics too; its output layer is tied to its embedding."""

    def model(self) -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
        more: dict[str, Any] = {"num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 16}
        model: nn.Module = BertForMaskedLM(BertConfig(**sizes, **more))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        tokens = batch[0]
        mask = torch.bernoulli(torch.full(tokens.shape, 0.3)).bool() | (torch.rand(tokens.shape) < 0.1)
        mask[:, 0] = True
        logits = model(input_ids=tokens.masked_fill(mask, 1)).logits
        return functional.cross_entropy(logits[mask], tokens[mask]), float(mask.sum())

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        mask = torch.rand(batch[0].shape) < 0.3
        found = model(input_ids=batch[0].masked_fill(mask, 1)).logits.argmax(-1)
        return {"masked": mask.float().mean(), "accuracy": (found == batch[0]).float().mean()}


class Vit(_Random):
    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 3, 8, 8), torch.randint(5, (rows,))

    def model(self) -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 4}
        more: dict[str, Any] = {"intermediate_size": 64, "image_size": 8, "num_labels": 5, "hidden_dropout_prob": 0.1}
        model: nn.Module = ViTForImageClassification(ViTConfig(**sizes, **more))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return model(pixel_values=batch[0], labels=batch[1]).loss

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(pixel_values=batch[0]).logits.argmax(1) == batch[1]).float().mean()}


class Vae(_Random):
    def samples(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.randn(rows, 32),)

    def model(self) -> nn.Module:
        return models.Vae()

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return models.evidence(model, batch[0])


ZOO = (BatchnormMlp, ResNet, UNet, Lstm, Gpt2, Mixtral, Routed, T5, Bert, Vit, Vae)
