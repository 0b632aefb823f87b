"""A border at which a model cannot be cut is told by name, with the reason and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from orchestrator.worker.pipeline_parallel.cuts import activations, choose, cut
from orchestrator.worker.pipeline_parallel.survey import survey
from tests.refusals import refused
from tests.worker.pipeline_parallel.bits import cuts_of, made, surveyed
from tests.worker.pipeline_parallel.models import CASES, Case, Checkpointed, Experts, pixels, squares


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.last = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.inner(self.first(x)))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = self.second(self.first(x))
        return self.third(x if x.mean() > 0 else -x)


class Masked(nn.Module):
    """A mask that is drawn behind a dropout, and used behind a border."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = nn.functional.dropout(self.first(x), 0.5)
        mask = torch.rand(4) < 0.5
        return self.second(x) * mask


class Leaves(nn.Module):
    """Something in an attribute, which whoever calls it uses later."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.left = self.inner(x) * 2
        return self.left + 1


class Left(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.leaves, self.last = nn.Linear(4, 4), Leaves(), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.last(self.leaves(self.first(x))) + self.leaves.left


class ByItself(nn.Module):
    """Selects by what parameters decide."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.second(x[x.sum(1) > -9])


class Shaped(nn.Module):
    """The input of its second layer has a shape by values that the first one gives."""

    def __init__(self, shaped: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.shaped = shaped

    def forward(self, x: Any) -> Any:
        return self.last(self.second(self.shaped(self.first(x))))


SHAPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "where()": lambda x: x[torch.where(x.sum(1) > -9)[0]],
    "unique_consecutive()": lambda x: x[: len(torch.unique_consecutive(x.long()))],
    "bincount()": lambda x: x[: len(torch.bincount(x.abs().long().flatten()))],
    "repeat_interleave()": lambda x: x.repeat_interleave(x.abs().sum(1).long() + 1, 0),
    "one_hot()": lambda x: x[: functional.one_hot(x.abs().long()).shape[-1]],
    "_pack_padded_sequence()": lambda x: rnn.pack_padded_sequence(x[None], torch.tensor([2]), batch_first=True).data,
}


