"""`export=RUN_ID to=FOLDER|ZIP [data|checkpoints=true] [wheels=FOLDER] [key=PATH] [license=URL]`: a record as one crate; with
`steps=A-B to=FILE` instead some lines of its trace, with their Merkle path. With `model=true` it writes the
trained model alone, in the form of its own framework; with `to=FILE.ckpt`, as a checkpoint of Lightning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.adapters.lightning.checkpoints import ENDING
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.errors import UsageError
from orchestrator.experiments.export import crate, lightning_checkpoint, trace_excerpt, trained_model
from orchestrator.experiments.export.crate import ExportRequest
from orchestrator.experiments.export.exported import Exported

_BESIDE = ("to", "output", "tracking.uri")  # arguments of every kind


def run(arguments: Arguments) -> CommandResult:
    to = arguments.path("to")
    arguments.flag("data")  # another word than true and false is refused for every kind
    if to is None:
        raise UsageError("export needs a place: to=FOLDER or to=FILE.zip", code="export.needs-place")
    export = next(export for is_asked, export in _KINDS if is_asked(arguments, to))
    return reported(export(arguments, to), arguments)


def _excerpt(arguments: Arguments, to: Path) -> Exported:
    if others := arguments.without(*_BESIDE, "steps"):
        raise UsageError(
            f"steps= writes lines of the trace alone, without {' '.join(others)}",
            "leave that out",
            code="export.steps-alone",
        )
    return trace_excerpt.export(arguments.value, arguments.get("steps") or "", to, arguments.uri)


def _model(arguments: Arguments, to: Path) -> Exported:
    if others := arguments.without(*_BESIDE, "model", "trust"):
        raise UsageError(
            f"model=true writes the trained model alone, without {' '.join(others)}",
            "leave that out",
            code="export.model-alone",
        )
    return trained_model.export(arguments.value, to, arguments.uri, trusted=arguments.flag("trust"))


def _checkpoint(arguments: Arguments, to: Path) -> Exported:
    if others := arguments.without(*_BESIDE, "trust"):
        raise UsageError(
            f"to={to}: a checkpoint of Lightning is the trained model alone, without {' '.join(others)}",
            "leave that out, or the ending of the file",
            code="export.checkpoint-alone",
        )
    return lightning_checkpoint.export(arguments.value, to, arguments.uri, trusted=arguments.flag("trust"))


def _crate(arguments: Arguments, to: Path) -> Exported:
    wanted = ExportRequest(
        to,
        with_data=arguments.flag("data"),
        key=arguments.path("key"),
        license=arguments.get("license"),
        wheels=arguments.path("wheels"),
        with_checkpoints=arguments.flag("checkpoints"),
        trusted=arguments.flag("trust"),
    )
    return crate.export(arguments.value, wanted, arguments.uri)


# Whether the arguments ask for a kind, and its export; the first that they ask for is made.
_KINDS: tuple[tuple[Callable[[Arguments, Path], bool], Callable[[Arguments, Path], Exported]], ...] = (
    (lambda arguments, _: arguments.get("steps") is not None, _excerpt),
    (lambda arguments, _: arguments.flag("model"), _model),
    (lambda _, to: to.suffix == ENDING, _checkpoint),
    (lambda *_: True, _crate),
)
