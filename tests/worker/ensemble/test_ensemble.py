"""Members as one model: what it computes, how it is kept, and that it is judged as a run judges a model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from orchestrator.common.values import Steps
from orchestrator.config.plan import Compute, Data, Run, Source
from orchestrator.config.resolve import resolve
from orchestrator.errors import Inconsistent
from orchestrator.experiments.search.sweeps import load_sweep
from orchestrator.numerics.determinism import left_as_it_was
from orchestrator.numerics.digests import model_digest
from orchestrator.pipeline import find
from orchestrator.worker.ensemble import saved
from orchestrator.worker.ensemble.__main__ import combine
from orchestrator.worker.ensemble.judging import Judge
from orchestrator.worker.ensemble.model import EnsembleModel
from orchestrator.worker.ensemble.pyfunc import _load_pyfunc
from orchestrator.worker.ensemble.request import Combined, Computing, Request, answer, answered
from orchestrator.worker.ensemble.saved import Blueprint
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from tests.refusals import refused
from tests.worker import pipelines as p

pytestmark = pytest.mark.slow

TARGET = "tests.worker.pipelines:Mlp"
ARGS = {"rows": 22, "held_out": 41}
BLUEPRINT = Blueprint(TARGET, ARGS, (3, 4, 5), "mean", {}, "logits", -1)


class Tuples(p.Small):
    def model(self) -> nn.Module:
        return nn.LSTM(p.FEATURES, 4, batch_first=True)


class Constant(nn.Module):
    """Says class 0 of each row, as sure as its only parameter says."""

    def __init__(self) -> None:
        super().__init__()
        self.sure = nn.Parameter(torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.sure.expand(len(rows)), *[torch.zeros(len(rows))] * (p.CLASSES - 1)], 1)


class Centring(nn.Module):
    """Changes its inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(p.FEATURES, p.CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(rows.sub_(0.5).mul_(2)))


class Centred(p.Small):
    def model(self) -> nn.Module:
        return Centring()


class Counting(p.Small):
    """Its model needs what datasets() finds."""

    def datasets(self) -> Any:
        found = super().datasets()
        self.features = found[0][0][0].numel()
        return found

    def model(self) -> nn.Module:
        return nn.Linear(self.features, p.CLASSES)


class Knowing(p.Small):
    """All rows are of class 0."""

    def datasets(self) -> Any:
        return tuple(torch.utils.data.TensorDataset(self.inputs(40), torch.zeros(40, dtype=torch.int64)) for _ in "12")

    def model(self) -> nn.Module:
        return Constant()


def workload(target: str = TARGET, args: Any = ARGS) -> PipelineAdapter:
    run = Run(Source(target, args), Compute("cpu", 1, "float32", False), 3, 1, None)
    return PipelineAdapter(find(target, args), run, Data(1, Steps.constant(6), 0))


def judge(blueprint: Blueprint = BLUEPRINT, *, chooses: bool = False) -> tuple[EnsembleModel, Combined]:
    work = workload(blueprint.target, blueprint.args)
    model = blueprint.build(work.pipeline)
    judging = Judge(work, 6, 0, 3)
    if chooses:
        model.weigh(judging.choose(model))
    return model, judging.judge(model, "", chooses=chooses)


def test_the_whole_is_the_mean_of_the_probabilities() -> None:
    model = BLUEPRINT.build()
    rows = torch.randn(9, p.FEATURES)
    with torch.no_grad():
        expected = torch.stack([member(rows).double().softmax(1) for member in model.members]).mean(0)
        assert torch.allclose(model(rows).double().exp(), expected, atol=1e-6)
        assert torch.allclose(
            model(rows).softmax(1).double(), expected, atol=1e-6
        )  # logits that stand where a member's do
    assert model(rows).dtype == torch.float32


def test_each_member_is_given_the_inputs_as_they_came() -> None:
    model = replace(BLUEPRINT, target=f"{__name__}:Centred").build()
    rows = torch.randn(9, p.FEATURES)
    with torch.no_grad():
        found, given = model.outputs(rows.clone()), [rows.clone() for _ in model.members]
        expected = [member(each).double().softmax(1) for member, each in zip(model.members, given, strict=True)]
        model.outputs(rows)
    assert torch.equal(found, torch.stack(expected))
    assert torch.equal(rows, given[0]), "and what has called it finds them as one model leaves them"


def test_members_that_agree_do_not_disagree_and_the_whole_is_as_good_as_they() -> None:
    model, found = judge(replace(BLUEPRINT, seeds=(7, 7, 7)))
    assert found.disagreement == pytest.approx(0, abs=1e-9)
    for name, value in found.metrics.items():
        assert value == pytest.approx(found.of_members[0][name], abs=1e-6)
    assert found.of_members[0] == found.of_members[1] == found.of_members[2]
    assert model.disagreement(torch.randn(2, p.FEATURES)).shape == (2,)


