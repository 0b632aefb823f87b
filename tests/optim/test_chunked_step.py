"""A step in pieces has the bits of a whole one, and leaves the same state, for every optimizer that works by element."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.numerics.layout import Layout
from orchestrator.optim import chunked_step
from orchestrator.optim.by_element import BY_ELEMENT
from orchestrator.optim.chunked_step import Pieces
from orchestrator.optim.optimizers import CLASSES
from tests.products import fewer

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9, "dampening": 0.1}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}],
    "Adam": [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"foreach": True}, {"fused": True}],
    "AdamW": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "Adagrad": [{}, {"initial_accumulator_value": 0.5, "lr_decay": 0.1}],
    "NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
}
KINDS = sorted(BY_ELEMENT, key=str)
CASES = [  # of each kind the first, and for `make test-long` the others
    pytest.param(kind, options, marks=[pytest.mark.long] * (nth > 0))
    for kind in KINDS
    for nth, options in enumerate(OPTIONS.get(kind.__name__, [{}]))
]


class Trained:
    """Some tensors side by side, as a replica has them, one of them channels-last and one without dimensions, in two groups of
    which the second has another rate."""

    def __init__(self, kind: Any, options: dict[str, Any], sizes: list[int], seed: int, *, apart: bool = False) -> None:
        """apart: its gradients do not lie side by side, such as those that were clipped."""
        self._numbers = torch.Generator().manual_seed(seed)
        image = torch.randn(5, 3, 4, 2, generator=self._numbers).to(memory_format=torch.channels_last)
        more = [torch.randn(size, generator=self._numbers) for size in sizes]
        values = [image, *more[:2], torch.randn((), generator=self._numbers), *more[2:]]
        self.parameters = [torch.nn.Parameter(value) for value in values]
        self._layout = Layout.of([(str(nth), parameter) for nth, parameter in enumerate(self.parameters)])
        flat = torch.zeros(self._layout.size)
        for parameter, place in zip(self.parameters, self._layout.views(flat), strict=True):
            place.copy_(parameter.detach())
            parameter.data = place
        self._apart = apart
        half = len(self.parameters) // 2
        groups: list[dict[str, Any]] = [{"params": self.parameters[:-half]}]
        groups.append({"params": self.parameters[-half:], "lr": 0.02})
        self.optimizer = kind([group for group in groups if group["params"]], lr=0.01, **options)

    def give_gradients(self, step: int) -> None:
        """All tensors at first; from the fourth step on one of them is left out in turn."""
        flat = torch.randn(self._layout.size, generator=self._numbers)
        for nth, (parameter, gradient) in enumerate(zip(self.parameters, self._layout.views(flat), strict=True)):
            left_out = step > 3 and step % (len(self.parameters) + 1) == nth
            parameter.grad = None if left_out else gradient.clone() if self._apart else gradient

    def bits(self) -> list[bytes]:
        state = [
            (key, value.detach().clone().reshape(-1).numpy().tobytes() if isinstance(value, torch.Tensor) else value)
            for parameter in self.parameters
            for key, value in self.optimizer.state.get(parameter, {}).items()
        ]
        return [*(p.detach().contiguous().numpy().tobytes() for p in self.parameters), repr(state).encode()]

    def restore(self) -> None:
        """As from a checkpoint: tensors of its own."""
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), CASES)
@fewer(4)
@given(
    sizes=st.lists(st.integers(0, 200), max_size=4),
    piece=st.integers(1, 70),
    restored=st.integers(0, 6),
    seed=st.integers(0, 99),
    apart=st.booleans(),
)
def test_no_bit_changes(
    kind: Any, options: dict[str, Any], sizes: list[int], piece: int, restored: int, seed: int, *, apart: bool
) -> None:
    whole, cut = (Trained(kind, options, sizes, seed, apart=apart) for _ in range(2))
    stepping = Pieces(cut.optimizer, piece)
    for step in range(9):
        for each in (whole, cut):
            each.give_gradients(step)
            for group in each.optimizer.param_groups:
                group["lr"] *= 0.9
            if step == restored:
                each.restore()
        whole.optimizer.step()
        stepping.step()
        assert cut.bits() == whole.bits(), f"step {step}"


def counted(monkeypatch: pytest.MonkeyPatch, trained: Trained, piece: int) -> list[int]:
    """Over how many tensors the optimizer steps, in each of three steps."""
    seen: list[int] = []
    stepped: Any = torch.optim.AdamW.step

    def step_and_count(optimizer: torch.optim.Optimizer) -> None:
        seen.append(sum(len(group["params"]) for group in optimizer.param_groups))
        stepped(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", step_and_count)
    stepping = Pieces(trained.optimizer, piece)
    for _ in range(3):
        trained.give_gradients(0)
        stepping.step()
    return seen


def test_tensors_are_cut_and_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test before proves nothing: an image of 120 and two tensors of 100, with what has no dimensions between."""
    trained = Trained(torch.optim.AdamW, {}, [100, 100], 0)
    # Each piece for itself at its first step, then whoever is left. The second group: 100, and the one without.
    assert counted(monkeypatch, trained, 1000) == [1] * 3 + [2 + 1] * 3
    assert counted(monkeypatch, Trained(torch.optim.AdamW, {}, [100, 100], 0), 50) == [1] * 8 + [5 + 3] * 3


