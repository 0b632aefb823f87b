"""`pipeline.find`: the class that a target names, or one sentence that says what is wrong with it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator import Pipeline
from orchestrator.adapters.transformers import Trainable
from orchestrator.common.processes import disregarded
from orchestrator.errors import ConfigurationError, PipelineRaised
from orchestrator.pipeline import ONE_ROW, defines, find, idle_clipping, named_otherwise, naming, outside_of_runs
from orchestrator.worker.member.heartbeat import CalledOff
from tests.refusals import refused

pytestmark = pytest.mark.slow

Write = Callable[[str], str]

WHOLE = """
from orchestrator import Pipeline

class Whole(Pipeline):
    def __init__(self, hidden, *, depth=2): ...
    def model(self): ...
    def datasets(self): ...
    def loss(self, model, batch): ...

class Inherited(Whole):
    def metrics(self, model, batch): ...

class Half(Pipeline):
    def model(self): ...

class NoPipeline: ...

def function(): ...
"""

_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes an importable module of the text and tells its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(text: str) -> str:
        name = f"found_module_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write_module


def _problem(target: str, **args: object) -> str:
    with pytest.raises(ConfigurationError) as raised:
        find(target, args)
    (problem,) = raised.value.problems
    return f"{problem} | {raised.value.remedy}"


def test_code_that_calls_itself_without_end_is_told_in_a_few_lines() -> None:
    def itself() -> None:
        other()

    def other() -> None:
        itself()

    with pytest.raises(PipelineRaised) as caught, naming("loss()"):
        itself()
    lines = caught.value.message.splitlines()
    assert len(lines) < 20
    assert "RecursionError" in lines[0]
    assert any("more calls" in line for line in lines)


def test_the_class_is_found(write: Write) -> None:
    module = write(WHOLE)
    found = find(f"{module}:Whole", {"hidden": 3})
    assert issubclass(found, Pipeline)
    assert found.__name__ == "Whole"
    assert find(f"{module}:Inherited", {"hidden": 3, "depth": 1}).__name__ == "Inherited"


def test_what_a_class_defines_itself(write: Write) -> None:
    module = write(WHOLE)
    whole, inherited = (find(f"{module}:{name}", {"hidden": 1}) for name in ("Whole", "Inherited"))
    assert [defines(kind, "metrics") for kind in (Pipeline, whole, inherited)] == [False, False, True]
    assert defines(inherited, "loss")
    assert not defines(inherited, "optimizer")


@pytest.mark.parametrize("target", ["", "module", "module:", ":Class", ":"])
def test_a_target_has_two_parts(target: str) -> None:
    assert "package.module:Class" in _problem(target)


def test_a_module_that_does_not_exist() -> None:
    assert "there is no module 'no_such_module'" in _problem("no_such_module:Whole")
    assert "there is no module 'tests.no_such_module'" in _problem("tests.no_such_module:Whole")
    assert "there is no module 'no_such_package.module'" in _problem("no_such_package.module:Whole")
    assert "working directory" in _problem("no_such_module:Whole")


def test_a_module_that_misses_another(write: Write) -> None:
    module = write("import no_such_library.part")
    problem = _problem(f"{module}:Whole")
    assert f"importing {module} failed: no module named 'no_such_library'" in problem
    assert "install no_such_library" in problem
    unnamed = write("raise ModuleNotFoundError('anything')")
    assert "anything" in _problem(f"{unnamed}:Whole")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def read():\n    raise OSError('disk gone')\nread()", ("OSError: disk gone", ".py:2")),
        ("x = 1\nfrom orchestrator import Pipelin", ("ImportError", "Pipelin", ".py:2")),
        ("x = 1\ny = (", ("SyntaxError", "line 2")),
        ("import sys\nsys.exit(3)", ("SystemExit: 3", ".py:2")),
        # the line was argparse's
        ("import argparse\nargparse.ArgumentParser().parse_args(['x'])", ("SystemExit: 2", ".py:2", "pipeline.args")),
    ],
)
def test_a_module_that_cannot_be_imported(write: Write, text: str, words: tuple[str, ...]) -> None:
    module = write(text)
    problem = _problem(f"{module}:Whole")
    assert f"importing {module} raised" in problem
    assert all(word in problem for word in words), problem


def test_a_class_that_does_not_exist(write: Write) -> None:
    module = write(WHOLE)
    problem = _problem(f"{module}:Whol")
    assert f"{module} has no class 'Whol'" in problem
    assert f"did you mean {module}:Whole?" in problem
    assert "did you mean" not in _problem(f"{module}:Xyz")


@pytest.mark.parametrize("name", ["NoPipeline", "function"])
def test_what_is_no_pipeline(write: Write, name: str) -> None:
    assert "is not a subclass of orchestrator.Pipeline" in _problem(f"{write(WHOLE)}:{name}")


def test_a_pipeline_with_methods_missing(write: Write) -> None:
    module = write(WHOLE)
    problem = _problem(f"{module}:Half")
    assert "does not define datasets and loss" in problem
    assert "def datasets(self): returns the training set and the validation set" in problem
    assert "does not define model and datasets and loss" in _problem(f"{module}:Pipeline")


@pytest.mark.parametrize(
    ("args", "word"),
    [({}, "'hidden'"), ({"hidden": 1, "widht": 2}, "'widht'"), ({"depth": 1}, "'hidden'")],
)
def test_arguments_that_do_not_fit(write: Write, args: dict[str, object], word: str) -> None:
    problem = _problem(f"{write(WHOLE)}:Whole", **args)
    assert problem.startswith("pipeline.args: Whole(hidden, *, depth=2)")
    assert word in problem


def test_an_operation_that_is_not_deterministic_is_named() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(PipelineRaised) as caught, naming("loss() (step 0, shard 0)"):
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(before)
    said, _, frame = caught.value.message.partition("\n")
    assert said.startswith("loss() (step 0, shard 0) uses an operation whose bits could not be repeated on this device")
    assert said.endswith("kernel: put_")
    assert "test_pipeline.py" in frame
    assert "torch.zeros(3).put_" in frame
    assert caught.value.remedy.startswith("instead: index_put_, with accumulate=True where indices repeat (docs/gpu.md")
    assert "error.txt" in caught.value.remedy
    assert (caught.value.code, caught.value.recurs) == ("pipeline.nondeterministic", True)


def test_a_batch_of_one_row_that_is_normalised_is_explained() -> None:
    with pytest.raises(PipelineRaised) as caught, naming("loss() (step 2, shard 3)"):
        torch.nn.BatchNorm1d(2)(torch.ones(1, 2))
    assert "data.batch_size" in caught.value.remedy


ON_TWO_DEVICES = [
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    "Input and parameter tensors are not at the same device, found input tensor at cpu and parameter tensor at cuda:0",
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
]


@pytest.mark.parametrize("said", ON_TWO_DEVICES)
def test_a_tensor_that_stayed_behind_is_explained(said: str) -> None:
    with pytest.raises(PipelineRaised) as caught, naming("loss()"):
        raise RuntimeError(said)
    assert "torch.arange(n, device=x.device)" in caught.value.remedy


@pytest.mark.parametrize(
    "items",
    [[torch.zeros(2), torch.zeros(3)], [[1, 2], [1]], [None, None], [{"a": 1, "b": None}] * 2],
    ids=["tensors", "lists", "None", "in a dict"],
)
def test_samples_that_do_not_stack_are_explained(items: list[object]) -> None:
    with pytest.raises(PipelineRaised) as caught, naming("reading samples (step 0, shard 0)"):
        Pipeline().collate(items)
    assert "collate(self, items)" in caught.value.remedy


def test_a_signal_that_is_handled_beside_the_main_thread_gets_advice() -> None:
    def read() -> None:
        with naming("reading samples (step 0, shard 0)"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    with ThreadPoolExecutor(1) as beside, pytest.raises(PipelineRaised) as caught:
        beside.submit(read).result()
    assert "give a download a timeout of its own" in (caught.value.remedy or "")


def test_a_loss_that_follows_from_no_parameter_is_explained() -> None:
    with pytest.raises(PipelineRaised) as caught, naming("loss()"):
        torch.ones(()).backward()  # type: ignore[no-untyped-call]
    assert "detach()" in caught.value.remedy


@pytest.mark.parametrize(
    "differentiate",
    [lambda point: torch.autograd.grad(point * 2, point), lambda point: (point * 2).register_hook(torch.neg)],
)
def test_gradients_within_an_evaluation_are_explained(differentiate: Callable[[torch.Tensor], object]) -> None:
    point = torch.ones((), requires_grad=True)
    with pytest.raises(PipelineRaised) as caught, naming("evaluation (step 3, validation batch 0)"), torch.no_grad():
        differentiate(point)
    assert "torch.enable_grad()" in caught.value.remedy


def test_an_optimizer_that_differentiates_gradients_is_explained() -> None:
    parameter = torch.ones((), requires_grad=True)
    with pytest.raises(PipelineRaised) as caught, naming("the optimizer (step 0)"):
        torch.autograd.grad(torch.ones(()), parameter)
    assert "AdaHessian" in caught.value.remedy


def test_a_backward_pass_of_ones_own_is_explained() -> None:
    loss = torch.ones((), requires_grad=True).exp()
    loss.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(PipelineRaised) as caught, naming("loss()"):
        loss.backward()  # type: ignore[no-untyped-call]
    assert "backward() is called here: leave it out" in caught.value.remedy


def test_collectives_of_torch_are_explained() -> None:
    with pytest.raises(PipelineRaised) as caught, naming("loss()"):
        torch.distributed.all_reduce(torch.ones(1))
    assert "leave torch.distributed out" in caught.value.remedy


def test_a_process_group_that_nobody_has_launched_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fully_shard() begins one."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(PipelineRaised) as caught, naming("model()"):
        torch.distributed.init_process_group("gloo")
    assert "leave torch.distributed out" in caught.value.remedy


def test_other_errors_get_no_advice() -> None:
    with pytest.raises(PipelineRaised) as caught, naming("loss()"):
        raise KeyError("a")
    assert caught.value.remedy == "the full traceback is in the run's folder, in error.txt"


@pytest.mark.parametrize(("error", "remedy"), [(KeyError("a"), ""), (ValueError(ONE_ROW), "give it two")])
def test_outside_of_runs_no_file_of_a_run_is_named(error: Exception, remedy: str) -> None:
    """Nothing is written to a run's folder where a model is loaded."""
    with pytest.raises(PipelineRaised) as caught, outside_of_runs(), naming("model()", lambda: "give it two"):
        raise error
    assert caught.value.remedy == remedy