def test_disagreement_has_its_bounds() -> None:
    """Two members, each sure of another class: log 2."""
    model = Blueprint("tests.worker.ensemble.test_ensemble:Knowing", {}, (1, 2), "mean", {}, "logits", -1).build()
    for member, sure in zip(model.members, (200.0, -200.0), strict=True):
        torch.nn.init.constant_(member.get_parameter("sure"), sure)
    found = model.disagreement(torch.randn(3, p.FEATURES))
    # The second one divides its certainty between the other two classes.
    assert found.tolist() == pytest.approx([math.log(2)] * 3)


def test_a_member_is_judged_as_a_run_judges_its_model() -> None:
    """Over the same samples by the same functions; the mean loss of the members is an upper bound of the loss of the whole."""
    work = workload()
    model, found = judge()
    batches = [list(batch) for batch in work.evaluation_batches]
    assert found.samples == sum(map(len, batches)) == 41
    assert found.of_members[1] == Judge(work, 6, 0, 3).metrics(model.members[1], batches)
    for name, value in found.mean_of_members.items():
        assert value == pytest.approx(sum(each[name] or 0.0 for each in found.of_members) / 3)
    assert (found.metrics["validation/loss"] or 0) <= (found.mean_of_members["validation/loss"] or 0)
    share = (found.agreed["validation/share_of_0"] or 0) * 20 + (found.disagreed["validation/share_of_0"] or 0) * 21
    assert share / 41 == pytest.approx(found.metrics["validation/share_of_0"])


def test_weights_are_chosen_on_one_half_and_judged_by_the_other() -> None:
    blueprint = Blueprint("tests.worker.ensemble.test_ensemble:Knowing", {}, (1, 2, 3), "weighted", {}, "logits", -1)
    work = workload(blueprint.target, {})
    model = blueprint.build(work.pipeline)
    for member, sure in zip(model.members, (0.0, 5.0, -5.0), strict=True):
        torch.nn.init.constant_(member.get_parameter("sure"), sure)
    judging = Judge(work, 6, 0, 3)
    one, other = judging.halves(chooses=True)
    assert sorted(one + other) == list(range(40))
    assert (one, other) == Judge(work, 6, 0, 3).halves(chooses=True)
    model.weigh(judging.choose(model))
    assert model.weights.tolist() == [0.0, 1.0, 0.0]
    found = judging.judge(model, "", chooses=True)
    assert (found.chosen_on, found.samples) == (20, 20)
    assert found.metrics["validation/loss"] == pytest.approx(found.of_members[1]["validation/loss"])


def test_no_validation_samples_are_an_error() -> None:
    with refused("ensemble.no-validation"):
        judge(replace(BLUEPRINT, args={"rows": 22, "held_out": None}))
    with refused("ensemble.no-validation"):
        judge(replace(BLUEPRINT, args={"rows": 22, "held_out": 1}, combine="weighted"), chooses=True)


def test_outputs_that_cannot_be_combined_are_an_error() -> None:
    rows = torch.randn(2, 3, p.FEATURES)
    with refused("ensemble.not-a-tensor"):
        replace(BLUEPRINT, target="tests.worker.ensemble.test_ensemble:Tuples").build()(rows)
    with refused("ensemble.no-classes"):
        replace(BLUEPRINT, classes=5).build()(rows)


def test_classes_may_lie_in_any_dimension_and_values_have_none() -> None:
    rows = torch.randn(4, 7, p.FEATURES)
    model = BLUEPRINT.build()
    model.members = nn.ModuleList([Turned(member) for member in model.members])
    turned = replace(BLUEPRINT, classes=1).build()
    turned.members = model.members
    straight = BLUEPRINT.build()
    assert torch.equal(turned(rows).movedim(1, -1), straight(rows))
    values = replace(BLUEPRINT, output="values").build()
    assert torch.allclose(values(rows), torch.stack([member(rows) for member in values.members]).mean(0), atol=1e-6)
    assert values.disagreement(rows).shape == (4,)


class Turned(nn.Module):
    """Gives the classes second, as segmentation does."""

    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.member = member

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.member(rows).movedim(-1, 1)  # type: ignore[no-any-return]


def test_a_model_that_needs_what_datasets_finds_is_loaded(tmp_path: Path) -> None:
    """As when it was trained; model() raised, as it had read no data."""
    blueprint = replace(BLUEPRINT, target=f"{__name__}:Counting", args={})
    digest = saved.save(blueprint.build(workload(blueprint.target, {}).pipeline), blueprint, tmp_path / "model")
    assert model_digest(saved.load(tmp_path / "model")) == digest


class Raising(p.Small):
    def model(self) -> nn.Module:
        raise KeyError("a vocabulary")


def test_where_the_pipeline_raises_no_file_is_named_that_nobody_wrote(tmp_path: Path) -> None:
    saved.save(BLUEPRINT.build(), replace(BLUEPRINT, target=f"{__name__}:Raising", args={}), tmp_path / "model")
    with refused("pipeline.raised") as error:
        saved.load(tmp_path / "model")
    assert "a vocabulary" in str(error.value)
    assert "error.txt" not in str(error.value)


