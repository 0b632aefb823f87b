"""A model of Hugging Face is trained by its names alone: on any layout, with an adapter, with recomputed activations."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator import Stream
from orchestrator.adapters.adapted import Course
from orchestrator.adapters.transformers import Model, Trainable, batch_facts
from orchestrator.adapters.transformers.data import load
from orchestrator.adapters.transformers.library import package
from orchestrator.numerics.streams import seeded
from tests.adapters.transformers import tiny
from tests.refusals import refused
from tests.worker.runs import ONE, Layout, train

# Each imports transformers, which takes ten seconds.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # peft asks by the old name
]
MODULE = tiny.__name__
SHORT: dict[str, Any] = {"training": {"max_steps": 4}}
CAUSAL: dict[str, Any] = {"model": tiny.CAUSAL, "data": f"{MODULE}:texts", **SHORT}
CAUSAL_MODEL = {key: value for key, value in CAUSAL.items() if key != "training"}
TAGGER: dict[str, Any] = {
    "model": tiny.TAGGER, "data": f"{MODULE}:sentences", "collator": f"{MODULE}:padded", **SHORT,
}  # fmt: skip
LORA = {"peft_type": "LORA", "r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, "lora_dropout": 0.1}


def trained(args: dict[str, Any], layout: Layout = ONE, **others: Any) -> Any:
    return train(Trainable, layout, args=args, optimizer=None, shards=4, batch_size=8, **others)


def with_training(args: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {**args, "training": {**args["training"], **training}}


@pytest.mark.parametrize("args", [CAUSAL, TAGGER], ids=["causal", "tagger"])
def test_each_layout_gives_the_same_bits(args: dict[str, Any]) -> None:
    one, four = trained(args), trained(args, Layout(4, "tree"))
    assert one.digest == four.digest
    assert one.losses == four.losses


def test_the_mean_is_over_tokens() -> None:
    """Each shard counts by its labels, so that the first loss is that of the whole batch in one shard."""
    whole = train(Trainable, args=TAGGER, optimizer=None, shards=1, batch_size=8, steps=1)
    assert trained(TAGGER, steps=1).losses == pytest.approx(whole.losses, rel=1e-6)


def test_recomputed_activations_change_no_bit() -> None:
    args = {**CAUSAL, "model": {**tiny.CAUSAL, "config": {**tiny.CAUSAL["config"], "resid_pdrop": 0.1}}}
    assert trained(args).digest == trained(with_training(args, gradient_checkpointing=True)).digest


def test_transformers_looks_for_several_sequences_in_a_row_only_where_a_batch_has_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masking = package("transformers.masking_utils")
    found: list[Any] = []
    plain = masking.find_packed_sequence_indices

    def look(of: torch.Tensor) -> Any:
        found.append(plain(of))
        return found[-1]

    monkeypatch.setattr(masking, "find_packed_sequence_indices", look)
    batch_facts._answering.cache_clear()
    try:
        pipeline = Trainable(**CAUSAL)
        model, tokens = pipeline.model(), torch.arange(12).view(2, 6)
        alone, _ = pipeline.loss(model, {"input_ids": tokens, "labels": tokens})
        assert not found
        twice = torch.arange(3).repeat(2, 2)
        packed, _ = pipeline.loss(model, {"input_ids": tokens, "labels": tokens, "position_ids": twice})
        assert found[0].tolist() == [[0, 0, 0, 1, 1, 1]] * 2
        assert packed != alone
    finally:
        batch_facts._answering.cache_clear()


def padded(lengths: list[int]) -> list[dict[str, Any]]:
    """Rows of 6 tokens, of which the last are padding."""
    return [
        {
            "input_ids": [*range(1, length + 1)] + [0] * (6 - length),
            "attention_mask": [1] * length + [0] * (6 - length),
            "labels": 1,
        }
        for length in lengths
    ]


CLASSIFIER = {**tiny.TAGGER, "class": "BertForSequenceClassification"}


@pytest.mark.parametrize("model", [CLASSIFIER, {**tiny.CAUSAL, "class": "GPT2ForSequenceClassification"}])
@pytest.mark.parametrize("lengths", [[6, 6], [6, 4]])
def test_transformers_does_not_look_at_the_mask_of_a_batch(model: dict[str, Any], lengths: list[int]) -> None:
    options = {**model["config"], "num_labels": 3, "pad_token_id": 0}
    pipeline = Trainable(**{**CAUSAL, "model": {**model, "config": options}})
    built = pipeline.model()
    batch, another = pipeline.collate(padded(lengths)), pipeline.collate(padded([6, 3]))
    assert list(batch)[-1] == "attention_mask_masks_nothing"
    assert list(pipeline.example(batch)) == ["input_ids", "attention_mask"]
    with Looks() as looks:
        told, other = loss_of(pipeline, built, batch), loss_of(pipeline, built, another)
        pipeline.metrics(built, batch)
    assert not looks.found
    plain = built(**batch_facts.plain(batch))["loss"]
    assert torch.equal(told, plain)
    assert not torch.equal(told, other)


def test_the_labels_of_a_class_are_no_part_of_what_it_is_asked() -> None:
    pipeline = Trainable(**{**CAUSAL, "model": {**tiny.TAGGER, "class": "BertForQuestionAnswering"}})
    places = {"start_positions": 1, "end_positions": 2}
    batch = pipeline.collate([{"input_ids": [1, 2, 3], **places}, {"input_ids": [3, 2, 1], **places}])
    assert set(batch) > set(places)
    assert list(pipeline.example(batch)) == ["input_ids"]


def loss_of(pipeline: Trainable, model: torch.nn.Module, batch: Any) -> torch.Tensor:
    found: Any = pipeline.loss(model, batch)
    loss: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return loss


class Looks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes where a value is looked at."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            self.found.append("".join(traceback.format_stack(limit=4)))
        return func(*args, **(kwargs or {}))


def test_another_mask_than_that_of_the_batch_is_looked_at() -> None:
    """A model may make one of its own, such as from padding in what its decoder is given."""
    facts = batch_facts.of({"attention_mask": torch.ones(2, 6).long(), "attention_mask_masks_nothing": True})
    masking = package("transformers.masking_utils")
    config: Any = Trainable(**CAUSAL).model().config
    config._attn_implementation = "sdpa"
    own = torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    with facts.told():
        assert masking.create_causal_mask(config, torch.zeros(2, 6, 4), facts.mask, None) is None
        assert masking.create_causal_mask(config, torch.zeros(2, 6, 4), own, None) is not None
        assert masking.create_causal_mask(config, torch.zeros(2, 6, 4), own | 1, None) is None


def test_a_pipeline_with_a_loss_of_its_own_finds_the_batch_as_it_was_collated() -> None:
    class Own(Trainable):
        def loss(self, model: torch.nn.Module, batch: Any) -> Any:
            return model(**batch)["loss"]

    assert list(Own(**CAUSAL).collate(padded([6, 6]))) == ["input_ids", "attention_mask", "labels"]


def test_only_the_parameters_of_an_adapter_are_trained() -> None:
    args = {**CAUSAL, "peft": LORA}
    model = Trainable(**args).model()
    own = {name for name, each in model.named_parameters() if each.requires_grad}
    assert own
    assert all("lora_" in name for name in own)
    with seeded(7, "model"):
        before = Trainable(**args).model().state_dict()
    after = trained(args, Layout(2))
    changed = {name for name, each in after.parameters.items() if not torch.equal(each, before[name])}
    assert changed == own
    assert after.digest == trained(with_training(args, gradient_checkpointing=True)).digest


@pytest.mark.parametrize(("drawn", "begins"), [(True, True), (False, True), (False, "pissa"), (False, "pissa_niter_2")])
def test_an_adapter_is_exported_alone_or_merged(drawn: bool, begins: bool | str, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    place, base = tmp_path / "exported", str(tmp_path / "base")
    if not drawn:
        AutoModelForCausalLM.from_config(Model(**CAUSAL_MODEL).model().config).save_pretrained(base)
    adapter = {**LORA, "init_lora_weights": begins}
    pipeline = Model(**{**CAUSAL_MODEL, "peft": adapter, **({} if drawn else {"model": base})})
    model, is_merged = pipeline.model().eval(), drawn or begins == "pissa_niter_2"
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "lora_B" in name:
                each.normal_()
        tokens = torch.arange(12)[None]
        wanted = model(input_ids=tokens).logits
        pipeline.save(model, place)
        assert (place / "adapter_config.json").exists() == (not is_merged)
        loaded = (AutoModelForCausalLM if is_merged else AutoPeftModelForCausalLM).from_pretrained(place).eval()
        assert loaded(input_ids=tokens).logits.numpy() == pytest.approx(wanted.numpy(), abs=1e-5)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")
@pytest.mark.parametrize(
    ("adapter", "code", "named"),
    [
        ({"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 2}, "no-merge", "export"),
        (
            {"peft_type": "LORA", "r": 2, "target_modules": ["wte"]},
            "merge-tied",
            "wte, whose weight is that of lm_head",
        ),
        ({"peft_type": "LORA", "r": 2, "target_modules": ["wte", "lm_head"]}, "merge-tied", "wte"),
    ],
    ids=["prefix", "embedding", "both"],
)
def test_an_adapter_that_no_export_could_merge_is_refused_before_the_run(
    adapter: dict[str, Any], code: str, named: str, tmp_path: Path
) -> None:
    """The first was refused at its export, and the export of the second was another model in silence."""
    with refused(f"transformers.{code}", named):
        Model(**CAUSAL_MODEL, peft=adapter).model()
    untied: dict[str, Any] = {**tiny.CAUSAL, "config": {**tiny.CAUSAL["config"], "tie_word_embeddings": False}}
    if code == "merge-tied":
        Model(**{**CAUSAL_MODEL, "model": untied}, peft=adapter).model()
    model: Any = Model(**CAUSAL_MODEL).model()
    model.save_pretrained(tmp_path)
    Model(**{**CAUSAL_MODEL, "model": str(tmp_path)}, peft=adapter).model()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "adapter",
    [
        {**LORA, "trainable_token_indices": {"wte": [1, 2]}},
        {"peft_type": "TRAINABLE_TOKENS", "token_indices": [1, 2], "target_modules": ["wte"]},
        {**LORA, "modules_to_save": ["lm_head"]},
    ],
    ids=["tokens and layers", "tokens", "a head"],
)
def test_one_that_is_trained_in_all_places_of_a_tied_weight_is_none_of_these(adapter: dict[str, Any]) -> None:
    Model(**CAUSAL_MODEL, peft=adapter).model()


def test_smoothed_labels_are_another_loss() -> None:
    assert trained(with_training(TAGGER, label_smoothing_factor=0.1), steps=1).losses != trained(TAGGER, steps=1).losses


@pytest.mark.parametrize("kind", ["Bart", "T5"])
def test_with_smoothed_labels_a_decoder_is_given_the_labels_before_as_without(kind: str) -> None:
    """And so it learns the same: with next to no smoothing losses are those without."""
    layers = {"num_layers": 1, "d_ff": 16, "d_kv": 8, "num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0}
    if kind == "Bart":
        of_bart = ("dropout", "attention_dropout", "activation_dropout")
        layers = {"encoder_layers": 1, "decoder_layers": 1, **dict.fromkeys(of_bart, 0.0)}
    options = {"vocab_size": tiny.VOCABULARY, "d_model": 16, "pad_token_id": 0, **layers}
    pipeline = Trainable(
        {"class": f"{kind}ForConditionalGeneration", "config": options},
        f"{MODULE}:texts",
        training={"max_steps": 4, "label_smoothing_factor": 1e-9},
    )
    model = pipeline.model()
    rows = torch.arange(1, 13).view(2, 6)
    batch = {"input_ids": rows, "labels": rows.flip(1)}
    smoothed, plain = loss_of(pipeline, model, batch), model(**batch).loss
    assert smoothed.item() == pytest.approx(plain.item(), rel=1e-5)


def test_several_labels_of_a_row_are_not_smoothed_as_in_trainer() -> None:
    several = {**tiny.TAGGER["config"], "num_labels": 3, "problem_type": "multi_label_classification"}
    pipeline = Trainable(
        **with_training({**CAUSAL, "model": {**CLASSIFIER, "config": several}}, label_smoothing_factor=0.1)
    )
    model = pipeline.model()
    batch = {"input_ids": torch.tensor([[1, 2], [3, 4]]), "labels": torch.tensor([[1.0, 0, 1], [0, 0, 1]])}
    assert torch.equal(loss_of(pipeline, model, batch), model(**batch).loss)


def test_biases_and_norms_do_not_decay() -> None:
    pipeline = Trainable(**with_training(TAGGER, weight_decay=0.1))
    model = pipeline.model()
    decaying, others = pipeline.optimizer(model).param_groups
    names = {id(each): name for name, each in model.named_parameters()}
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(
        name.endswith("weight") and "LayerNorm" not in name for name in (names[id(p)] for p in decaying["params"])
    )
    assert all("bias" in name or "LayerNorm" in name for name in (names[id(p)] for p in others["params"]))


def test_the_length_may_be_epochs() -> None:
    given = {"num_train_epochs": 3, "batch_size": 16, "warmup_steps": 0.5}
    pipeline = Trainable(**{**CAUSAL, "training": given})
    pipeline.datasets()
    assert [pipeline.rate(step) for step in range(9)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1, 0.75, 0.5, 0.25])


def test_metrics_are_those_of_compute_metrics_where_they_are_means() -> None:
    rows = {"input_ids": [[1, 2], [3, 4]], "labels": [0, 1]}
    classifier = {
        "class": "BertForSequenceClassification",
        "config": {**tiny.TAGGER["config"], "num_labels": 2},
    }
    batch = {key: torch.tensor(value) for key, value in rows.items()}
    pipeline = Model(classifier, f"{MODULE}:texts", metrics=f"{MODULE}:accuracy")
    with torch.no_grad():
        found = pipeline.metrics(pipeline.model().eval(), batch)
    assert found["accuracy"].item() in (0.0, 0.5, 1.0)
    pipeline = Model(classifier, f"{MODULE}:texts", metrics=f"{MODULE}:largest")
    with refused("transformers.metric-no-mean", "largest"), torch.no_grad():
        pipeline.metrics(pipeline.model().eval(), batch)


def without_labels() -> list[dict[str, Any]]:
    return [{"input_ids": row["input_ids"]} for row in tiny.texts()[0]]


def test_a_model_that_returns_no_loss_is_told_with_what_it_was_given() -> None:
    with refused("transformers.no-loss", "GPT2LMHeadModel returns logits for input_ids"):
        trained({**CAUSAL, "data": f"{__name__}:without_labels"})


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_parameters_of_another_kind_are_refused(name: str) -> None:
    for kind in ("auto", "float32", torch.float32):
        same = Model(**{**CAUSAL_MODEL, "model": {**tiny.CAUSAL, "options": {name: kind}}}).model()
        assert next(same.parameters()).dtype == torch.float32
    with refused("transformers.dtype", "bfloat16"):
        Model(**{**CAUSAL_MODEL, "model": {**tiny.CAUSAL, "options": {name: "bfloat16"}}})


def two_validations() -> dict[str, Any]:
    train, held_out = tiny.texts()
    return {"train": train, "validation_matched": held_out, "validation_mismatched": held_out}


def test_splits_of_which_none_is_evaluated_are_told() -> None:
    args = {**CAUSAL_MODEL, "data": f"{__name__}:two_validations"}
    course = Course(steps=4, epoch=5, batch_size=8, schedule="constant")
    silent, named = (
        Model(**{**args, "data": data}) for data in (args["data"], {"from": args["data"], "validation": "x"})
    )
    silent.datasets()
    [note] = silent.begin(course)
    advice = note.partition("pipeline.args.data: ")[2]
    assert "validation_matched, validation_mismatched" in note
    following = Model(**{**args, "data": yaml.safe_load(advice)})
    assert following.datasets()[1] == tiny.texts()[1]
    assert following.begin(course) == []
    with refused("transformers.no-such-split", "validation_mismatched"):
        named.datasets()


def test_data_lie_in_folders_and_files(tmp_path: Path) -> None:
    import datasets

    rows = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    table = datasets.Dataset.from_list(rows)
    table.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "two"))
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "rows.csv").write_text("text,label\na,0\nb,1\n")
    table.to_parquet(str(tmp_path / "rows.parquet"))
    for name in ("one", "rows.jsonl", "rows.csv", "rows.parquet"):
        train, validation, _ = load(str(tmp_path / name))
        assert ([train[0], train[1]], len(train), validation) == (rows, 2, None)
    assert load({"from": str(tmp_path / "two"), "validation": "test"})[1][1] == rows[1]
    assert load(str(tmp_path / "two"))[1:] == (None, ("test",))
    both = load({"train": str(tmp_path / "rows.csv"), "validation": str(tmp_path / "one")})
    assert [each[0] for each in both[:2]] == [rows[0]] * 2
    with refused("transformers.no-such-split", "test"):
        load({"from": str(tmp_path / "two"), "train": "trian"})
    with refused("transformers.no-such-split", "easy"):
        load({"from": str(tmp_path / "two"), "validation": {"easy": "test"}})
    for key, named in (("train", "two/train"), ("validation", "two/test")):
        with refused("transformers.several-splits", named):
            load({"train": str(tmp_path / "one"), key: str(tmp_path / "two")})
    with refused("transformers.data", "imdb"):
        load("imdb")
    with refused("transformers.data-form", "splits"):
        load({"from": "imdb", "splits": 2})


def test_a_folder_has_model_and_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    made = Model(tiny.TAGGER, f"{MODULE}:sentences").model()
    made.save_pretrained(tmp_path)  # type: ignore[operator]
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(tmp_path)
    collators = ["DataCollatorForTokenClassification", {"name": "DataCollatorForTokenClassification", "padding": True}]
    for collator in collators:
        pipeline = Model(str(tmp_path), f"{MODULE}:sentences", tokenizer=str(tmp_path), collator=collator)
        assert all(
            torch.equal(ours, theirs)
            for ours, theirs in zip(pipeline.model().parameters(), made.parameters(), strict=True)
        )
        rows, _ = pipeline.datasets()
        batch = pipeline.collate(rows[:3])
        assert batch["labels"].tolist()[0] == [*rows[0]["labels"], -100, -100]
        assert "number" not in batch
    with refused("transformers.collator-arguments", "paddding"):
        Model(str(tmp_path), "x", tokenizer=str(tmp_path), collator={"name": collators[0], "paddding": 1})


@pytest.mark.parametrize(
    ("code", "named", "given"),
    [
        ("transformers.not-a-folder", "bert-base-cased", {"model": "bert-base-cased"}),
        ("transformers.not-a-folder", "bert-base-cased", {"tokenizer": "bert-base-cased"}),
        ("transformers.model-form", "size", {"model": {"size": 3}}),
        ("transformers.model-class", "class", {"model": {"config": {}}}),
        ("transformers.no-such-class", "Berd", {"model": {"class": "Berd", "config": {}}}),
        ("transformers.model-type", "model_type", {"model": {"class": "AutoModelForCausalLM", "config": {}}}),
        ("transformers.config-unreadable", "nowhere", {"model": {"class": "GPT2LMHeadModel", "config": "nowhere"}}),
        ("transformers.collator-form", "3", {"collator": 3}),
        ("transformers.no-such-collator", "Padding", {"collator": "Padding"}),
        ("transformers.collator-tokenizer", "tokenizer", {"collator": "DataCollatorWithPadding"}),
        ("transformers.training-key", "learning_rate", {"training": {"learnin_rate": 1}}),
        ("transformers.training-number", "learning_rate", {"training": {"learning_rate": "5e-5"}}),
        ("transformers.length", "max_steps", {"training": {}}),
        ("transformers.optim", "lomo", {"training": {"max_steps": 1, "optim": "lomo"}}),
        ("transformers.lr-scheduler-type", "greedy", {"training": {"max_steps": 1, "lr_scheduler_type": "greedy"}}),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(code: str, named: str, given: dict[str, Any]) -> None:
    with refused(code, named):
        Trainable(**{**TAGGER, **given})


def test_an_auto_class_is_the_one_behind_it() -> None:
    options = {**tiny.TAGGER["config"], "model_type": "bert", "dtype": "bfloat16"}  # of published weights
    given = {"class": "AutoModelForTokenClassification", "config": options}
    pipeline = Model(given, f"{MODULE}:sentences")
    made = pipeline.model()
    assert type(made).__name__ == "BertForTokenClassification"
    assert {each.dtype for each in made.parameters()} == {torch.float32}
    assert "number" not in pipeline.collate(tiny.sentences()[0][:1])


def test_an_adapter_that_peft_does_not_know_is_refused() -> None:
    with refused("transformers.peft"):
        Trainable(**{**CAUSAL, "peft": {"peft_type": "LOHRA"}}).model()


def test_a_model_has_the_optimizer_of_the_configuration() -> None:
    with refused("transformers.model-optimizer", "max_steps"):
        Model(**TAGGER)


def mixed() -> tuple[dict[str, Any], Any]:
    rows, validation = tiny.texts()
    return {"few": rows[:8], "many": rows[8:]}, validation


class Counted(Stream):
    def stream(self, shard: int, shards: int, epoch: int, generator: torch.Generator) -> Any:  # noqa: ARG002
        return iter(tiny.texts()[0][shard::shards])


def streamed() -> tuple[Any, Any]:
    return Counted(), tiny.texts()[1]


RATES: set[float] = set()


class Rated(Trainable):
    def rate(self, step: int) -> float:
        RATES.add(found := super().rate(step))
        return found


def test_in_epochs_the_schedule_is_as_long_as_the_run_over_several_training_sets() -> None:
    """40 rows, 16 a step: a mixture of two sets has 5 steps in 2 epochs."""
    RATES.clear()
    training = {"num_train_epochs": 2, "batch_size": 16}
    args = {**CAUSAL, "data": f"{__name__}:mixed", "training": training}
    mixture = {"few": 0.5, "many": 0.5}
    train(Rated, args=args, optimizer=None, steps=None, epochs=2, shards=4, batch_size=16, mixture=mixture)
    assert sorted(RATES, reverse=True) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_a_stream_is_trained_on() -> None:
    args = {**CAUSAL, "data": f"{__name__}:streamed"}
    assert trained(args).digest == trained(args, Layout(3, "tree")).digest