class FromElsewhere(Pipeline):
    def collate_fn(self, items: Any) -> Any:
        return items

    def configure_optimizers(self) -> Any:
        return None

    def optimizer(self, model: Any) -> Any:  # noqa: ARG002
        return self.configure_optimizers()

    def compute_metrics(self, outputs: Any) -> Any:
        return outputs


class CallsThem(FromElsewhere):
    def datasets(self) -> Any:
        return lambda: self.collate_fn([])

    def metrics(self, model: Any, batch: Any) -> Any:  # noqa: ARG002
        return {}


class OfTrainer(Trainable):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # noqa: ARG002
        return model(**inputs).loss

    def create_optimizer(self) -> Any:
        return None

    def collate(self, items: Any) -> Any:
        return self.collate_fn(items)

    def collate_fn(self, items: Any) -> Any:
        return items


def test_hooks_by_names_of_other_frameworks_are_found_that_nobody_calls() -> None:
    assert named_otherwise(FromElsewhere) == {"collate_fn": "collate", "compute_metrics": "metrics"}
    assert named_otherwise(CallsThem) == {}
    assert named_otherwise(OfTrainer) == {"compute_loss": "loss", "create_optimizer": "optimizer"}
    assert named_otherwise(Pipeline) == {}


class Misspelled(Pipeline):
    def on_evalution(self, *told: Any) -> None: ...

    def optimiser(self, model: Any) -> Any: ...

    def predictor(self) -> Any: ...

    def label(self, i: int) -> int:
        return i

    def labels(self, train: Any, by: str) -> Any:  # noqa: ARG002
        return [self.label(i) for i in range(3)]