def test_a_saved_ensemble_is_the_same_one(tmp_path: Path) -> None:
    model = BLUEPRINT.build()
    model.weigh([0.5, 0.25, 0.25])
    digest = saved.save(model, BLUEPRINT, tmp_path / "model")
    again = saved.load(tmp_path / "model")
    assert model_digest(again) == digest
    rows = torch.randn(5, p.FEATURES)
    assert torch.equal(again(rows), model(rows))
    assert not again.training
    predicted = _load_pyfunc(str(tmp_path / "model")).predict(rows.numpy().astype(numpy.float64))
    assert torch.equal(torch.from_numpy(predicted["prediction"]), model(rows).exp())
    assert predicted["disagreement"].shape == (5,)
    by_name = _load_pyfunc(str(tmp_path / "model")).predict({"input": rows.numpy()})
    assert numpy.array_equal(by_name["prediction"], predicted["prediction"])
    described = json.loads((tmp_path / "model" / "ensemble.json").read_text())
    (tmp_path / "model" / "ensemble.json").write_text(json.dumps({**described, "digest": "0" * 64}))
    with refused("ensemble.damaged"):
        saved.load(tmp_path / "model")
    (tmp_path / "model" / "ensemble.json").write_text(
        json.dumps({**described, "target": "tests.worker.pipelines:Wide"})
    )
    with refused("ensemble.unfit"):
        saved.load(tmp_path / "model")
    with refused("ensemble.not-an-ensemble"):
        saved.load(tmp_path)


def request(folder: Path, **changes: Any) -> Request:
    """Three members that were not trained; the second has to be found out when its file is another one's."""
    model = BLUEPRINT.build()
    files, digests = [], []
    for number, member in enumerate(model.members):
        files.append(str(folder / f"{number}.safetensors"))
        save_file({name: tensor.clone() for name, tensor in member.state_dict().items()}, files[-1])
        digests.append(model_digest(member))
    computing = Computing(3, 6, 1, 1, "float32", "native")
    return replace(Request(BLUEPRINT, computing, files, digests, str(folder / "model")), **changes)


def test_a_request_is_answered_with_what_the_ensemble_came_to(tmp_path: Path) -> None:
    asked = request(tmp_path)
    asked.write(tmp_path / "request.json")
    with left_as_it_was():
        found = combine(Request.read(tmp_path / "request.json"))
    answer(tmp_path / "answer.json", found)
    assert answered(tmp_path / "answer.json") == Combined(**found.as_dict())
    assert model_digest(saved.load(tmp_path / "model")) == found.digest
    swapped = replace(asked, weights=[asked.weights[1], *asked.weights[1:]])
    with left_as_it_was(), refused("ensemble.other-member"):
        combine(swapped)
    answer(tmp_path / "answer.json", Inconsistent("so it is", "do that"))
    with pytest.raises(Inconsistent, match="so it is"):
        answered(tmp_path / "answer.json")
    with refused("ensemble.no-answer"):
        answered(tmp_path / "nothing.json")


def test_members_of_a_pipeline_that_splits_at_random_have_the_same_samples(tmp_path: Path) -> None:
    """`datasets()` is seeded by what members have in common, and by the run's own seed everywhere else."""
    pipeline = "pipeline: {target: 'tests.worker.pipelines:Small'}\noptimizer: {name: sgd, lr: 0.1}\n"
    file = tmp_path / "random.yaml"
    file.write_text(f"run: {{steps: 1, seed: 3}}\n{pipeline}ensemble: {{members: 3, data: disjoint}}\n")
    described = load_sweep(str(file), [])
    assert described.ensemble is not None
    plans = [resolve(described.settings_of(point)) for point in described.ensemble.points()]
    works = [PipelineAdapter(find(plan.run.pipeline.target, {}), plan.run, plan.data) for plan in plans]
    assert len({plan.run.seed for plan in plans}) == 3
    assert all(torch.equal(work.samples.dataset[0][0], works[0].samples.dataset[0][0]) for work in works)
    parts = [work.samples.subset.tolist() for work in works if work.samples.subset is not None]
    assert sorted(number for part in parts for number in part) == list(range(22))
    assert [work.samples.order.samples for work in works] == [len(part) for part in parts]
    other = replace(plans[1].data, seed=None)
    alone = PipelineAdapter(find(plans[1].run.pipeline.target, {}), plans[1].run, other)
    assert not torch.equal(alone.samples.dataset[0][0], works[1].samples.dataset[0][0])


@pytest.mark.long
def test_a_process_of_its_own_answers_the_same(tmp_path: Path) -> None:
    asked = request(tmp_path)
    asked.write(tmp_path / "request.json")
    command = [
        sys.executable,
        "-m",
        "orchestrator.worker.ensemble",
        str(tmp_path / "request.json"),
        str(tmp_path / "a.json"),
    ]
    subprocess.run(command, check=True, timeout=300)
    with left_as_it_was():
        assert answered(tmp_path / "a.json") == Combined(**combine(asked).as_dict())
