"""Training on from a checkpoint gives the bits of training undisturbed: every optimizer, every switch, every kind of tensor."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.checkpoint.catalog import Catalog, load
from orchestrator.checkpoint.state import TrainingState, pack
from orchestrator.checkpoint.storage import LocalFolder, Storage
from orchestrator.checkpoint.writer import PartWriter
from orchestrator.numerics import digests
from orchestrator.numerics.digests import model_digest
from orchestrator.optim.optimizer_laws import problems
from orchestrator.optim.optimizers import OPTIMIZERS, build
from orchestrator.worker.model import snapshot
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.model.snapshot import capture, restore, rows_of, transforms_of
from tests.checkpoint.stores import InMemory
from tests.products import thinned
from tests.refusals import refused

pytestmark = pytest.mark.threads

SWITCHES = ("foreach", "fused", "nesterov", "maximize", "amsgrad", "centered", "decoupled_weight_decay")
BEFORE, AFTER = 3, 2

Make = Callable[[nn.Module], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a worker has; on a busy machine a second one is waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Zoo(nn.Module):
    """Channels-last weights, a tied one, a frozen one, statistics, counters, a buffer that state_dict leaves out."""

    extra: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.norm = nn.BatchNorm2d(4)
            self.embedding = nn.Embedding(5, 4)
            self.output = nn.Linear(4, 5, bias=False)
            self.output.weight = self.embedding.weight
            self.frozen = nn.Linear(2, 2).requires_grad_(False)
            self.scalar = nn.Parameter(torch.randn(()))
            self.unused = nn.Parameter(torch.randn(3))
            self.register_buffer("extra", torch.randn(3, dtype=torch.float64), persistent=False)


def made(seed: int, make: Make) -> tuple[Zoo, torch.optim.Optimizer]:
    """Model and optimizer as a worker builds them."""
    model = Zoo(seed)
    Replica(model)
    return model, make(model)


def train(model: Zoo, optimizer: torch.optim.Optimizer, first: int, steps: int) -> None:
    """Gradients are a function of the step and the parameters; rates follow a schedule, as in the engine."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and name != "unused":
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.grad = torch.empty_like(parameter).copy_(parameter.detach() * 0.1 + noise)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        optimizer.step()
        assert model.norm.running_mean is not None
        assert model.norm.num_batches_tracked is not None
        model.norm.running_mean.add_(0.1)
        model.norm.num_batches_tracked.add_(1)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """The digest of every bit of both, also of what state_dict leaves out."""
    hashed = hashlib.sha256(model_digest(model).encode())
    for name, buffer in model.named_buffers():
        digests.update(hashed, name, buffer)
    tensors: dict[str, torch.Tensor] = {}
    hashed.update(repr(pack(optimizer.state_dict(), tensors, "optimizer")).encode())
    for name, tensor in tensors.items():
        digests.update(hashed, name, tensor)
    return hashed.hexdigest()


def through_files(storage: Storage, state: TrainingState, step: int) -> TrainingState:
    """The state that a checkpoint by two writers gives back."""
    told: list[dict[str, Any]] = []
    for part in range(2):
        writer = PartWriter(storage, told.append)
        writer.begin(state, step=step, generation=1, part=part, parts=2)
        writer.wait()
    manifest = Catalog(storage, 1).commit(step, told).manifest
    return load(storage, manifest)


