"""The values that the functions of the Python entry return. Results that cost are read when they are asked for."""

from __future__ import annotations

import base64
import html
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.arguments import require

if TYPE_CHECKING:
    import pandas
    import torch

    from orchestrator.driver.recording.recorded import Recorded
    from orchestrator.provenance.tracking import Store
    from orchestrator.worker.ensemble.model import EnsembleModel
    from orchestrator.worker.serving.served import Served

_HEIGHT = 640  # pixels of a card below a cell


class Card(str):
    """The card of a run as Markdown; a notebook shows the page that it is, too."""

    page: str

    def __new__(cls, text: str, page: str) -> Card:
        """page: the same as HTML; "" where there is none."""
        made = super().__new__(cls, text)
        made.page = page
        return made

    def _repr_html_(self) -> str | None:
        if not self.page:
            return None
        frame = f'style="width: 100%; height: {_HEIGHT}px; border: 1px solid #ccc" sandbox'
        return f'<iframe srcdoc="{html.escape(self.page)}" {frame}></iframe>'


class Figures(dict[str, Path]):
    """The pictures of a run: a file for each name. A notebook shows them."""

    def _repr_html_(self) -> str:
        shown = {name: path for name, path in self.items() if path.suffix == ".png"}
        return "\n".join(
            f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{_in_text(path)}">'
            f"<figcaption>{html.escape(name)}</figcaption></figure>"
            for name, path in shown.items()
        )


def _in_text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