def test_no_other_kind_is_cut() -> None:
    others = {kind.__name__ for kind in CLASSES} - {kind.__name__ for kind in BY_ELEMENT}
    assert others == {"Adafactor"}


def test_whose_steps_somebody_follows_is_left_alone() -> None:
    trained = Trained(torch.optim.SGD, {"momentum": 0.9}, [100], 0)
    called: list[torch.optim.Optimizer] = []
    trained.optimizer.register_step_post_hook(lambda optimizer, *_: called.append(optimizer))
    stepping = chunked_step.Pieces(trained.optimizer, 30)
    for _ in range(2):
        trained.give_gradients(0)
        stepping.step()
    assert called == [trained.optimizer] * 2


def next_to_each_other(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies whose memory lies so that the second begins 48 elements behind the first, each with a storage of its own: as what
    was allocated one after the other."""
    memory = memoryview(bytearray(4 * 51))
    copies = [
        torch.frombuffer(memory[: 4 * 36], dtype=torch.float32),
        torch.frombuffer(memory[4 * 48 :], dtype=torch.float32),
    ]
    for copied, value in zip(copies, values, strict=True):
        copied.copy_(value)
    return copies


@pytest.mark.parametrize("of", ["state", "gradients"])
def test_what_lies_side_by_side_by_chance_is_not_taken_for_one(of: str) -> None:
    """Tensors that came by a state transfer were allocated one by one."""
    values, flat = [torch.randn(36), torch.randn(3)], torch.zeros(51)
    apart = [torch.nn.Parameter(value.clone()) for value in values]
    joined = [torch.nn.Parameter(place) for place in (flat[:36], flat[48:])]
    with torch.no_grad():
        for parameter, value in zip(joined, values, strict=True):
            parameter.copy_(value)
    one, other = (torch.optim.SGD(each, lr=0.1, momentum=0.9) for each in (apart, joined))
    pieced = Pieces(other)
    for _ in range(3):
        gradients = [torch.randn(36), torch.randn(3)]
        beside = next_to_each_other(gradients) if of == "gradients" else gradients
        for parameters, put in ((apart, gradients), (joined, beside)):
            for parameter, gradient in zip(parameters, put, strict=True):
                parameter.grad = gradient
        if of == "state" and other.state:
            held = next_to_each_other([other.state[parameter]["momentum_buffer"] for parameter in joined])
            for parameter, buffer in zip(joined, held, strict=True):
                other.state[parameter] = {"momentum_buffer": buffer}
        one.step()
        pieced.step()
    assert all(torch.equal(parameter, same) for parameter, same in zip(apart, joined, strict=True))