def check(storage: Storage, make: Make, before: int = BEFORE) -> None:
    undisturbed, its_optimizer = made(1, make)
    train(undisturbed, its_optimizer, 0, before + AFTER)
    expected = digest(undisturbed, its_optimizer)

    donor, donors_optimizer = made(1, make)
    train(donor, donors_optimizer, 0, before)
    run_state = {"steps": before, "exponents": [-20, -31], "best": float("-inf"), "pair": (0.1, None)}
    state = through_files(storage, capture(donor, donors_optimizer, run_state), before)
    stopped = digest(donor, donors_optimizer)

    model, optimizer = made(2, make)
    train(model, optimizer, 7, 1)  # whatever was there does not matter
    assert restore(state, model, optimizer) == run_state
    assert digest(model, optimizer) == stopped
    train(model, optimizer, before, AFTER)
    assert digest(model, optimizer) == expected
    assert digest(donor, donors_optimizer) == stopped


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination of switches that is not refused, with and without momentum where there is any."""
    for name in OPTIMIZERS:
        known = [switch for switch in SWITCHES if switch in OPTIMIZERS.options(name)]
        for values in itertools.product((False, True), repeat=len(known)):
            for momentum in (0.0, 0.9) if "momentum" in OPTIMIZERS.options(name) else (None,):
                options: dict[str, Any] = dict(zip(known, values, strict=True))
                if momentum is not None:
                    options["momentum"] = momentum
                if "weight_decay" in OPTIMIZERS.options(name):
                    options["weight_decay"] = 0.01
                if not problems(name, options):
                    yield name, options


@pytest.mark.parametrize("name", thinned(OPTIMIZERS, 5))
def test_every_optimizer_goes_on_as_if_nothing_had_happened(name: str) -> None:
    """The same bytes as on disk, without waiting for the disk; the tests below use files."""
    chosen = [options for variant, options in variants() if variant == name]
    assert chosen
    for options in chosen:
        check(InMemory(), lambda model, options=options: build(name, {"lr": 0.01, **options}, model))  # type: ignore[misc]


@pytest.mark.parametrize("name", thinned(OPTIMIZERS, 4, list(OPTIMIZERS).index("adagrad") % 4))
def test_a_state_from_before_the_first_step(tmp_path: Path, name: str) -> None:
    """Adagrad has state then, the others have none."""
    check(LocalFolder(tmp_path), lambda model: build(name, {"lr": 0.01}, model), before=0)


def grouped(kind: Any) -> Make:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        parameters = dict(model.named_parameters())
        convolution = parameters.pop("convolution.weight")
        first = {"params": [convolution], "weight_decay": 0.1, "tag": ("decayed", None), "scale": torch.tensor(0.5)}
        optimizer: torch.optim.Optimizer = kind([first, {"params": list(parameters.values()), "lr": 0.5}])
        return optimizer  # over frozen ones too

    return make


@pytest.mark.parametrize("name", thinned(OPTIMIZERS, 4, 1))
def test_a_pipelines_own_groups(tmp_path: Path, name: str) -> None:
    check(LocalFolder(tmp_path), grouped(OPTIMIZERS[name]))


@pytest.mark.parametrize("name", ["adamw", "sgd", "adagrad"])
def test_groups_of_named_parameters_and_tensors_as_rates(tmp_path: Path, name: str) -> None:
    kind: Any = OPTIMIZERS[name]
    check(LocalFolder(tmp_path), lambda model: kind(model.named_parameters(), lr=torch.tensor(0.01)))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return build("adamw", {"lr": 0.01}, model)


def test_state_of_another_dtype_is_not_rounded(tmp_path: Path) -> None:
    """torch's own load_state_dict casts it to the parameter's."""
    donor, donors = made(1, adamw)
    train(donor, donors, 0, 1)
    weight = donor.get_parameter("embedding.weight")
    donors.state[weight]["exact"] = torch.full((2,), 0.1, dtype=torch.float64)
    model, optimizer = made(2, adamw)
    restore(through_files(LocalFolder(tmp_path), capture(donor, donors, {}), 1), model, optimizer)
    exact = optimizer.state[model.get_parameter("embedding.weight")]["exact"]
    assert (exact.dtype, exact.tolist()) == (torch.float64, [0.1, 0.1])


def addresses(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[int]:
    tensors = [*model.parameters(), *model.buffers()]
    for entry in optimizer.state.values():
        tensors.extend(value for value in entry.values() if isinstance(value, torch.Tensor))
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def on_a_card(value: Any) -> Any:
    """Packed values as a run on a GPU has packed them, whose optimizer is fused."""
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "fused":
            return ["fused", True]
        return [on_a_card(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {**value, "device": "cuda"} if "tensor" in value else {key: on_a_card(item) for key, item in value.items()}


def test_a_state_from_a_gpu_goes_on_on_a_processor() -> None:
    donor, donors = made(1, adamw)
    train(donor, donors, 0, 2)
    state = capture(donor, donors, {})
    moved = replace(state, values={key: on_a_card(value) for key, value in state.values.items()})
    model, optimizer = made(2, adamw)
    restore(moved, model, optimizer)
    assert [group["fused"] for group in optimizer.param_groups] == [None]
    for each in (donor, model):
        train(each, donors if each is donor else optimizer, 2, 4)
    assert model_digest(model) == model_digest(donor)


def test_a_state_from_a_processor_goes_on_on_a_gpu() -> None:
    """A device without memory stands for a card: what lies where."""
    donor = nn.Linear(3, 2)
    donors = adamw(donor)
    donor(torch.ones(3)).sum().backward()
    donors.step()
    state = capture(donor, donors, {})
    model = nn.Linear(3, 2).to("meta")
    optimizer = adamw(model)
    for group in optimizer.param_groups:
        group["fused"] = True
    restore(state, model, optimizer)
    assert all(group["fused"] for group in optimizer.param_groups)
    kept = [value for entry in optimizer.state.values() for value in entry.values()]
    assert kept
    assert {value.device.type for value in kept} == {"meta"}


def test_a_capture_copies_nothing_and_a_restore_shares_nothing() -> None:
    donor, donors = made(1, adamw)
    train(donor, donors, 0, 1)
    state = capture(donor, donors, {})
    assert {tensor.untyped_storage().data_ptr() for tensor in state.tensors.values()} == addresses(donor, donors)
    model, optimizer = made(2, adamw)
    restore(state, model, optimizer)
    assert not addresses(model, optimizer) & addresses(donor, donors)


def test_what_transforms_and_shards_keep_is_in_it(tmp_path: Path) -> None:
    donor, donors = made(1, adamw)
    kept, rows = (
        {"0/mean": torch.ones(2)},
        {3: {"0/residual": torch.full((2, 2), 0.1)}, 12: {"0/residual": torch.eye(2)}},
    )
    state = capture(donor, donors, {}, kept, rows)
    assert state.own == {"shard/3/0/residual", "shard/12/0/residual"}
    assert state.own | {"transforms/0/mean"} <= state.steady
    came = through_files(LocalFolder(tmp_path), replace(state, own=frozenset()), 1)  # one member is all writers
    torch.testing.assert_close(transforms_of(came), kept, rtol=0, atol=0)
    torch.testing.assert_close(rows_of(came.tensors), rows, rtol=0, atol=0)
    model, optimizer = made(2, adamw)
    restore(came, model, optimizer)
    assert "transforms" not in capture(donor, donors, {}).values


def test_parameters_stay_where_they_are() -> None:
    donor, donors = made(1, adamw)
    model, optimizer = made(2, adamw)
    before = [(tensor.data_ptr(), tensor.stride()) for tensor in [*model.parameters(), *model.buffers()]]
    restore(capture(donor, donors, {}), model, optimizer)
    assert [(tensor.data_ptr(), tensor.stride()) for tensor in [*model.parameters(), *model.buffers()]] == before
    groups = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert groups == [id(p) for p in model.parameters() if p.requires_grad]


def test_what_is_in_it() -> None:
    model, optimizer = made(1, adamw)
    state = capture(model, optimizer, {"steps": 0})
    names = {name.removeprefix("model/") for name in state.tensors}
    assert {"extra", "frozen.weight", "norm.running_mean", "norm.num_batches_tracked", "scalar"} <= names
    assert "embedding.weight" in names
    assert "output.weight" not in names  # tied: once


def test_what_is_steady_is_what_an_update_changes_wherever_it_lies() -> None:
    model, optimizer = made(1, grouped(torch.optim.AdamW))
    train(model, optimizer, 0, 1)
    state = capture(model, optimizer, {"tensor": torch.ones(1)})
    buffers = {f"model/{name}" for name, _ in model.named_buffers()}
    assert state.tensors.keys() - state.steady == {*buffers, "run_state/tensor"}
    assert "optimizer/groups/0/scale" in state.steady
    elsewhere = nn.Linear(2, 2, device="meta")
    elsewhere.register_buffer("here", torch.ones(1))
    steady = capture(elsewhere, torch.optim.SGD(elsewhere.parameters()), {}).steady
    assert steady == {"model/weight", "model/bias"}


def spoiled(state: TrainingState, name: str, tensor: torch.Tensor | None) -> TrainingState:
    tensors = {**state.tensors}
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    return TrainingState(state.values, tensors)


@pytest.mark.parametrize(
    ("name", "tensor", "code", "named"),
    [
        ("model/frozen.bias", None, "checkpoint.state-tensors", "'frozen.bias'"),
        ("model/other", torch.ones(1), "checkpoint.state-tensors", "'other'"),
        (
            "model/scalar",
            torch.ones(1),
            "checkpoint.state-tensor-form",
            "'scalar' is float32 of shape (1,)",
        ),
        ("model/scalar", torch.ones((), dtype=torch.float64), "checkpoint.state-tensor-form", "'scalar' is float64"),
        ("optimizer/state/scalar/exp_avg", None, "checkpoint.state-not-whole", "optimizer/state/scalar/exp_avg"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    name: str, tensor: torch.Tensor | None, code: str, named: str
) -> None:
    donor, donors = made(1, adamw)
    train(donor, donors, 0, 1)
    model, optimizer = made(2, adamw)
    train(model, optimizer, 5, 1)
    before = digest(model, optimizer)
    with refused(code, named):
        restore(spoiled(capture(donor, donors, {}), name, tensor), model, optimizer)
    assert digest(model, optimizer) == before


NO_FAULT_OF_A_STATE = [
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4194304 bytes."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."),
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700),
]


@pytest.mark.parametrize("error", NO_FAULT_OF_A_STATE, ids=lambda error: type(error).__name__)
def test_memory_that_ends_and_a_card_that_fails_are_no_fault_of_a_state(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    donor, donors = made(1, adamw)
    train(donor, donors, 0, 1)
    state = capture(donor, donors, {})

    def unpack(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(snapshot, "unpack", unpack)
    with pytest.raises(type(error)) as raised:
        restore(state, *made(2, adamw))
    assert raised.value is error


def with_fewer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad][1:])


def with_more_options(model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW([{"params": parameters, "tag": 1}])


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda model: build("adam", {}, model), "checkpoint.state-optimizer"),
        (grouped(torch.optim.AdamW), "checkpoint.state-groups"),
        (with_fewer, "checkpoint.state-group-parameters"),
        (with_more_options, "checkpoint.state-group-options"),
    ],
)
def test_another_optimizer_is_refused(make: Make, code: str) -> None:
    donor, donors = made(1, adamw)
    train(donor, donors, 0, 1)
    model, optimizer = made(2, make)
    before = digest(model, optimizer)
    with refused(code):
        restore(capture(donor, donors, {}), model, optimizer)
    assert digest(model, optimizer) == before


def test_a_group_takes_the_order_of_the_state() -> None:
    """`list(set(model.parameters()))` is ordered by where parameters lie in memory, so each process has another order."""
    donor, donors = made(1, lambda model: torch.optim.AdamW([*model.named_parameters()], lr=0.01))
    train(donor, donors, 0, BEFORE)
    state = packed(capture(donor, donors, {}))
    model, optimizer = made(2, lambda model: torch.optim.AdamW([*model.named_parameters()][::-1], lr=0.01))
    restore(state, model, optimizer)
    assert optimizer.param_groups[0]["param_names"] == donors.param_groups[0]["param_names"]
    for each, its_optimizer in ((donor, donors), (model, optimizer)):
        train(each, its_optimizer, BEFORE, AFTER)
    assert digest(model, optimizer) == digest(donor, donors)


class Counts(torch.optim.SGD):
    """Its first step adds an option, as in many packages."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["momentum"] = 1 / group["step"]
        return super().step(closure)


