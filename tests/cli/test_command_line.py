"""The examples of docs/command-line.md work word for word."""

from __future__ import annotations

import re

import pytest

from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "command-line.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.ray
@pytest.mark.long
def test_the_page_works_word_for_word(digits: Project) -> None:
    assert digits.run("conf=digits", "run.steps=20").code == 0  # to be listed and watched
    for command in COMMANDS:
        shown = digits.shell(command)
        assert shown.code == 0, (command, shown.err)
        assert shown.out or "eval" in command or "watch" in command
