"""The examples of docs/command-line.md work word for word."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "command-line.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
(SCRIPT,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.ray
@pytest.mark.long
def test_the_page_works_word_for_word(digits: Project) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=digits.path, env=digits.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *steps, digest = done.stdout.splitlines()
    assert [int(line.split()[0]) for line in steps] == list(range(20))
    assert re.fullmatch("[0-9a-f]{64}", digest)
    for command in COMMANDS:
        shown = digits.shell(command)
        assert shown.code == 0, (command, shown.err)
        assert shown.out or "eval" in command or "watch" in command