@dataclass(frozen=True)
class Run:
    """A run and what it came to. Properties are read from its record, so it may be of another process, day or machine: what is
    not in its folder is fetched from the artifacts of its MLflow store."""

    run_id: str  # of the tracker
    folder: Path  # its files
    steps: int  # how many were done
    digest: str | None  # of its parameters; None of a run that has not finished
    loss: float | None  # of the last step; None before the first one, and where it must not be told
    metrics: dict[str, float]  # of the last evaluation
    typed: tuple[str, ...] = field(default=(), compare=False, repr=False)  # behind `python -m orchestrator`
    uri: str | None = field(default=None, compare=False, repr=False)  # of the MLflow store; None for the project's

    @property
    def command(self) -> str:
        """The command line that does the same, typed in the project's folder."""
        typed = self.typed or (f"conf={self.folder.parent.name}/{self.run_id}/settings.yaml",)
        return shlex.join(["python", "-m", "orchestrator", *typed])

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its dotted key, `optimizer.lr`, without credentials."""
        from orchestrator.config.settings import flat

        return flat(self._recorded.held)

    @property
    def verdict(self) -> str | None:
        """ "exact", "diverged" or "inputs-differ": of a rerun its own, else that of the last rerun of it; None without one."""
        return self._found().past.verdict

    @property
    def card(self) -> Card:
        """Its ingredients and results. A notebook shows it as a page."""
        files = self._recorded.files
        text, page = (file.read_text(encoding="utf-8") if file.exists() else "" for file in (files.card, files.page))
        return Card(text, page)

    @property
    def figures(self) -> Figures:
        """The files of its pictures by their names, `loss`, `time`, `topology`. A notebook shows them."""
        from orchestrator.driver.recording import artifacts

        found = artifacts.pictures(self._store, self._recorded.past, self._recorded.files)
        return Figures({path.stem: path for path in found})

    def history(self) -> pandas.DataFrame:
        """A row for each step: its loss, and the metrics of the evaluation that followed it, if one did."""
        from orchestrator.experiments.history import history

        return history(self._found())

    def model(self, *, trust: bool = False) -> torch.nn.Module:
        """The trained module in evaluation mode: made by the pipeline as it was recorded, with the trained weights. trust: also
        of a run of somebody else, whose code is executed. Raises OrchestratorError."""
        return self._served(trust=trust).get_raw_model()

    def predict(self, inputs: Any, *, trust: bool = False) -> Any:
        """The answer of the pipeline's `predict` to an array, a list or a table, by the trained model; arrays. trust: as of
        `model`. Raises OrchestratorError."""
        return self._served(trust=trust).predict(inputs)

    def _served(self, *, trust: bool) -> Served:
        require("trust", trust, bool)
        if "served" not in self._kept:
            from orchestrator.experiments.trained import load

            self._kept["served"] = load(self._recorded, self._store, trusted=trust)
        found: Served = self._kept["served"]
        return found

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _recorded(self) -> Recorded:
        return self._found()

    @cached_property
    def _store(self) -> Store:
        from orchestrator.provenance.tracking import Store

        return Store.with_run(self.uri, self.folder.parent, self.run_id)

    def _found(self) -> Recorded:
        """As it is now."""
        from orchestrator.driver.recording.recorded import Recorded

        return Recorded.find(self._store, self.folder.parent, self.run_id)


@dataclass(frozen=True)
class Sweep:
    """A sweep or an ensemble, and what it came to."""

    sweep_id: str  # of the tracker
    folder: Path  # its files
    report: Mapping[str, Any]  # as output=json of the command has it
    uri: str | None = field(default=None, compare=False, repr=False)  # of the MLflow store; None for the project's

    @property
    def best(self) -> Run | None:
        """The run of the best trial; None where none has a value."""
        best = self.report["best"]
        return None if best is None else found(best["run_id"], self.folder.parent, self.uri)

    @property
    def settings(self) -> dict[str, Any]:
        """Those that make the best trial; none without one."""
        best = self.report["best"]
        return {} if best is None else dict(best["settings"])

    @property
    def trials(self) -> pandas.DataFrame:
        """A row for each trial: its settings, value, run and status."""
        import pandas

        rows = [{**{k: v for k, v in each.items() if k != "settings"}, **each["settings"]} for each in self._trials]
        return pandas.DataFrame(rows).set_index("number") if rows else pandas.DataFrame()

    @property
    def _trials(self) -> list[dict[str, Any]]:
        return list(self.report["trials"])

    def model(self, *, combine: str | None = None) -> EnsembleModel:
        """The members of an ensemble as one torch module, as `load_ensemble` gives them."""
        from orchestrator.api.loading import load_ensemble

        return load_ensemble(self.folder / "model", combine=combine)


@dataclass(frozen=True)
class Rerun:
    """The outcome of a repetition."""

    verdict: str  # "exact", "diverged" or "inputs-differ"; "audited" of an audit that has found nothing
    text: str  # the verdict in words, with what differs
    run_id: (
        str | None
    )  # of the repetition, a run or a sweep; None where its data came out otherwise and nothing was trained
    rerun_of: str  # id of the original
    report: Mapping[str, Any] = field(repr=False)  # as output=json of the command has it
    folder: Path = field(repr=False)  # `.orchestrator`, in which both lie
    uri: str | None = field(default=None, compare=False, repr=False)  # of the MLflow store; None for the project's

    def __str__(self) -> str:
        return self.text

    @property
    def run(self) -> Run | None:
        """The repetition; None where it is no run."""
        is_run = self.run_id is not None and "sweep_id" not in self.report
        return found(str(self.run_id), self.folder, self.uri) if is_run else None


@dataclass(frozen=True)
class Comparison:
    """The differences between runs."""

    text: str  # in words, as the command says it
    report: Mapping[str, Any] = field(repr=False)  # as output=json of the command has it

    def __str__(self) -> str:
        return self.text

    @property
    def differences(self) -> pandas.DataFrame:
        """A row for each difference of two runs; of more, with the run that is compared with the first."""
        import pandas

        pairs = self.report.get("comparisons", [self.report])
        return pandas.DataFrame([{"run": each["runs"][1], **row} for each in pairs for row in each["differences"]])


def found(run_id: str, folder: Path, uri: str | None) -> Run:
    """A recorded run of the project whose `.orchestrator` is `folder`. Raises OrchestratorError where there is none."""
    from orchestrator.driver.recording import unsent
    from orchestrator.driver.recording.recorded import Recorded
    from orchestrator.driver.terminal.progress import for_stream

    recorded = Recorded.find(unsent.opened(uri, folder, run_id, for_stream().say), folder, run_id)
    past = recorded.past
    metrics = {name: value for name, value in past.metrics.items() if name.startswith("validation/")}
    loss = past.metrics.get("train/loss")
    return Run(past.run_id, recorded.files.path, past.steps or 0, past.digest, loss, metrics, uri=uri)


def name_of(run: str | Path | Run, name: str = "run_id", *, of_crate: bool = False) -> str:
    """The id of a run, or the path of a crate. Raises UsageError where neither can be meant."""
    require(name, run, *((str, Run, Path) if of_crate else (str, Run)))
    return run.run_id if isinstance(run, Run) else str(run)