def counting(model: nn.Module) -> torch.optim.Optimizer:
    return Counts([p for p in model.parameters() if p.requires_grad], lr=0.1)


def test_a_state_has_options_that_the_first_step_adds() -> None:
    donor, donors = made(1, counting)
    begun = packed(capture(donor, donors, {}))
    train(donor, donors, 0, BEFORE)
    later = packed(capture(donor, donors, {}))
    train(donor, donors, BEFORE, AFTER)
    model, optimizer = made(2, counting)
    restore(later, model, optimizer)
    train(model, optimizer, BEFORE, AFTER)
    assert digest(model, optimizer) == digest(donor, donors)
    # Also back to where it had not stepped yet.
    restore(begun, model, optimizer)
    assert "step" not in optimizer.param_groups[0]
    train(model, optimizer, 0, BEFORE + AFTER)
    assert digest(model, optimizer) == digest(donor, donors)


def test_functions_and_types_among_the_options_are_those_of_the_present_optimizer() -> None:
    """As the filters of VICReg's LARS, and the types of moments of others."""
    donor, donors = made(1, adamw)
    model, optimizer = made(2, adamw)
    for group in (donors.param_groups[0], optimizer.param_groups[0]):
        group |= {"filter": adamw, "kind": torch.bfloat16}
    train(donor, donors, 0, BEFORE)
    state = packed(capture(donor, donors, {}))
    assert "<function" not in str(state.values)  # with an address, which is another one at each worker
    restore(state, model, optimizer)
    assert (optimizer.param_groups[0]["filter"], optimizer.param_groups[0]["kind"]) == (adamw, torch.bfloat16)
    assert state.values == capture(model, optimizer, {}).values


def packed(state: TrainingState) -> TrainingState:
    """The same, with memory of its own."""
    return replace(state, tensors={name: tensor.clone() for name, tensor in state.tensors.items()})


def test_what_cannot_be_kept_is_named() -> None:
    model, optimizer = made(1, adamw)
    optimizer.param_groups[0]["callback"] = object()
    with refused("checkpoint.state-value"):
        capture(model, optimizer, {})
