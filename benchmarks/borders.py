"""The cuts of a model by counted operations, as `cluster.stages` makes them, beside the measured time of each module.

    python -m benchmarks.borders [--stages 2 3 4] [--rounds 7]

Columns, of each way to choose, relative to stages that are equal, so that 1.00 is the best there is:

    slowest   the processor time of the slowest stage, forward and backward, of one micro-batch in this process
    largest   the parameters of the stage that owns most, which count as much as time when borders are chosen

It sends nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from orchestrator import Pipeline
from orchestrator.config.resolve import resolve
from orchestrator.config.settings import load
from orchestrator.numerics import determinism
from orchestrator.pipeline import find
from orchestrator.worker.model.pipeline_adapter import PipelineAdapter
from orchestrator.worker.model.replica import Replica
from orchestrator.worker.pipeline_parallel.all_stages import WholeModel
from orchestrator.worker.pipeline_parallel.cuts import Cuts, choose, cut
from orchestrator.worker.pipeline_parallel.survey import survey


class Gpt2(Pipeline):
    """Hugging Face's, whose output layer is tied to its embedding."""

    def model(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        sizes = {"vocab_size": 2000, "n_positions": 64, "n_embd": 192, "n_layer": 8, "n_head": 6}
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        model: nn.Module = GPT2LMHeadModel(GPT2Config(**sizes, **ends, use_cache=False))
        return model

    def datasets(self) -> tuple[TensorDataset, None]:
        return TensorDataset(torch.randint(2000, (64, 64))), None

    def loss(self, model: nn.Module, batch: Sequence[Tensor]) -> Any:
        return model(input_ids=batch[0], labels=batch[0]).loss


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = outputs // inputs
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class ResNet(Pipeline):
    """The plan of ResNet-18, a quarter as wide."""

    def model(self) -> nn.Module:
        widths = [16, 16, 16, 32, 32, 64, 64, 128, 128]
        blocks = [Residual(*pair) for pair in itertools.pairwise(widths)]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
        return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks, *head)

    def datasets(self) -> tuple[TensorDataset, None]:
        return TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(10, (64,))), None

    def loss(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])


MODELS = {"deep": "benchmarks.deep:Deep", "gpt2": "benchmarks.borders:Gpt2", "resnet": "benchmarks.borders:ResNet"}


def measured(workload: PipelineAdapter, rounds: int) -> tuple[float, ...]:
    """By position (as `Survey.costs`), the processor time of a forward pass, the median over the rounds."""
    found = []
    for _ in range(rounds):
        moments: list[float] = []
        called: set[int] = set()

        def began(module: nn.Module, _: Any, moments: list[float] = moments, called: set[int] = called) -> None:
            if id(module) not in called:
                called.add(id(module))
                moments.append(time.thread_time())

        handles = [each.register_forward_pre_hook(began, prepend=True) for each in workload.model.modules()]
        with workload.call(0, 0) as call:
            moments.append(time.thread_time())
            call.make()
        moments.append(time.thread_time())
        for handle in handles:
            handle.remove()
        found.append([later - earlier for earlier, later in itertools.pairwise(moments)])
    return tuple(statistics.median(times) for times in zip(*found, strict=True))


def slowest(workload: PipelineAdapter, replica: Replica, cuts: Cuts, rounds: int) -> float:
    """The part of the processor time that the slowest stage has of a micro-batch, times the number of stages."""
    shares = []
    for _ in range(rounds):
        whole = WholeModel(workload.model, cuts, clock=time.thread_time)
        replica.begin_shard()
        with workload.call(0, 0) as call:
            judged = call.judged(whole.forward(call.make))
            assert judged is not None
            whole.backward(judged[0])
        whole.close()
        replica.forget()
        shares.append(max(whole.seconds) / sum(whole.seconds) * cuts.stages)
    return statistics.median(shares)


def _compare(name: str, stages: Sequence[int], rounds: int, tell: Callable[[str], None]) -> None:
    conf = {
        "run": {"steps": 1, "seed": 1},
        "pipeline": {"target": MODELS[name]},
        "data": {"shards": 8, "batch_size": 32},
        "optimizer": {"name": "adamw"},
    }
    plan = resolve(load([conf], []))
    workload = PipelineAdapter(find(MODELS[name], {}), plan.run, plan.data)
    replica = Replica(workload.model, watches_all=False, rules=workload.buffer_rules)
    replica.begin_shard()
    with workload.call(0, 0) as call:
        counted = survey(workload.model, call.make)
    by_time = dataclasses.replace(counted, costs=measured(workload, rounds))
    sizes = {name: each.numel() for name, each in workload.model.named_parameters() if each.requires_grad}
    names = [each for each, _ in [*workload.model.named_parameters(), *workload.model.named_buffers()]]
    for number in stages:
        told, chosen = f"{name:8}{number:7}", []
        for found in (counted, by_time):
            chosen.append(choose({"training": found}, number, sizes))
            cuts = cut({"training": found}, chosen[-1], names)
            most = max(sum(sizes.get(each, 0) for each in cuts.owned(stage)) for stage in range(number))
            told += f"{slowest(workload, replica, cuts, rounds):10.2f}{most / sum(sizes.values()) * number:9.2f}"
        tell(f"{told}  {'the same' if chosen[0] == chosen[1] else ' and '.join(map(', '.join, chosen))}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.borders")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--stages", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    determinism.prepare_thread(1, "cpu")
    print(f"{'':15}{'counted':>19}{'measured':>19}")
    columns = f"{'slowest':>10}{'largest':>9}" * 2
    print(f"{'model':8}{'stages':>7}{columns}  borders")
    for name in given.models:
        _compare(name, given.stages, given.rounds, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
