"""TensorBoard: event files in the run's folder, by torch's SummaryWriter and the package tensorboard.

    tensorboard --logdir .orchestrator

shows all runs of a project, each under `<run id>/tensorboard`. If a run is resumed, TensorBoard itself purges what follows
the step from which it is told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import Status
from orchestrator.records.loggers.logger import LoggedRun, missing

FOLDER = "tensorboard"
_RESULTS = ("validation/", "train/")


class TensorBoard:
    """A writer of event files."""

    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._settings = run.settings
        self._writer = SummaryWriter(str(run.folder / FOLDER), purge_step=run.since)
        self._text("settings", "\n".join(f"    {key}: {value}" for key, value in run.settings.items()))
        if run.note is not None:
            self._text("note", run.note)
        if run.tags:
            self._text(
                "tags", ", ".join(name if value is None else f"{name}={value}" for name, value in run.tags.items())
            )

    @staticmethod
    def problem() -> str | None:
        return missing("tensorboard")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def end(self, status: Status, results: Mapping[str, Any]) -> None:
        """With the settings and results, by which its page HPARAMS compares runs."""
        from torch.utils.tensorboard.summary import hparams

        self._text("end", ", ".join([status, *(f"{key} {value}" for key, value in results.items())]))
        shown = {key: _plain(value) for key, value in self._settings.items()}
        measured = {key: value for key, value in results.items() if key.startswith(_RESULTS)}
        events: Any = self._writer.file_writer
        for summary in hparams(shown, measured):  # type: ignore[no-untyped-call]
            events.add_summary(summary)
        self._writer.close()

    def _text(self, name: str, text: str) -> None:
        self._writer.add_text(f"run/{name}", text)


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
