"""The side of Ray Train in benchmarks/recovery.py: TorchTrainer with two workers, DDP over gloo, a checkpoint every few steps.

    python -m benchmarks.trainer FOLDER HIDDEN EVERY LOSSES

Trains until FOLDER/stop holds a number of steps and that is reached. LOSSES: how many workers may be lost. Needs tensorboardX,
which Ray Train imports.
"""

from __future__ import annotations

import sys
import tempfile
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


def main(folder: str, hidden: str, every: str, losses: str) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(address="local", num_cpus=WORKERS + 2, include_dashboard=False, _temp_dir=f"{folder}/ray")
    TorchTrainer(
        train,
        train_loop_config={"folder": folder, "hidden": int(hidden), "every": int(every)},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        torch_config=TorchConfig(backend="gloo", timeout_s=60),
        run_config=RunConfig(
            name="recovery",
            storage_path=f"{folder}/storage",
            failure_config=FailureConfig(max_failures=int(losses)),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
