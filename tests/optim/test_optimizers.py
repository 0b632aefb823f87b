"""The optimizers on offer: every wrong option is said before a run starts, and none of them touches the gradients."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from orchestrator.optim import optimizer_state, optimizers
from orchestrator.optim.optimizer_laws import check, problems
from orchestrator.optim.optimizer_state import kept_aside, marks_of_all_else, model_marks
from orchestrator.optim.optimizers import OPTIMIZERS, build
from orchestrator.pipeline import Pipeline
from tests.refusals import refused

SWITCHES = ("foreach", "fused", "nesterov", "maximize", "amsgrad", "centered", "decoupled_weight_decay")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_can_be_built_and_steps(name: str) -> None:
    assert problems(name, {}) == []
    assert problems(name, {"lr": 0.01}) == []
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimizer = build(name, {"lr": 0.1}, model)
    check(optimizer, model)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


def _variants() -> Iterator[Any]:
    """Every switch of every optimizer, in all combinations."""
    for name in OPTIMIZERS:
        known = [switch for switch in SWITCHES if switch in OPTIMIZERS.options(name)]
        for values in itertools.product((False, True), repeat=len(known)):
            options: dict[str, Any] = dict(zip(known, values, strict=True))
            if options.get("nesterov"):
                options["momentum"] = 0.9
            yield name, options


def test_none_changes_the_gradients_that_peers_still_read() -> None:
    """All variants that are not refused leave them alone."""
    refused = 0
    for name, options in _variants():
        for decay in (0.0, 0.1):
            given = {"weight_decay": decay, **options} if "weight_decay" in OPTIMIZERS.options(name) else options
            if problems(name, given):
                refused += 1
                continue
            model = nn.Linear(2, 2)
            optimizer = build(name, given, model)
            for step in range(2):
                gradient = torch.tensor([[1.0, -2.0], [0.5, step]])
                version = gradient._version
                model.weight.grad = gradient
                optimizer.step()
                assert (gradient._version, gradient[1, 1].item()) == (version, step), (name, given)
    assert refused > 0


def test_lists_of_yaml_become_tuples() -> None:
    assert problems("adamw", {"betas": [0.8, 0.9]}) == []
    assert build("adamw", {"betas": [0.8, 0.9]}, nn.Linear(1, 1)).defaults["betas"] == (0.8, 0.9)


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1))
    (group,) = build("sgd", {"lr": 1.0}, model).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model.get_submodule("1").parameters()]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("adanw", {}, ("optimizer.name", "'adanw'", "did you mean adamw", "sgd")),
        ("lbfgs", {}, ("optimizer.name", "not on offer")),
        ("sparseadam", {}, ("optimizer.name", "not on offer")),
        ("sgd", {"betas": 1}, ("optimizer.betas", "sgd has no betas", "momentum")),
        ("adam", {"params": 1}, ("optimizer.params", "adam has no params")),
        ("adam", {"capturable": True}, ("optimizer.capturable", "adam has no capturable")),
        ("sgd", {"momentun": 0.9}, ("optimizer.momentun", "did you mean momentum?")),
        ("sgd", {"momentum": "much"}, ("optimizer.momentum", "expected a number, got 'much'")),
        ("adam", {"lr": -1.0}, ("adam", "lr", "-1.0")),
        (
            "adam",
            {"lr": "0.1"},
            ("optimizer.lr: expected a number, got the text '0.1'; leave the quotation marks out",),
        ),
        ("adam", {"lr": "fast"}, ("optimizer.lr: expected a number, got the text 'fast'",)),
        ("sgd", {"lr": float("nan")}, ("optimizer.lr", "expected a number, got nan")),
        ("adam", {"betas": "x"}, ("optimizer.betas: expected numbers, such as [0.9, 0.999], got the text 'x'",)),
        ("adam", {"betas": [2.0, 0.9]}, ("adam", "beta")),
        ("sgd", {"nesterov": True}, ("sgd", "Nesterov")),
        ("adam", {"fused": True, "foreach": True}, ("adam", "either fused or foreach")),
        ("sgd", {"momentum": 0.9, "nesterov": True, "foreach": True}, ("optimizer.foreach", "leave foreach out")),
    ],
)
def test_wrong_options_are_told(name: str, options: dict[str, Any], words: tuple[str, ...]) -> None:
    (problem,) = problems(name, options)
    assert all(word in problem for word in words), problem


def test_all_unknown_options_are_told() -> None:
    assert len(problems("sgd", {"betas": 1, "eps": 2, "lr": 0.1})) == 2


def test_a_pipelines_own_optimizer_is_checked() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    check(torch.optim.SGD(model.parameters(), lr=0.1), model)
    lbfgs = torch.optim.LBFGS(model.parameters())
    for wrong, code in ((None, "optimizer.type"), (model, "optimizer.type"), (lbfgs, "optimizer.unfit")):
        with refused(code, type(wrong).__name__):
            check(wrong, model)
    with refused("optimizer.foreign-parameter"):
        check(torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(3))], lr=0.1), model)


class ScheduleFree(torch.optim.SGD):
    """As those of the package schedulefree: the weights that are evaluated are other ones than those that are trained."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class CaresForItself(ScheduleFree):
    train = eval = None  # type: ignore[assignment]


