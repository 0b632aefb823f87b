"""A file of TrainingArguments is a source of settings: each argument is translated, idle, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config.settings import Every, Settings, load
from orchestrator.config.settings.training_arguments import translated
from orchestrator.errors import ConfigurationError
from tests.refusals import refused

# As versions 4 wrote them, without those that are the same in later ones.
DEFAULTS_OF_4: dict[str, Any] = {
    "overwrite_output_dir": False, "do_train": False, "do_eval": False, "do_predict": False, "prediction_loss_only": False,
    "per_gpu_train_batch_size": None, "per_gpu_eval_batch_size": None, "eval_accumulation_steps": None, "eval_delay": 0,
    "torch_empty_cache_steps": None, "lr_scheduler_type": "linear", "lr_scheduler_kwargs": {}, "warmup_ratio": 0.0,
    "warmup_steps": 0, "log_level": "passive", "log_on_each_node": True, "logging_dir": "out/runs/May01", "logging_steps": 500,
    "save_safetensors": True, "no_cuda": False, "use_mps_device": False, "jit_mode_eval": False, "use_ipex": False,
    "bf16": False, "fp16": False, "fp16_opt_level": "O1", "half_precision_backend": "auto", "fp16_backend": "auto",
    "ddp_backend": None, "tpu_num_cores": None, "tpu_metrics_debug": False, "debug": [], "past_index": -1, "fsdp": [],
    "fsdp_min_num_params": 0, "fsdp_transformer_layer_cls_to_wrap": None, "deepspeed": None, "optim": "adamw_torch",
    "fsdp_config": {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False},
    "accelerator_config": {"split_batches": False, "dispatch_batches": None, "even_batches": True}, "adafactor": False,
    "group_by_length": False, "report_to": ["tensorboard", "codecarbon"], "push_to_hub": False, "push_to_hub_token": "<TOKEN>",
    "push_to_hub_model_id": None, "push_to_hub_organization": None, "hub_token": "<HUB_TOKEN>", "hub_always_push": False,
    "gradient_checkpointing": False, "gradient_checkpointing_kwargs": None, "include_inputs_for_metrics": False,
    "mp_parameters": "", "auto_find_batch_size": False, "torchdynamo": None, "ray_scope": "last", "torch_compile": False,
    "dispatch_batches": None, "split_batches": None, "include_tokens_per_second": False, "neftune_noise_alpha": None,
    "include_num_input_tokens_seen": False, "average_tokens_across_devices": False, "sharded_ddp": "", "_n_gpu": 1,
    "evaluation_strategy": "no", "sortish_sampler": False, "predict_with_generate": False, "generation_max_length": None,
    "generation_num_beams": None, "generation_config": None, "eval_use_gather_object": False, "use_liger_kernel": False,
}  # fmt: skip
BASE: dict[str, Any] = {
    "pipeline": {
        "target": "orchestrator.adapters.transformers:Trainable",
        "args": {"model": "models/bert", "data": "data/sentences"},
    }
}


def read(tmp_path: Path, *overrides: str, **given: Any) -> Settings:
    file = tmp_path / "training_args.json"
    file.write_text(json.dumps({"output_dir": "out", **given}))
    return load([BASE, str(file)], list(overrides))


def test_what_means_the_same_here_is_translated(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        learning_rate=3e-4, weight_decay=0.1, adam_beta2=0.98, adam_epsilon=1e-6, lr_scheduler_type="cosine", warmup_steps=10,
        max_steps=200, per_device_train_batch_size=16, gradient_accumulation_steps=4, max_grad_norm=0.5, seed=3, bf16=True,
        gradient_checkpointing=True, eval_strategy="steps", eval_steps=50, save_strategy="steps", save_steps=20,
        save_total_limit=5, label_smoothing_factor=0.1,
        load_best_model_at_end=True, metric_for_best_model="eval_accuracy", report_to=["wandb"],
        run_name="tagger", dataloader_num_workers=2,
    )  # fmt: skip
    training = found.pipeline.args["training"]
    assert training == {
        "max_steps": 200, "num_train_epochs": None, "batch_size": 64, "learning_rate": 3e-4, "weight_decay": 0.1,
        "adam_beta2": 0.98, "adam_epsilon": 1e-6, "lr_scheduler_type": "cosine", "warmup_steps": 10,
        "gradient_checkpointing": True, "label_smoothing_factor": 0.1,
    }  # fmt: skip
    assert (found.run.steps, found.run.epochs, found.run.seed, found.run.name) == (200, None, 3, "tagger")
    assert (found.data.batch_size.at(0), found.data.loaders, found.run.precision) == (64, 2, "bfloat16")
    assert (found.gradient.clip, found.checkpoint.keep, found.tracking.also) == (0.5, 5, ("wandb",))
    assert found.evaluation.every is not None
    assert found.checkpoint.every is not None
    assert (found.evaluation.every.steps, found.checkpoint.every.steps) == (50, 20)
    best = found.checkpoint.best
    assert (found.checkpoint.model, best.metric, best.mode) == ("best", "validation/accuracy", "max")


def test_defaults_are_trainers(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert (found.run.epochs, found.data.batch_size.at(0), found.gradient.clip) == (3, 8, 1.0)
    training = found.pipeline.args["training"]
    assert (training["learning_rate"], training["num_train_epochs"], training["max_steps"]) == (5e-5, 3, None)


def test_the_command_line_wins(tmp_path: Path) -> None:
    found = read(tmp_path, "run.steps=7", "data.batch_size=32", "pipeline.args.training.learning_rate=0.1")
    assert found.run.epochs is None
    assert (
        found.pipeline.args["training"] | {"learning_rate": 0.1, "max_steps": 7, "batch_size": 32}
        == (found.pipeline.args["training"])
    )


def test_all_that_means_nothing_here_is_refused_at_once(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "fp16": True, "deepspeed": "ds.json", "push_to_hub": True, "dataloader_drop_last": True, "data_seed": 1,
        "num_train_epochs": 2.5, "group_by_length": True, "report_to": "comet_ml", "learning_rat": 1,
        "accelerator_config": {"split_batches": True}, "gradient_checkpointing_kwargs": {"every_n_layers": 2},
        "include_for_metrics": ["inputs"], "include_inputs_for_metrics": True, "generation_config": "models/summarize",
    }  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, **given)
    named = {name for name in given if any(f"json: {name}: " in problem for problem in caught.value.problems)}
    assert named == set(given)
    assert len(caught.value.problems) == len(given)
    assert set(caught.value.codes) == {"transformers.argument", "transformers.argument-unknown"}


def test_arguments_of_a_trainer_of_trl_are_told_as_such(tmp_path: Path) -> None:
    """Each was said to have no such name, and without them the file trained something else: by the loss of a language model."""
    given: dict[str, Any] = {"model_init_kwargs": None, "beta": 0.1, "loss_type": ["sigmoid"], "max_length": 1024}
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, **given)
    (problem,) = caught.value.problems
    assert caught.value.codes == ("transformers.arguments-trl",)
    assert "model_init_kwargs, beta, loss_type, max_length: these are names of TRL" in problem


def test_an_epoch_is_a_cadence(tmp_path: Path) -> None:
    found = read(tmp_path, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True)
    assert (found.evaluation.every, found.checkpoint.every) == (Every(epochs=1), Every(epochs=1))
    assert found.checkpoint.best.metric == "validation/loss"


def test_defaults_of_older_versions_are_as_good_as_absent(tmp_path: Path) -> None:
    found = read(tmp_path, **DEFAULTS_OF_4)
    assert (
        found.pipeline.args["training"] | {"optim": "adamw_torch", "lr_scheduler_type": "linear"}
        == (found.pipeline.args["training"])
    )
    assert (found.evaluation.every, found.tracking.also) == (None, ("tensorboard",))


def test_a_pickle_is_not_read() -> None:
    with refused("transformers.arguments-pickled", "to_json_string"):
        load([BASE, "out/checkpoint-500/training_args.bin"], [])


def test_devices_and_passes_before_an_update_are_rows_of_a_step() -> None:
    found = translated({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, devices=3)
    path = ("data", "batch_size")
    assert found.values[path] == 24
    assert found.said[path].startswith("4 rows on each of 3 devices, 2 times before an update")


def test_an_argument_that_is_no_part_of_an_epoch_is_a_number_of_steps(tmp_path: Path) -> None:
    assert read(tmp_path, warmup_ratio=0.1).pipeline.args["training"]["warmup_steps"] == 0.1
    with refused("transformers.argument", "eval_steps"):
        read(tmp_path, eval_strategy="steps", eval_steps=0.2)