class Differentiating(nn.Module):
    """Its output is what its middle layer changes by with its input, as a force is of an energy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth, self.last = (nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: Any) -> Any:
        x = self.second(self.first(x))
        with torch.enable_grad():
            x = x.tanh()
            energy = self.fourth(self.third(x).tanh()).square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return self.last(force)


def penalised(model: nn.Module, x: Any) -> Any:
    """With a penalty on the gradient by the batch."""
    x = x.clone().requires_grad_()
    loss = squares(model, x)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + gradient.square().sum()


BATCH = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
# By case: the model, the borders, the error's code, and what the message names.
REFUSED = {
    "no module of that name": (CASES["gpt"], ("blocks.7",), "stages.border-not-called", "blocks.7"),
    "the wrong order": (CASES["gpt"], ("blocks.2", "blocks.1"), "stages.border-order", "blocks.2"),
    "twice": (CASES["gpt"], ("blocks.2", "blocks.2"), "stages.border-order", "blocks.2"),
    "what a module leaves behind": (
        Case(Left, squares, BATCH, ()),
        ("last",),
        "stages.border-barred",
        "'leaves'",
    ),
    "a mask of values": (
        Case(ByItself, squares, BATCH, ()),
        ("second",),
        "stages.border-barred",
        "__getitem__()",
    ),
    "a value": (Case(Branching, squares, BATCH, ()), ("third",), "stages.border-barred", "__bool__()"),
    "a script": (Case(Scripted, squares, BATCH, ()), ("inner",), "stages.scripted", "'inner'"),
    "a mask": (Case(Masked, squares, BATCH, ()), ("second",), "stages.border-barred", "drawn at random"),
    "the model": (CASES["gpt"], ("",), "stages.border-barred", "whole model"),
    "a gradient by the batch": (
        Case(CASES["mlp"].make, penalised, CASES["mlp"].batch[0], ()),
        ("2",),
        "stages.border-barred",
        "torch.autograd.grad",
    ),
    "a gradient by an activation": (
        Case(Differentiating, squares, BATCH, ()),
        ("last",),
        "stages.border-barred",
        "torch.autograd.grad",
    ),
    "a checkpoint": (
        Case(lambda: Checkpointed(reentrant=False), CASES["checkpoints"].loss, CASES["checkpoints"].batch, ()),
        ("blocks.1",),
        "stages.border-barred",
        "activation checkpoint",
    ),
}


@pytest.mark.parametrize("by", SHAPED)
def test_no_stage_begins_where_a_shape_before_follows_from_values(by: str) -> None:
    case = Case(lambda: Shaped(SHAPED[by]), squares, BATCH, ())
    with refused("stages.border-barred", by):
        cuts_of(case, ("second",))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_refused_borders(what: str) -> None:
    case, borders, code, named = REFUSED[what]
    with refused(code, named) as raised:
        cuts_of(case, borders)
    assert raised.value.remedy


def test_what_the_model_itself_reads_may_stand_behind_the_last_border() -> None:
    x, y = torch.randn(12, 16), torch.randint(0, 4, (12,))
    case = Case(Experts, pixels, (x, y), ())
    assert cuts_of(case, ("gate",)).borders == ("gate",)
    with refused("stages.border-barred"):
        cuts_of(case, ("out",))


def test_experts_to_which_no_row_goes_are_held_where_the_others_are() -> None:
    """Also where the border lies within the module that calls them."""
    case = Case(lambda: Experts(8, spares=True), pixels, (torch.randn(2, 16), torch.randint(0, 4, (2,))), ())
    unused = {name for name, _ in made(case).named_parameters()} - surveyed(case).uses.keys()
    assert len(unused) >= 12
    cuts = cuts_of(case, ("gate",))
    assert {cuts.owners[name] for name in unused} == {1}


def test_gradients_within_a_loss_may_stand_behind_the_last_border() -> None:
    case = Case(Differentiating, squares, BATCH, ())
    assert cuts_of(case, stages=2).borders == ("second",)
    with refused("stages.no-parameters", "torch.autograd.grad"):
        cuts_of(Case(CASES["mlp"].make, penalised, CASES["mlp"].batch[0], ()))


def test_too_many_stages_name_the_modules_that_could_begin_one() -> None:
    case = Case(Branching, squares, BATCH, ())
    with refused("stages.not-cut"):
        cuts_of(case, stages=4)


def test_what_stands_in_the_way_is_named_with_the_module_that_does_it() -> None:
    with refused("stages.not-cut"):
        cuts_of(Case(ByItself, squares, BATCH, ()), stages=3)


def test_what_crosses_by_a_name_of_its_own_is_chosen_only_where_there_is_no_other_way() -> None:
    case = CASES["variational"]
    assert cuts_of(case, stages=2).borders == ("encoder.2",)
    assert cuts_of(case, stages=3).borders == ("encoder.2", "decoder.2")
    assert cuts_of(case, ("decoder",)).skips["training"] != ((),)


def test_parameters_are_owned_by_the_first_stage_that_uses_them() -> None:
    cuts = cuts_of(CASES["gpt"], ("blocks.1", "norm"))
    assert cuts.owners["embedding.weight"] == 0
    assert cuts.tied == ("embedding.weight",)
    assert cuts.guests(2) == {"embedding.weight"}
    assert {name for name in cuts.owned(1) if not name.startswith(("blocks.1", "blocks.2"))} == set()
    assert sum(cuts.shares) == pytest.approx(1)


def test_the_same_borders_are_chosen_each_time_and_are_balanced() -> None:
    case = CASES["gpt"]
    model = made(case)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    found = surveyed(case)
    chosen = choose({"training": found}, 3, sizes)
    assert chosen == choose({"training": surveyed(case)}, 3, sizes) == ["blocks.1", "blocks.2"]
    cuts = cut({"training": found}, chosen, list(sizes))
    assert max(cuts.shares) < 2 * min(cuts.shares)


def test_all_ways_to_call_the_model_have_to_meet_the_borders() -> None:
    model = made(CASES["mlp"])
    names = [name for name, _ in model.named_parameters()]
    inputs = torch.randn(4, 32)
    training = survey(model, lambda: model(inputs))
    metrics = survey(model, lambda: model[:3](inputs))  # type: ignore[index]
    with refused("stages.border-not-called"):
        cut({"training": training, "metrics": metrics}, ["4"], names)
    with refused("stages.not-cut"):
        choose({"training": training, "metrics": metrics}, 5, {})


class Widening(nn.Module):
    """Keeps of 8 rows: the input of each layer, and the result of tanh, which is the input of the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 16), nn.Linear(16, 64), nn.Linear(64, 1)

    def forward(self, x: Any) -> Any:
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_what_autograd_keeps_is_counted_once_where_it_is_made_and_parameters_are_not() -> None:
    model, x = Widening(), torch.randn(8, 4)
    found = survey(model, lambda: model(x).sum(), keeps=True)
    of_input, of_first, of_second = 8 * 4 * 4, 8 * 16 * 4, 8 * 64 * 4
    assert activations(found, ()) == (of_input + of_first + of_second,)
    assert activations(found, ("second", "third")) == (of_input + of_first, of_second, 0)
    assert activations(survey(model, lambda: model(x).sum()), ("second",)) == (0, 0)
