"""Plain PyTorch beside which runs are measured: what a user would write, with gradient accumulation over micro-batches.

    python -m benchmarks.gpu.plain '{"device": "cuda", "loops": [...]}'

A process that prints a line of JSON for each loop as it is done, so that one who runs out of time still has the others. Kinds:

    eager            as it comes
    deterministic    with torch.use_deterministic_algorithms
    compiled         eager, after model.compile()
    torch.save       not steps: of model and optimizer, to a file
    memory           not steps: two steps, and the process ends holding what it held
    empty            not steps: a process that has started CUDA and computed a product
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

WARM_UP: Final = 3
_BLOCKS: Final = 4  # of steps; the device is waited for after each


@dataclass(frozen=True)
class Loop:
    """key: under which its figures stand. model: of `benchmarks.gpu.models`; rows: of a step, cut into `shards`."""

    key: str
    kind: str
    model: str
    precision: str
    shards: int
    rows: int
    steps: int
    args: Mapping[str, Any] = field(default_factory=dict)
    clip: float | None = None
    lr: float = 1e-3
    backend: str = "inductor"


class Training:
    """A model and its optimizer on a device."""

    def __init__(self, loop: Loop, device: str) -> None:
        import torch

        from benchmarks.gpu import models

        torch.manual_seed(0)
        torch.use_deterministic_algorithms(loop.kind == "deterministic")
        self.loop, self.device = loop, device
        self.pipeline = getattr(models, loop.model)(**loop.args)
        self.items = self.pipeline.datasets()[0]
        with torch.device(device):
            self.model = self.pipeline.model()
        if loop.kind == "compiled":
            self.model.compile(backend=loop.backend)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=loop.lr, fused=device == "cuda")
        self.next = 0

    def step(self) -> None:
        import torch

        loop = self.loop
        self.optimizer.zero_grad()
        for _ in range(loop.shards):
            batch = [each.to(self.device, non_blocking=True) for each in self._batch(loop.rows // loop.shards)]
            with torch.autocast(self.device, torch.bfloat16, enabled=loop.precision == "bfloat16"):
                loss = self.pipeline.loss(self.model, batch)
            (loss / loop.shards).backward()
        if loop.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), loop.clip)
        self.optimizer.step()

    def _batch(self, rows: int) -> Any:
        from torch.utils.data import default_collate

        places = range(self.next, self.next + rows)
        self.next += rows
        return default_collate([self.items[place % len(self.items)] for place in places])

    def settle(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()


def steps(training: Training) -> list[float]:
    """Milliseconds of a step, block by block."""
    for _ in range(WARM_UP):
        training.step()
    training.settle()
    count = max(1, training.loop.steps // _BLOCKS)
    found = []
    for _ in range(_BLOCKS):
        began = time.perf_counter()
        for _ in range(count):
            training.step()
        training.settle()
        found.append(1e3 * (time.perf_counter() - began) / count)
    return found


def saved(training: Training) -> list[float]:
    """Milliseconds for which a loop stands still that saves."""
    import torch

    training.step()
    training.settle()
    with tempfile.TemporaryDirectory(prefix="gpu-", dir="/tmp") as folder:
        began = time.perf_counter()
        state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        torch.save(state, Path(folder) / "state.pt")
        return [1e3 * (time.perf_counter() - began)]


def held(training: Training) -> list[float]:
    """The number of parameters."""
    for _ in range(2):
        training.step()
    training.settle()
    return [float(sum(parameter.numel() for parameter in training.model.parameters()))]


MEASURES = {"torch.save": saved, "memory": held}


def measured(loop: Loop, device: str) -> list[float]:
    import torch

    if loop.kind == "empty":
        ones = torch.ones(512, 512, device=device, requires_grad=True)
        (ones @ ones).sum().backward()  # type: ignore[no-untyped-call]
        return [float(ones.grad is not None)]
    return MEASURES.get(loop.kind, steps)(Training(loop, device))


def told(device: str, loops: Sequence[Loop]) -> str:
    """To a process of this module."""
    return json.dumps({"device": device, "loops": [asdict(loop) for loop in loops]})


def heard(output: str) -> tuple[dict[str, dict[str, list[float]]], list[str]]:
    """(key -> kind -> samples, what failed) of the lines that such a process has printed. Pure."""
    found: dict[str, dict[str, list[float]]] = {}
    failed = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError):  # a warning, or a line that was cut off
            said = json.loads(line)
            if isinstance(said, dict) and "samples" in said:
                found.setdefault(said["key"], {})[said["kind"]] = said["samples"]
            elif isinstance(said, dict) and "error" in said:
                failed.append(f"plain PyTorch, {said['key']}, {said['kind']}: {said['error']}")
    return found, failed


def main(text: str) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    asked = json.loads(text)
    if asked["device"] == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # as a run does without run.tf32
    else:
        torch.set_num_threads(1)
    for loop in (Loop(**each) for each in asked["loops"]):
        said: dict[str, Any] = {"key": loop.key, "kind": loop.kind}
        try:
            said["samples"] = measured(loop, asked["device"])
        except Exception as error:
            said["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        print(json.dumps(said), flush=True)
        if asked["device"] == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1])
