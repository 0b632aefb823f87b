"""Lightning's own loop and ours, on the same batches: the losses of the first steps are equal to the last bit.

`images.py` is the module, as somebody wrote it: hyperparameters, batch normalisation, metrics of torchmetrics, a cosine
schedule. With one shard a step is one backward pass here and there, so the sums have the same order; a gradient that is one
contribution comes back from the exact sum as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from orchestrator.adapters.lightning import devices
from orchestrator.adapters.lightning.numbers import is_metric
from orchestrator.adapters.source import Source
from orchestrator.adapters.table import find
from orchestrator.common.values import Every, Steps
from orchestrator.data.order import Epochs
from orchestrator.data.sampling.orders import shuffled
from orchestrator.numerics.streams import seeded
from tests.worker.runs import Layout, Run, train

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
DATA = "tests.adapters.images:Data"
STEPS, SEED, ROWS, BATCH = 20, 7, 160, 32


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ours(shards: int = 1, layout: Layout | None = None, **more: Any) -> Run:
    from tests.adapters.images import Images

    kind: Any = Images
    return train(
        kind,
        layout or Layout(),
        data_module=DATA,
        optimizer=None,
        steps=STEPS,
        seed=SEED,
        shards=shards,
        batch_size=BATCH,
        evaluate_every=Every(steps=10),
        **more,
    )


def theirs() -> tuple[list[float], dict[str, float], dict[str, torch.Tensor]]:
    """The losses of Lightning's Trainer, its metrics at the end, and what it has trained."""
    import lightning

    from tests.adapters.images import Data, Images

    order = shuffled(Epochs(SEED, ROWS, Steps.constant(BATCH), 1))
    per_epoch = ROWS // BATCH
    losses: list[float] = []

    class Ordered:
        """The batches of each epoch, as ours come."""

        epoch = 0

        def __iter__(self) -> Iterator[list[int]]:
            first, self.epoch = self.epoch * per_epoch, self.epoch + 1
            return iter([order.indices(first + step, 0) for step in range(per_epoch)])

        def __len__(self) -> int:
            return per_epoch

    class Loads(Data):
        def train_dataloader(self) -> Any:
            return DataLoader(self.train, batch_sampler=Ordered())

    class Notes(lightning.Callback):
        def on_train_batch_end(self, _trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:
            losses.append(outputs["loss"].item())

    with seeded(SEED, "model"):
        module = Images()
    trainer = lightning.Trainer(
        max_epochs=STEPS // per_epoch,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[Notes()],
        use_distributed_sampler=False,
    )
    trainer.fit(module, datamodule=Loads())
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return losses, metrics, module.state_dict()


def test_the_first_losses_are_those_of_its_own_loop() -> None:
    run, (losses, metrics, state) = ours(), theirs()
    assert len(losses) == STEPS
    assert run.losses == losses
    assert all(torch.equal(run.parameters[name], value) for name, value in state.items())
    for name in ("val_accuracy", "val_f1"):  # of counts
        assert run.metrics[-1][f"validation/{name}"] == pytest.approx(metrics[name], abs=1e-7)
    assert run.metrics[-1]["validation/val_loss"] == pytest.approx(metrics["val_loss"], abs=1e-6)


def test_no_layout_changes_a_bit() -> None:
    runs = [ours(shards=4, layout=layout) for layout in (Layout(), Layout(3, "tree"))]
    assert runs[0].digest == runs[1].digest
    assert runs[0].trace == runs[1].trace
    assert runs[0].metrics == runs[1].metrics


def test_servers_give_the_same_bits() -> None:
    runs = [ours(shards=4, layout=layout) for layout in (Layout(), Layout(2, "parameter_server"))]
    assert runs[0].digest == runs[1].digest
    assert runs[0].metrics == runs[1].metrics


@pytest.mark.parametrize("sync", [{"name": "ssp", "staleness": 2}, {"name": "asp"}])
@pytest.mark.parametrize("topology", ["ring", "parameter_server"])
def test_replicas_that_run_free_train_it_and_are_repeated(sync: dict[str, Any], topology: str) -> None:
    run = ours(shards=4, layout=Layout(2, topology), sync=sync)
    assert {"validation/val_accuracy", "validation/val_f1"} <= set(run.metrics[-1])
    again = ours(shards=4, layout=Layout(2, topology), sync=sync, replay=run.rests)
    assert again.digest == run.digest


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_both_packages_are_recognised(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "pytorch" if package == "lightning" else ""
    (tmp_path / f"of_{package}.py").write_text(
        f"from {package}{'.' + module if module else ''} import LightningModule\n"
        "class Small(LightningModule):\n"
        "    def training_step(self, batch, _):\n"
        "        return self(batch)\n"
        "    def train_dataloader(self):\n"
        "        return []\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    kind: Any = find(Source(f"of_{package}:Small", {}))
    assert kind.module_class.__name__ == "Small"


def test_a_module_and_its_metrics_follow_the_parameters_to_their_device() -> None:
    """A run moves parameters and buffers, and does not call `to`, in which recurrent layers would move their weights again."""
    from tests.adapters.images import Images

    module: Any = Images()
    metrics: list[Any] = [each for each in module.modules() if is_metric(each)]
    assert metrics
    devices.follow(module)
    assert {each.device.type for each in (module, *metrics)} == {"cpu"}
    devices.tell(module, torch.device("meta"))
    assert {each.device.type for each in (module, *metrics)} == {"meta"}
    for metric in metrics:
        metric.reset()
        states = [getattr(metric, state) for state in metric._reductions]
        assert {state.device.type for state in states} == {"meta"}
    assert {each.device.type for each in module.parameters()} == {"cpu"}