def test_a_scale_of_rates_that_nobody_would_multiply_in_is_refused() -> None:
    """As create_optimizer_v2 of timm leaves it in the groups for its own schedulers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def scaled(*scales: float) -> torch.optim.AdamW:
        groups = [{"params": layer.parameters(), "lr_scale": scale} for layer, scale in zip(model, scales, strict=True)]
        return torch.optim.AdamW(groups, lr=0.1)

    check(scaled(1.0, 1.0), model)
    with refused("optimizer.scale-unused", "lr_scale=0.5"):
        check(scaled(1.0, 0.5), model)


def test_weights_that_are_exchanged_for_evaluations_are_refused() -> None:
    model = nn.Linear(2, 2)
    with refused("optimizer.two-modes", "ScheduleFree"):
        check(ScheduleFree(model.parameters(), lr=0.1), model)
    check(CaresForItself(model.parameters(), lr=0.1), model)


def test_one_that_accelerate_has_prepared_is_refused_for_what_it_is() -> None:
    """It has the methods of one that exchanges weights, and was taken for that."""
    model = nn.Linear(2, 2)
    prepared = ScheduleFree(model.parameters(), lr=0.1)
    prepared.optimizer = torch.optim.AdamW(model.parameters())  # type: ignore[attr-defined]
    with refused("optimizer.prepared", "AdamW"):
        check(prepared, model)


class Aside(torch.optim.Adam):
    """Everything that a class of the user's may hold without remembering anything."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model.parameters(), **options)
        self.model = model
        self.all = [parameter for group in self.param_groups for parameter in group["params"]]
        self.first = self.param_groups[0]
        self.moments = self.state
        self.scheduled = torch.optim.lr_scheduler.LambdaLR(self, lambda _: 1.0)
        self.fixed: dict[str, Any] = {"table": torch.ones(3), "names": ["a", "b"]}


@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_what_an_optimizer_holds_without_changing_it_is_no_state(options: dict[str, Any]) -> None:
    """And what torch itself keeps is none of the user's."""
    model = nn.Linear(2, 2)
    optimizer = Aside(model, **options)
    for _ in range(3):
        before = kept_aside(optimizer, model)
        assert {f"attribute {name!r}" for name in ("all", "first", "moments", "fixed")} <= before.keys()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert kept_aside(optimizer, model) == before
    optimizer.fixed["table"] += 1
    assert kept_aside(optimizer, model) != before
    assert kept_aside(torch.optim.Adam(model.parameters()), model) == {}


class Counting(torch.optim.Optimizer):
    """Each of its kinds counts its steps in another place."""

    steps = 0

    def __init__(self, parameters: Any, where: str) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.where = where
        self.turns = (turn for turn in itertools.count())
        self.box = Box()
        self.count = counter()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ARG002
        match self.where:
            case "defaults":
                self.defaults["steps"] = self.defaults.get("steps", 0) + 1
            case "attribute 'turns'":
                next(self.turns)
            case "attribute 'box'":
                self.box.steps += 1
            case "attribute 'count'":
                self.count()
            case "class's attribute 'steps'":
                type(self).steps += 1
            case "parameters' attributes":
                self.param_groups[0]["params"][0].steps = getattr(self.param_groups[0]["params"][0], "steps", 0) + 1
            case _:
                STEPS["all"] += 1


