"""`verify=FILE root=LINES:ROOT`: whether lines of a trace, which `export=RUN_ID steps=A-B` wrote, are those of its root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, reported
from orchestrator.errors import NotRerunnable, UsageError
from orchestrator.records import bounded_json, excerpt

_WHERE = "it is on the run's card, in its tag trace.root, and in the statement of its crate: root=LINES:ROOT"


@dataclass(frozen=True)
class Verified:
    """Lines of a trace that were found to be those of a run. last: of the steps, inclusive."""

    run_id: str
    begin: int
    last: int
    root: str

    def as_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "begin": self.begin, "last": self.last, "root": self.root, "status": "finished"}

    def as_text(self) -> str:
        return (
            f"these are the steps {self.begin} to {self.last} of the trace with the root {self.root}, run {self.run_id}"
        )


def run(arguments: Arguments) -> CommandResult:
    root = arguments.get("root")
    if root is None:
        raise UsageError("verify needs the root of the trace", _WHERE, code="verify.needs-root")
    return reported(verify(Path(arguments.value), root), arguments)


def verify(file: Path, root: str) -> Verified:
    """Raises UsageError, and NotRerunnable for lines that are not those of the trace."""
    try:
        statement = bounded_json.read(file)
    except OSError as error:
        raise UsageError(f"verify={file}: it cannot be read: {error.strerror}", code="verify.unreadable") from None
    except RecursionError:
        raise NotRerunnable(
            f"{file} is refused: it is nested too deeply", "ask for it again", code="verify.nested"
        ) from None
    except ValueError as error:
        raise NotRerunnable(
            f"{file} is refused: it is no JSON: {error}", "ask for it again", code="verify.not-json"
        ) from None
    try:
        problem = excerpt.problem(statement, root)
    except ValueError as error:
        raise UsageError(f"root={root}: {error}", _WHERE, code="verify.root") from None
    if problem is not None:
        raise NotRerunnable(
            f"{file} is refused: {problem}",
            "ask for it again: export=RUN_ID steps=A-B to=FILE writes it",
            code="verify.refused",
        )
    begin = int(statement["begin"])
    return Verified(str(statement.get("run")), begin, begin + len(statement["lines"]) - 1, root)
