"""`make demo` does what the README says: four workers in a ring come to the golden digest, and to its accuracy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.test_readme import DEMO, LAUNCH, STEPS, digest_in
from tests.portable.golden import GOLDEN
from tests.projects import Project, make_clone, with_steps

pytestmark = pytest.mark.ray


def trained(clone: Project, command: str, steps: int) -> list[str]:
    """The trace of a run that came to its golden digest."""
    before = set(clone.runs())
    done = clone.shell(command)
    assert done.code == 0, done.err
    assert digest_in(done.err) == GOLDEN["digits"][str(steps)]
    accuracy = re.search(r"results .*validation/accuracy ([\d.]+)", done.err)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.97
    assert "note: " not in done.err
    assert clone.leftovers() == []
    (run_id,) = set(clone.runs()) - before
    lines = (clone.folder(run_id) / "trace.jsonl").read_text().splitlines()
    assert len(lines) == steps
    return lines


def test_the_demo_has_its_digest_and_its_accuracy(tmp_path: Path) -> None:
    """After fewer steps than a reader's."""
    trained(make_clone(tmp_path / "clone", STEPS), DEMO, STEPS)


@pytest.mark.long
def test_after_all_its_steps_too_and_fewer_are_their_beginning(tmp_path: Path) -> None:
    """Four hundred by four workers in a ring, and the first of them by three in a tree."""
    clone = make_clone(tmp_path / "clone")
    whole = trained(clone, DEMO, 400)
    with_steps(clone, STEPS)
    assert trained(clone, LAUNCH, STEPS)[:-1] == whole[: STEPS - 1]
