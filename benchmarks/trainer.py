"""The side of Ray Train in benchmarks/recovery.py and nodes.py: TorchTrainer, DDP over gloo, a checkpoint every few steps.

    python -m benchmarks.trainer '{"folder": "/tmp/here", "hidden": 1024, "every": 5, "losses": 1, ...}'

Trains until FOLDER/stop holds a number of steps and that is reached. Needs tensorboardX, which Ray Train imports.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.wide import INPUTS, ROWS

WORKERS = 2


def train(settings: dict[str, Any]) -> None:
    """One worker's loop, as the documentation of Ray Train has it."""
    import ray.train
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks import wide

    folder = Path(settings["folder"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inner = wide.model(settings["hidden"])
    optimizer = wide.optimizer(inner, folder / "marks")
    done = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as place:
            state = torch.load(Path(place) / "state.pt")
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
    model = DistributedDataParallel(inner)
    inputs, targets = torch.randn(ROWS, INPUTS), torch.randn(ROWS, INPUTS)
    stop = folder / "stop"
    while not (stop.exists() and done >= int(stop.read_text())):
        optimizer.zero_grad()
        time.sleep(settings["sleep_s"])
        torch.nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += 1
        if done % settings["every"] == 0:
            with tempfile.TemporaryDirectory() as place:
                kept = None
                if ray.train.get_context().get_world_rank() == 0:
                    state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
                    torch.save(state, Path(place) / "state.pt")
                    kept = ray.train.Checkpoint.from_directory(place)
                ray.train.report({"done": done}, checkpoint=kept)


def main(
    folder: str,
    hidden: int,
    every: int,
    losses: int,
    address: str = "local",
    workers: int | Sequence[int] = WORKERS,
    look_s: float = 60.0,
    sleep_s: float = 0.0,
) -> None:
    """losses: how many may be, or -1. address: of a Ray to join. workers: two numbers for a range; look_s: how often room for
    more is looked for (60 is Ray Train's default). sleep_s: of each step."""
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    own: dict[str, Any] = {"num_cpus": WORKERS + 2, "include_dashboard": False, "_temp_dir": f"{folder}/ray"}
    ray.init(address=address, **own if address == "local" else {})
    number = workers if isinstance(workers, int) else tuple(workers)
    scaling: dict[str, Any] = {"num_workers": number, "elastic_resize_monitor_interval_s": look_s}
    TorchTrainer(
        train,
        train_loop_config={"folder": folder, "hidden": hidden, "every": every, "sleep_s": sleep_s},
        scaling_config=ScalingConfig(**scaling),
        torch_config=TorchConfig(backend="gloo", timeout_s=60),
        run_config=RunConfig(
            name="recovery",
            storage_path=f"{folder}/storage",
            failure_config=FailureConfig(max_failures=losses),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
