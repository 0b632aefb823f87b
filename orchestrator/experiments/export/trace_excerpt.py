"""Some lines of a run's trace, with their Merkle path."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import UsageError
from orchestrator.experiments.export.exported import Exported, require_free, writing
from orchestrator.records import excerpt, lines

_STEPS = re.compile(r"(\d{1,15})-(\d{1,15})")


@dataclass(frozen=True)
class ExportedExcerpt(Exported):
    """Lines of a trace that were written into a file. begin, last: of the steps, inclusive."""

    begin: int
    last: int
    root: str

    def as_text(self) -> str:
        return (
            f"the steps {self.begin} to {self.last} of run {self.run_id} are in {self.to}, with their Merkle path\n"
            f"  python -m orchestrator verify={shlex.quote(self.to)} root={self.root}"
        )


def export(name: str, steps: str, to: Path, uri: str | None) -> ExportedExcerpt:
    """Raises UsageError, ConfigurationError and NotRerunnable."""
    found = _STEPS.fullmatch(steps)
    if found is None:
        raise UsageError(
            f"steps={steps}: expected the first and the last step, such as steps=100-199", code="export.steps"
        )
    begin, last = int(found[1]), int(found[2])
    require_free(to)
    original = Recorded.named(uri, project_folder(Path.cwd()), name)
    trace, first = lines.raw(original.files.trace) if original.files.trace.exists() else [], original.held.begin.step
    try:
        made = excerpt.make(original.past.run_id, trace, first, begin, last + 1)
    except ValueError:
        has = f"its trace has the steps {first} to {first + len(trace) - 1}" if trace else "it has no trace"
        raise UsageError(f"steps={steps}: {has}", code="export.steps-absent") from None
    with writing(to):
        to.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return ExportedExcerpt(original.past.run_id, str(to), begin, last, made["root"])
