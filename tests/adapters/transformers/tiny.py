"""Small models and data of Hugging Face, made here: a causal language model, and a token classifier with a padding collator."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY, ROWS, HELD_OUT, LABELS = 40, 40, 10, 3

CAUSAL: dict[str, Any] = {
    "class": "GPT2LMHeadModel",
    "config": {
        "vocab_size": VOCABULARY,
        "n_positions": 16,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
}
TAGGER: dict[str, Any] = {
    "class": "BertForTokenClassification",
    "config": {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "num_labels": LABELS,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    },
}


def texts() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Twelve tokens each, which count upwards."""
    drawn = torch.Generator().manual_seed(1)
    first = torch.randint(VOCABULARY, (ROWS + HELD_OUT, 1), generator=drawn)
    tokens = (first + torch.arange(12)) % VOCABULARY
    rows = [{"input_ids": row, "labels": row} for row in tokens.tolist()]
    return rows[:ROWS], rows[ROWS:]


def sentences() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """They have several lengths; the label of a token follows from it, and the first one has none. A column is of no use to the
    model."""
    drawn = torch.Generator().manual_seed(2)
    rows = []
    for number in range(ROWS + HELD_OUT):
        tokens = torch.randint(1, VOCABULARY, (3 + number % 7,), generator=drawn).tolist()
        labels = [-100, *(token % LABELS for token in tokens[1:])]
        rows.append({"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": labels, "number": number})
    return rows[:ROWS], rows[ROWS:]


def padded(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """As DataCollatorForTokenClassification pads, which needs a tokenizer."""
    length = max(len(item["input_ids"]) for item in items)
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        key: torch.tensor([item[key] + [value] * (length - len(item[key])) for item in items])
        for key, value in fill.items()
    }


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def largest(prediction: Any) -> dict[str, float]:
    return {"largest": float(prediction.predictions.max())}
