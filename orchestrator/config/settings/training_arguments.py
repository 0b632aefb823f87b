"""A file of transformers' TrainingArguments, as its `to_json_string` writes it, read as settings.

    translated({"learning_rate": 3e-4, "per_device_train_batch_size": 16, "max_steps": 500})

Each argument is translated where a setting has the same meaning, left alone where it says nothing about what is trained, and
refused by its name otherwise, all at once. Arguments at their defaults are as good as absent, but for those that a file cannot
do without: how long, on how many rows, and the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.settings.sections import KeyPath
from orchestrator.errors import coded

_TELLING = {"output_dir", "per_device_train_batch_size", "num_train_epochs", "max_steps", "learning_rate"}
_TRAINING = ("pipeline", "args", "training")

# Names that say nothing about what is trained: files, messages, machines, and what is here always so or never.
_IDLE = (
    *("output_dir", "overwrite_output_dir", "include_num_input_tokens_seen", "include_tokens_per_second"),
    *("disable_tqdm", "project", "per_device_eval_batch_size", "eval_accumulation_steps", "eval_on_start"),
    *("eval_do_concat_batches", "eval_use_gather_object", "prediction_loss_only"),
    *("save_only_model", "save_on_each_node", "save_safetensors"),
    *("enable_jit_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
    *("full_determinism", "use_cpu", "no_cuda", "use_mps_device", "length_column_name"),
    *("torch_empty_cache_steps", "debug", "skip_memory_metrics", "do_train", "do_eval", "do_predict"),
    *("local_rank", "use_cache", "average_tokens_across_devices"),
    # Versions 4 wrote these, too.
    *("_n_gpu", "past_index", "ray_scope", "mp_parameters", "jit_mode_eval", "use_ipex", "xpu_backend"),
    *("tpu_num_cores", "tpu_metrics_debug", "per_gpu_eval_batch_size", "use_legacy_prediction_loop"),
    *("fp16_backend", "fp16_opt_level", "half_precision_backend"),
    *("push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token"),
    # How Seq2SeqTrainingArguments generate, which they do with `predict_with_generate` alone.
    *("generation_max_length", "generation_num_beams"),
)
_IDLE_KINDS = ("logging_", "log_", "hub_", "trackio_", "ddp_", "dataloader_")
# Names that are read with others.
_WITH_OTHERS = (
    *("lr_scheduler_kwargs", "warmup_ratio", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("weight_decay", "eval_steps", "save_steps", "metric_for_best_model", "greater_is_better"),
    *("gradient_accumulation_steps", "max_steps", "num_train_epochs", "per_device_train_batch_size"),
    *("learning_rate", "max_grad_norm"),
)

# The default of versions 4.
_UNUSED_FSDP = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
_INCLUDED = "leave it out: metrics(self, model, batch) of a subclass of Trainable has the whole batch"
# Name -> values that change nothing here, and the remedy for any other.
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "optim_args": ((None, ""), "take the target orchestrator.adapters.transformers:Model with a section optimizer"),
    "optim_target_modules": (
        (None,),
        "take the target orchestrator.adapters.transformers:Model with a section optimizer",
    ),
    "adafactor": ((False, None), "take the target orchestrator.adapters.transformers:Model with a section optimizer"),
    "fp16": ((False, None), "set bf16: gradients of float16 need a scaling that depends on earlier steps"),
    "bf16_full_eval": ((False,), "leave it out: evaluation computes as training does"),
    "fp16_full_eval": ((False,), "leave it out: evaluation computes as training does"),
    "use_liger_kernel": ((False,), "leave it out: its kernels are not known to repeat their bits"),
    "liger_kernel_config": ((None,), "leave it out"),
    "neftune_noise_alpha": ((None,), "add the noise in a forward of the model's own, from torch.randn"),
    "auto_find_batch_size": ((False,), "set per_device_train_batch_size; python -m orchestrator plan says what fits"),
    "eval_delay": ((0, None), "leave it out: evaluation.every counts from the first step"),
    "batch_eval_metrics": ((False,), "leave it out: metrics are means over batches as they are"),
    "push_to_hub": ((False,), "leave it out; export=RUN_ID to=FOLDER model=true writes what `hf upload` takes"),
    "resume_from_checkpoint": (
        (None, False),
        "name its folder as pipeline.args.model; resume=RUN_ID goes on with a run",
    ),
    "parallelism_config": ((None,), "leave it out: cluster.workers and cluster.stages say how a run is laid out"),
    "fsdp": ((None, "", []), "leave it out: update.sharded=true divides the optimizer's state"),
    "fsdp_config": ((None, _UNUSED_FSDP), "leave it out: update.sharded=true divides the optimizer's state"),
    "fsdp_min_num_params": ((0,), "leave it out: update.sharded=true divides the optimizer's state"),
    "fsdp_transformer_layer_cls_to_wrap": ((None,), "leave it out: update.sharded=true divides the optimizer's state"),
    "sharded_ddp": (("", []), "leave it out: update.sharded=true divides the optimizer's state"),
    "per_gpu_train_batch_size": ((None,), "set per_device_train_batch_size"),
    "torchdynamo": ((None,), "set torch_compile"),
    "split_batches": ((None, False), "leave it out"),
    "dispatch_batches": ((None, False), "leave it out"),
    "deepspeed": ((None,), "leave it out: update.sharded=true divides the optimizer's state"),
    "dataloader_drop_last": ((False,), "leave rows out of the data, so that data.batch_size divides their number"),
    "group_by_length": ((False,), "leave it out: an epoch visits all rows in random order"),
    "train_sampling_strategy": (("random",), "leave it out: an epoch visits all rows in random order"),
    "torch_compile_backend": ((None, "inductor"), "leave it out: run.compile has inductor"),
    "torch_compile_mode": ((None, "default"), "leave it out: run.compile has the default mode"),
    "sortish_sampler": ((False,), "leave it out: an epoch visits all rows in random order"),
    "predict_with_generate": ((False,), "generate in on_evaluation of a subclass of Trainable"),
    "generation_config": ((None,), "leave it out, and put generation_config.json into the folder of the model"),
    "include_for_metrics": ((None, []), _INCLUDED),
    "include_inputs_for_metrics": ((None, False), _INCLUDED),
}


_OF_TRL = "model_init_kwargs"  # a name that each of TRL's own kinds of arguments has
PICKLED = "training_args.bin"  # as Trainer writes it beside a checkpoint


def of_pickle(file: str) -> str:
    """A sentence for such a file, which executes code when it is read."""
    return coded(
        "transformers.arguments-pickled",
        f"{file}: it is a pickle, which executes code when it is read; make JSON of it where you trust it: python -c "
        f"\"import torch; print(torch.load('{file}', weights_only=False).to_json_string())\" > training_args.json",
    )


def is_one(names: Sequence[Any]) -> bool:
    """Whether a file with these keys is one of TrainingArguments."""
    return not _TELLING.isdisjoint(names)


@dataclass
class Translated:
    """The settings that a file stands for."""

    values: dict[KeyPath, Any] = field(default_factory=dict)  # by key
    said: dict[KeyPath, str] = field(default_factory=dict)  # how a value came about, where it is not the file's own
    problems: list[str] = field(default_factory=list)  # sentences, coded

    def put(self, key: str, value: Any, said: str = "") -> None:
        path = tuple(key.split("."))
        self.values[path] = value
        if said:
            self.said[path] = said

    def train(self, name: str, value: Any, said: str = "") -> None:
        """An argument of the pipeline."""
        self.put(".".join((*_TRAINING, name)), value, said)

    def refuse(self, name: str, value: Any, remedy: str) -> None:
        self.problems.append(
            coded("transformers.argument", f"{name}: {value!r} of TrainingArguments means nothing here: {remedy}")
        )


def translated(given: Mapping[str, Any], devices: int = 1) -> Translated:
    """Translate a file of TrainingArguments into settings. devices: on how many it was meant to run, each with the file's
    batch."""
    found = Translated()
    unknown = []
    for name, value in given.items():
        if name in _REFUSED:
            harmless, remedy = _REFUSED[name]
            if value not in harmless:
                found.refuse(name, value, remedy)
        elif name in _READ:
            _READ[name](found, value, given)
        elif name not in (*_IDLE, *_WITH_OTHERS) and not name.startswith(_IDLE_KINDS):
            unknown.append(name)
    found.problems += _of_unknown(unknown)
    _length(found, given)
    _rows(found, given, devices)
    _rate(found, given)
    return found


def _of_unknown(names: Sequence[str]) -> list[str]:
    if _OF_TRL in names:
        return [
            coded(
                "transformers.arguments-trl",
                f"{', '.join(names)}: these are names of TRL, whose trainers have a loss and batches of their own, which "
                "Trainable has not; write both in a pipeline, with a reference model as a frozen part of model() "
                "(docs/porting.md)",
            )
        ]
    return [
        coded("transformers.argument-unknown", f"{name}: TrainingArguments of transformers 5.23 have no such name")
        for name in names
    ]


def _length(found: Translated, given: Mapping[str, Any]) -> None:
    steps, epochs = given.get("max_steps") or -1, given.get("num_train_epochs", 3.0)
    if steps > 0:
        found.put("run.steps", steps)
    elif float(epochs).is_integer() and epochs >= 1:
        said = "" if "num_train_epochs" in given else "Trainer's default"
        found.put("run.epochs", int(epochs), said or "passes over the data; run.steps counts updates")
    else:
        found.refuse("num_train_epochs", epochs, "give a whole number, or max_steps")
    for name, key in (
        ("max_steps", "run.steps"),
        ("num_train_epochs", "run.epochs"),
        ("batch_size", "data.batch_size"),
    ):
        found.train(name, f"${{{key}}}")
    found.said[(*_TRAINING, "max_steps")] = "with the two below, the length of the schedule: that of the run"


def _rows(found: Translated, given: Mapping[str, Any], devices: int) -> None:
    each, accumulated = given.get("per_device_train_batch_size", 8), given.get("gradient_accumulation_steps") or 1
    what = f"{each} rows on each of {devices} devices" if devices > 1 else f"{each} rows on one device"
    more = f", {accumulated} times before an update" if accumulated > 1 else ""
    found.put("data.batch_size", each * accumulated * devices, f"{what}{more}: here all rows of a step, on all workers")


def _rate(found: Translated, given: Mapping[str, Any]) -> None:
    """The optimizer and the schedule."""
    found.train("learning_rate", given.get("learning_rate", 5e-5))
    for name in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"):
        if name in given:
            found.train(name, given[name])
    steps, ratio = given.get("warmup_steps") or 0, given.get("warmup_ratio") or 0.0
    if steps or ratio:
        found.train("warmup_steps", steps or ratio, "" if steps else "the part of all steps")
    if given.get("lr_scheduler_kwargs"):
        found.train("lr_scheduler_kwargs", given["lr_scheduler_kwargs"])
    clip = given.get("max_grad_norm", 1.0)
    if clip:
        found.put("gradient.clip", float(clip), "" if "max_grad_norm" in given else "Trainer's default")


def _kept(name: str) -> Callable[[Translated, Any, Mapping[str, Any]], None]:
    """Under its own name."""

    def read(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
        if value is not None:
            found.train(name, value)

    return read


def _as(key: str, wanted: Any = None) -> Callable[[Translated, Any, Mapping[str, Any]], None]:
    """As a setting; wanted: its value where the argument is true, None for the argument's own."""

    def read(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
        if value:
            found.put(key, value if wanted is None else wanted)

    return read


def _optim(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    fused = value == "adamw_torch_fused"
    found.train("optim", value, "its kernel is fused on a GPU alone, where it is so anyway" if fused else "")


def _checkpointing(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    if value:
        found.train("gradient_checkpointing", True)


def _checkpointing_options(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    if value and set(value) - {"use_reentrant"}:
        found.refuse(
            "gradient_checkpointing_kwargs", value, "leave it out: each layer is computed anew, with its random numbers"
        )


def _smoothing(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    if value:
        found.train("label_smoothing_factor", value)


def _columns(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    if value is False:
        found.train("remove_unused_columns", False)


def _precision(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    if value:
        found.put("run.precision", "bfloat16", "products; parameters and gradients stay float32")


def _data_seed(found: Translated, value: Any, given: Mapping[str, Any]) -> None:
    if value is not None and value != given.get("seed", 42):
        found.refuse("data_seed", value, "leave it out: run.seed is the seed of all randomness")


def _evaluation(found: Translated, value: Any, given: Mapping[str, Any]) -> None:
    steps = given.get("eval_steps") or given.get("logging_steps", 500)
    if value == "epoch":
        found.put("evaluation.every", "1epoch")
    elif value == "steps" and steps < 1:
        found.refuse("eval_steps", steps, "give a number of steps")
    elif value == "steps":
        found.put("evaluation.every", int(steps))


def _saving(found: Translated, value: Any, given: Mapping[str, Any]) -> None:
    steps = given.get("save_steps", 500)
    if value == "steps" and steps >= 1:
        found.put("checkpoint.every", int(steps))
    elif value == "epoch":
        found.put("checkpoint.every", "1epoch")
    elif value not in ("no", "best"):
        found.put(
            "checkpoint.every", "60s", f"save_strategy: {value}; checkpoints are what a run goes on from after a fault"
        )


def _best(found: Translated, value: Any, given: Mapping[str, Any]) -> None:
    if not value:
        return
    name = str(given.get("metric_for_best_model") or "loss").removeprefix("eval_")
    greater = given.get("greater_is_better")
    found.put("checkpoint.model", "best")
    found.put("checkpoint.best.metric", f"validation/{name}")
    found.put("checkpoint.best.mode", "max" if (not name.endswith("loss") if greater is None else greater) else "min")


def _report(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    names = [value] if isinstance(value, str) else list(value or [])
    if known := [name for name in names if name in ("tensorboard", "wandb")]:
        found.put("tracking.also", known)
    others = [name for name in names if name not in ("tensorboard", "wandb", "mlflow", "none", "all")]
    if others and len(names) == 1:  # several are what "all" became: the packages that were installed there
        found.refuse("report_to", others, "name tensorboard or wandb, or a logger of your own in tracking.also")


def _accelerator(found: Translated, value: Any, _: Mapping[str, Any]) -> None:
    if isinstance(value, Mapping) and (value.get("split_batches") or value.get("dispatch_batches")):
        found.refuse("accelerator_config", dict(value), "leave split_batches and dispatch_batches out")


_READ: Mapping[str, Callable[[Translated, Any, Mapping[str, Any]], None]] = {
    "lr_scheduler_type": _kept("lr_scheduler_type"),
    "optim": _optim,
    "label_names": _kept("label_names"),
    "label_smoothing_factor": _smoothing,
    "remove_unused_columns": _columns,
    "gradient_checkpointing": _checkpointing,
    "activation_checkpointing": _checkpointing,
    "gradient_checkpointing_kwargs": _checkpointing_options,
    "activation_checkpointing_kwargs": _checkpointing_options,
    "bf16": _precision,
    "tf32": _as("run.tf32", True),
    "torch_compile": _as("run.compile", True),
    "seed": lambda found, value, _: found.put("run.seed", value),
    "data_seed": _data_seed,
    "run_name": _as("run.name"),
    "eval_strategy": _evaluation,
    "evaluation_strategy": _evaluation,
    "save_strategy": _saving,
    "save_total_limit": _as("checkpoint.keep"),
    "load_best_model_at_end": _best,
    "report_to": _report,
    "dataloader_num_workers": _as("data.loaders"),
    "accelerator_config": _accelerator,
}