def test_misspelled_methods_are_found_that_nobody_calls() -> None:
    """Its author waits for pictures in vain."""
    assert named_otherwise(Misspelled) == {"on_evalution": "on_evaluation", "optimiser": "optimizer"}


class ClipsInLoss(Pipeline):
    def loss(self, model: Any, batch: Any) -> Any:
        loss = model(batch).mean()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss


def test_clipping_in_a_loss_is_found_which_does_nothing() -> None:
    """No parameter has a gradient there."""
    assert idle_clipping(ClipsInLoss) == "clip_grad_norm_"
    assert idle_clipping(Pipeline) is None


def test_the_defaults() -> None:
    pipeline = Pipeline()
    with pytest.raises(NotImplementedError):
        pipeline.model()
    with pytest.raises(NotImplementedError):
        pipeline.datasets()
    with pytest.raises(NotImplementedError):
        pipeline.loss(None, None)  # type: ignore[arg-type]
    assert pipeline.metrics(None, None) == {}  # type: ignore[arg-type]
    assert pipeline.optimizer(None) is None  # type: ignore[arg-type]
    assert pipeline.collate([1, 2]).tolist() == [1, 2]


def test_who_is_called_off_while_the_users_code_waits_for_a_file_is_no_error_of_that_code() -> None:
    with pytest.raises(CalledOff), naming("reading samples"):
        raise CalledOff(3)


def test_a_keyboard_interrupt_of_the_code_is_its_error_and_one_of_a_signal_stays() -> None:
    """A worker takes no notice of SIGINT, so what interrupts its code is its code."""
    with pytest.raises(KeyboardInterrupt), naming("loss()"):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGINT, disregarded)
    try:
        with refused("pipeline.raised", "loss() raised KeyboardInterrupt"), naming("loss()"):
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
