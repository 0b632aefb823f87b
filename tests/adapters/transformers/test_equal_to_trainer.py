"""On one worker and one shard a run has the losses of Trainer's own loop on the same batches.

The gradient of a run is rounded onto a common grid, once, so that sums of it are exact; Trainer's is not. On one shard this
changes a bit of a gradient only far below its largest element, and after some steps the last bits of a loss.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.adapters.transformers import Trainable
from orchestrator.common.values import Steps
from orchestrator.config.settings.training_arguments import translated
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import shuffled
from orchestrator.numerics.streams import seeded
from tests.adapters.transformers import tiny
from tests.worker.runs import train

pytestmark = pytest.mark.long

SEED, STEPS, BATCH = 7, 20, 8
MODULE = tiny.__name__
CAUSAL = {"model": tiny.CAUSAL, "data": f"{MODULE}:texts"}
TAGGER = {"model": tiny.TAGGER, "data": f"{MODULE}:sentences", "collator": f"{MODULE}:padded"}
TRAINING = {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 4, "max_steps": STEPS}


def trainers_losses(args: dict[str, Any], folder: Path, **others: Any) -> list[float]:
    """Those of its loop, with the model and the batches of a run."""
    from transformers import Trainer, TrainingArguments

    pipeline = Trainable(**args)
    with seeded(SEED, "datasets"):
        rows, _ = pipeline.datasets()
    with seeded(SEED, "model"):
        model = pipeline.model()
    order = shuffled(Epochs(SEED, len(rows), Steps.constant(BATCH), 1))
    losses = []

    class Recording(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            batches = [order.indices(step, 0) for step in range(STEPS)]
            return torch.utils.data.DataLoader(rows, batch_sampler=batches, collate_fn=pipeline.collate)

        def training_step(self, *given: Any, **named: Any) -> Any:
            loss = super().training_step(*given, **named)
            losses.append(loss.item())
            return loss

    told = TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        optim="adamw_torch",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **args["training"],
        **others,
    )
    Recording(model, told, train_dataset=rows).train()
    return losses


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("args", [CAUSAL, TAGGER], ids=["causal", "tagger"])
def test_the_losses_are_trainers(args: dict[str, Any], clip: float | None, tmp_path: Path) -> None:
    args = {**args, "training": TRAINING}
    theirs = trainers_losses(args, tmp_path, max_grad_norm=clip or 0.0)
    run = train(Trainable, args=args, steps=STEPS, shards=1, batch_size=BATCH, optimizer=None, clip=clip, seed=SEED)
    assert sum(ours == their for ours, their in zip(run.losses, theirs, strict=True)) >= STEPS - 3
    assert run.losses == pytest.approx(theirs, rel=1e-6)
    assert theirs[-1] < theirs[0]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # versions 4 have no other name
@pytest.mark.parametrize(
    ("args", "training", "precision"),
    [
        (TAGGER, {"label_smoothing_factor": 0.1}, "float32"),
        (CAUSAL, {"label_smoothing_factor": 0.1, "lr_scheduler_type": "constant_with_warmup"}, "float32"),
        (CAUSAL, {"gradient_checkpointing": True, "lr_scheduler_type": "polynomial"}, "float32"),
        (CAUSAL, {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}, "float32"),
        (TAGGER, {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 0.2}, "bfloat16"),
        (CAUSAL, {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}}, "bfloat16"),
    ],
    ids=str,
)
def test_so_are_those_of_other_arguments(
    args: dict[str, Any], training: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    args = {**args, "training": TRAINING | training}
    theirs = trainers_losses(args, tmp_path, max_grad_norm=0.5, bf16=precision == "bfloat16")
    run = train(
        Trainable,
        args=args, steps=STEPS, shards=1, batch_size=BATCH, optimizer=None, clip=0.5, seed=SEED, precision=precision,
    )  # fmt: skip
    assert run.losses == pytest.approx(theirs, rel=1e-6 if precision == "float32" else 1e-2)
    assert theirs[-1] < theirs[0]


def test_every_argument_of_this_version_is_known_and_its_default_fits() -> None:
    from transformers import TrainingArguments

    written = json.loads(TrainingArguments("out", use_cpu=True).to_json_string())
    assert translated(written).problems == []
