"""Models that the worker has compiled: the same bits on every layout, and in every process, whoever compiles.

Most tests let torch's compiler find the frames, and run them by the operators of torch: to make machine code takes minutes on
busy cores. Two processes do that, each with a cache of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from orchestrator.errors import ConfigurationError, PipelineRaised
from orchestrator.numerics import inductor
from orchestrator.worker.model.held_memory import hold_memory
from tests.products import thinned
from tests.worker import faulty as f
from tests.worker import pipelines as p
from tests.worker.runs import Layout, members_end, train

TRAIN = """
import json
from tests.worker import pipelines as p
from tests.worker.runs import Layout, train

if __name__ == "__main__":
    runs = [train(p.Wide, Layout(workers), shards=2, steps=2, compiled=compiled) for workers, compiled in CASES]
    print(json.dumps([(run.digest, sorted(run.parameters)) for run in runs]))
"""


# As on a full disk, with a damaged cache, or where the machine is so busy that it takes a minute.
NO_PROBE = """
from orchestrator.numerics import inductor
from orchestrator.worker.model.held_memory import hold_memory

inductor.prepare()  # the compiler chooses a folder as it is imported
from torch._inductor.cpu_vec_isa import VecISA

VecISA.check_build = lambda *_: False
"""
CHANGED = ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit", "wrap_top_frame")


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Frames are found and not made into machine code; what the compiler was told is put back."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, *_, **__: graph.forward)
    config: Any = torch.compiler.config
    kept = {name: getattr(config, name) for name in CHANGED}
    torch.compiler.reset()
    yield
    for name, value in kept.items():
        setattr(config, name, value)


def frames() -> int:
    """So many have been compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["frames"]["ok"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, where a frame ends in the middle
@pytest.mark.parametrize("pipeline", thinned([p.Mlp, p.Batchnorm, p.LayerDrop], 3, 1))
@pytest.mark.usefixtures("quickly")
def test_a_compiled_model_trains_alike_on_every_layout(pipeline: type[p.Small]) -> None:
    before = frames()
    first = train(pipeline, compiled=True)
    assert frames() > before
    assert first.parameters.keys() == train(pipeline).parameters.keys()
    for layout in (Layout(3, "tree"), Layout(2, "parameter_server", servers=2)):
        assert train(pipeline, layout, compiled=True).digest == first.digest


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("pipeline", thinned([f.Compiled, f.CompiledByLoss], 2, 1))
def test_what_the_pipeline_compiles_is_taken_where_that_is_asked_for(pipeline: Any) -> None:
    assert train(pipeline, compiled=True).digest == train(pipeline, Layout(2), compiled=True).digest


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_too_many_shapes_are_an_error_and_no_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_SHAPES", 1)
    (end,) = members_end(p.Mlp, compiled=True)
    assert isinstance(end, PipelineRaised)
    assert "recompile" in str(end)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("quickly")
def test_so_they_are_in_a_step_that_another_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps settings of its compiler by thread. All shapes of the first step are compiled before it."""
    sizes = {step: 12 + step for step in range(4)}
    assert len(train(p.Mlp, shards=1, steps=4, batch_size=sizes, compiled=True).trace) == 4
    torch.compiler.reset()
    monkeypatch.setattr(inductor, "_SHAPES", 2)
    (end,) = members_end(p.Mlp, shards=1, steps=4, batch_size=sizes, compiled=True)
    assert isinstance(end, PipelineRaised)
    assert "recompile" in str(end)


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("within", ["transform", "mode"])
def test_a_call_within_a_transform_or_a_mode_makes_no_later_call_eager(within: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    inductor.compile_model(model)
    model(torch.ones(3, 2))
    before = frames()
    assert before
    if within == "mode":
        with FlopCounterMode(display=False):
            model(torch.ones(4, 2))
    else:
        parameters = dict(model.named_parameters())
        torch.func.grad(lambda given: torch.func.functional_call(model, given, torch.ones(4, 2)).sum())(parameters)
    assert frames() == before
    model(torch.ones(5, 2))
    assert frames() == before + 1


class Tabled(torch.nn.Module):
    """A model with a table that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.table = torch.ones(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.linear(rows) * self.table
        return scaled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("quickly", "retracer")
def test_the_compiler_takes_buffers_that_a_model_moves_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to compile code that moves integers in memory which it shares with others."""
    from torch._dynamo import lookup_backend

    monkeypatch.setattr(torch._inductor, "compile", lambda *given, **_: lookup_backend("aot_eager")(*given))
    assert train(p.Batchnorm, compiled=True, steps=4).digest == train(p.Batchnorm, steps=4).digest


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_a_recording_is_of_compiled_code_and_knows_the_tables_that_this_reads() -> None:
    model, ran = Tabled(), list[int]()
    inductor.compile_model(model)
    model.linear.register_forward_hook(lambda *_: ran.append(1) if not torch.compiler.is_compiling() else None)
    rows = torch.ones(3, 2)
    model(rows)
    with hold_memory() as read:
        model(rows).sum().backward()
    watched = read.watched([*model.parameters(), rows])
    assert (ran, watched.written()) == ([], "")
    model.table.fill_(2.0)
    assert "(3x2) was filled anew" in watched.written()


@pytest.mark.long
def test_two_processes_with_caches_of_their_own_compute_the_same_bits(tmp_path: Path) -> None:
    """In one of them the compiler cannot try which vectors it has."""
    found = []
    for name, before, cases in (("one", "", [(1, True), (2, True), (1, False)]), ("other", NO_PROBE, [(1, True)])):
        # An earlier training of this process has left the folder of its own cache.
        variables = {key: value for key, value in os.environ.items() if key != "TORCHINDUCTOR_CACHE_DIR"}
        variables["XDG_CACHE_HOME"] = str(tmp_path / name)
        code = f"CASES = {cases}\n{before}{TRAIN}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        assert any((tmp_path / name).rglob("*.so"))
    (first, on_two, eager), (other,) = found
    assert first == on_two == other
    assert first[1] == eager[1]


def test_the_width_of_vectors_is_no_result_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inductor._options()["cpp.vec_isa_ok"]
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
    assert "cpp.vec_isa_ok" not in inductor._options(), "a user has said it, and that is recorded"
    assert inductor.describe()["variables"]["TORCHINDUCTOR_VEC_ISA_OK"] == "0"


def test_a_node_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inductor.problem("cpu") is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigurationError) as refused:
        inductor.start("cuda")
    assert refused.value.code == "model.compiler"
    assert "no-such-compiler" in str(refused.value)
    assert "triton" in str(refused.value)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "/nowhere")
    assert "Python.h" in str(inductor.problem("cpu"))


def test_where_the_cache_folder_takes_nothing_a_process_has_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is put back
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # root may write wherever a folder is
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    inductor.prepare()
    place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert place.is_dir()
    assert place.is_relative_to(tmp_path)


def test_a_named_cache_folder_that_takes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "to be made"))
    assert inductor.problem("cpu") is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigurationError) as refused:
        inductor.start("cpu")
    assert refused.value.code == "model.compiler-cache"


def test_what_other_compilers_have_made_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    before = inductor.folder()
    assert inductor.folder() == before
    monkeypatch.setattr(inductor, "_cxx", lambda: "g++ 99.0")
    assert inductor.folder() != before


def test_what_changes_the_bits_of_compiled_code_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    found = inductor.describe()
    assert found["variables"]["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert "TORCHINDUCTOR_CACHE_DIR" not in found["variables"]
    assert found["cxx"]


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
def test_the_compiler_makes_no_graphs_of_its_own_and_tries_no_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def compiled(graph: Any, _: Any, options: dict[str, Any]) -> Any:
        given.update(options)
        return graph.forward

    monkeypatch.setattr(torch._inductor, "compile", compiled)
    model = torch.nn.Linear(2, 2)
    inductor.compile_model(model)
    model(torch.ones(3, 2))
    assert given == {"triton.cudagraphs": False, "cpp.vec_isa_ok": True}
