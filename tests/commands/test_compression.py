"""The page about compression runs as it stands, and what it says is sent is what is sent."""

from __future__ import annotations

import re

import pytest

from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "compression.md").read_text()


@pytest.mark.ray
def test_the_page_works_word_for_word(digits: Project) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = (digits.shell(line) for line in block.splitlines())
    assert launch.code == rerun.code == 0, (launch.err, rerun.err)
    assert re.search(r"kB sent per step\n", launch.err)
    assert rerun.err.splitlines()[-1] == "exact: all 400 steps and the final parameters agree to the last bit"
    assert digits.leftovers() == []
