"""The page of first steps, followed word for word: a record, a rerun, a kill, a resume."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.projects import REPOSITORY, Project, make_clone

PAGE = (REPOSITORY / "docs" / "first-steps.md").read_text()
LAUNCH, LIST, RERUN, KILL = (
    line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
)
FILES = re.findall(r"`([\w.]+\.\w+)`", PAGE[PAGE.index("| file |") : PAGE.index("[The record]")])


@pytest.mark.long
@pytest.mark.ray
def test_the_page_works_word_for_word(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    for command in ("dvc repro --quiet prepare_digits", LAUNCH, LIST):
        done = clone.shell(command)
        assert done.code == 0, (command, done.err)
    run_id = _newest(clone)
    assert len(FILES) == 8
    assert [name for name in FILES if not (clone.folder(run_id) / name).exists()] == []
    rerun = clone.shell(RERUN)
    assert (rerun.code, rerun.err.splitlines()[-1]) == (0, _told("exact: .*"))
    killed = clone.shell(KILL)
    assert killed.code == 0, killed.err
    assert killed.out.splitlines()[-1] == _told("equal to the last bit")
    assert re.search(r"^--- kill -9 \d+ +\(worker 2, after \d+ steps\)$", killed.err, re.MULTILINE)
    assert clone.leftovers() == []


def _newest(clone: Project) -> str:
    (run_id,) = clone.runs()
    return run_id


def _told(line: str) -> str:
    """The line that the page says one will see."""
    (found,) = re.findall(rf"^    ({line})$", PAGE, re.MULTILINE)
    return str(found)