class Box:
    """No pickle takes it whole."""

    def __init__(self) -> None:
        self.steps = 0
        self.lock = threading.Lock()


STEPS = {"all": 0}


def counter() -> Callable[[], int]:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return steps

    return count


class Around(Pipeline):
    """Its optimizer counts steps in a variable around it, at the pipeline, or in what that holds."""

    def __init__(self, where: str) -> None:
        self.steps, self.where, self._box = 0, where, Box()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        steps, where = 0, self.where

        class Counts(torch.optim.SGD):
            def step(own, closure: Any = None) -> Any:  # noqa: N805
                nonlocal steps
                super().step(closure)
                steps += where == "variable 'steps'"
                self.steps += where == "pipeline's attribute 'steps'"
                self._box.steps += where == "pipeline's attribute '_box'"

        return Counts(model.parameters(), lr=0.1)


@pytest.mark.parametrize("where", ["variable 'steps'", "pipeline's attribute 'steps'", "pipeline's attribute '_box'"])
def test_what_a_step_counts_around_its_class_is_found(where: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = Around(where).optimizer(model)
    before = kept_aside(optimizer, model)
    optimizer.step()
    after = kept_aside(optimizer, model)
    assert [name for name in after if before[name] != after[name]] == [where]
    assert kept_aside(optimizer, model) == after


def test_an_attribute_of_a_layer_that_a_step_changes_is_found() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(2, 2))
    optimizer = Counting(model.parameters(), "defaults")
    before = model_marks(optimizer, model)
    optimizer.step()
    assert model_marks(optimizer, model) == before
    setattr(model.get_submodule("0"), "p", 0.2)  # noqa: B010
    changed = {what for what, mark in model_marks(optimizer, model).items() if before[what] != mark}
    assert changed == {"changed the attribute '0.p'"}


class Held(nn.Linear):
    """A layer that holds things, as the ranks of AdaLoRA; and what follows its weight, or is data."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.average, self._private, self._turns = torch.zeros(2, 2), torch.zeros(2), 0
        self.box, self.numbers = Box(), {"ranks": [torch.zeros(2)]}
        self.view, self.data = self.weight.detach()[0], torch.utils.data.TensorDataset(torch.zeros(1))


def test_what_a_step_changes_in_anything_that_a_layer_holds_is_found() -> None:
    """It began anew where a run went on, in silence."""
    model = nn.Sequential(Held())
    layer: Any = model[0]
    optimizer = Counting(model.parameters(), "defaults")
    layer.weight.grad = torch.ones(2, 2)

    def changed(step: Callable[[], object]) -> set[str]:
        before = marks_of_all_else(optimizer, model)
        step()
        return {what for what, mark in marks_of_all_else(optimizer, model).items() if before.get(what) != mark}

    assert changed(optimizer.step) == set()
    assert changed(lambda: layer.data.tensors[0].add_(1)) == set()
    for name, step in {
        "average": lambda: setattr(layer, "average", layer.average * 0.9),
        "_private": lambda: layer._private.lerp_(torch.ones(2), 0.1),
        "_turns": lambda: setattr(layer, "_turns", layer._turns + 1),
        "box": lambda: setattr(layer.box, "steps", layer.box.steps + 1),
        "numbers": lambda: layer.numbers["ranks"].append(torch.ones(2)),
    }.items():
        assert changed(step) == {f"changed what is in the attribute '0.{name}'"}
    assert marks_of_all_else(torch.optim.SGD(model.parameters(), lr=0.1), model) == {}


@pytest.mark.parametrize(
    "where",
    [
        "defaults", "attribute 'turns'", "attribute 'box'", "attribute 'count'", "class's attribute 'steps'",
        "parameters' attributes", f"variable 'STEPS' of the module {__name__}",
    ],
)  # fmt: skip
def test_what_a_step_keeps_in_any_place_but_the_state_is_found(where: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = Counting(model.parameters(), where)
    for _ in range(2):
        before = kept_aside(optimizer, model)
        optimizer.step()
        after = kept_aside(optimizer, model)
        assert {name for name, told in after.items() if before.get(name) != told} == {where}
    assert kept_aside(optimizer, model) == after


@pytest.mark.parametrize("of_all", [False, True])
def test_what_a_hook_keeps_is_found_at_a_class_of_torchs_too(of_all: bool) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = counter()

    def counts(*_: Any) -> None:
        count()

    register = register_optimizer_step_post_hook if of_all else optimizer.register_step_post_hook
    handle = register(counts)
    before = kept_aside(optimizer, model)
    optimizer.step()
    after = kept_aside(optimizer, model)
    handle.remove()
    assert before.keys() == after.keys()
    assert [name for name in after if before[name] != after[name]] == ["hooks"]


def test_what_a_checkpoint_would_have_twice_is_refused() -> None:
    model = nn.Linear(2, 2)
    weight, bias = model.parameters()
    optimizer = Counting([weight, bias], "defaults")
    shared = torch.ones(())
    optimizer.state[weight]["shared"] = optimizer.state[bias]["shared"] = shared
    optimizer_state.refuse_shared(optimizer, model)  # one that never changes is the same in two places
    shared += 1
    with refused("optimizer.shared-state", "shared"):
        optimizer_state.refuse_shared(optimizer, model)
    optimizer.state.clear()
    optimizer.param_groups[0]["slow"] = [bias.detach()]
    with refused("optimizer.keeps-parameter", "slow"):
        optimizer_state.refuse_shared(optimizer, model)


def test_gradients_that_a_group_keeps_are_copied() -> None:
    model = nn.Linear(2, 2)
    optimizer = Counting(model.parameters(), "defaults")
    gradients = torch.ones(4)
    optimizer.param_groups[0]["last"] = {0: gradients.view(2, 2)}
    optimizer_state.keep_own(optimizer, gradients)
    gradients += 1
    assert torch.equal(optimizer.param_groups[0]["last"][0], torch.ones(2, 2))


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_on_a_gpu_they_are_fused_unless_somebody_has_chosen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The kernels of a processor stand for those of a card."""

    def forms(**options: Any) -> list[Any]:
        return [group["fused"] for group in build(name, {"lr": 0.1, **options}, nn.Linear(2, 2)).param_groups]

    assert forms() == [None]
    monkeypatch.setattr(optimizers, "_FUSED_ON", ("cpu",))
    assert forms() == [True]
    assert forms(fused=False) == [False]
    assert forms(foreach=True) == [None]
    model = nn.Linear(2, 2)
    optimizer = build(name, {"lr": 0.1}, model)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    assert build("adagrad", {"lr": 0.1}, model).param_groups[0]["fused"] is None


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_fused_step_takes_parameters_whose_first_gradient_comes_late(
    monkeypatch: pytest.MonkeyPatch, *, nesterov: bool
) -> None:
    """torch's fused SGD fails there. With dampening, for which a first step is another one, it is not fused."""

    def stepped(**options: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        optimizer = build("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, **options}, model)
        assert optimizer.param_groups[0]["fused"] is options.get("fused", True)
        for step in range(3):
            for nth, parameter in enumerate(model.parameters()):
                parameter.grad = None if step == 0 and nth > 1 else torch.full_like(parameter, 0.5 - step)
            optimizers.begin_late(optimizer)
            optimizer.step()
        return list(model.parameters())

    plain = stepped(fused=False)
    monkeypatch.setattr(optimizers, "_FUSED_ON", ("cpu",))
    for one, other in zip(stepped(), plain, strict=True):
        torch.testing.assert_close(one, other)
    assert (
        build("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, nn.Linear(2, 2)).param_groups[0]["fused"] is None
    )


@pytest.mark.parametrize(
    ("name", "options"), [("sgd", {"lr": 1e308}), ("sgd", {"lr": 10**30}), ("adamw", {"eps": 10**30})]
)
def test_numbers_with_which_no_step_can_be_taken_are_told(name: str, options: dict[str, float]) -> None:
    with refused("optimizer.cannot-step", f"{name} cannot step with"):
        optimizers.remembered(name, options)
