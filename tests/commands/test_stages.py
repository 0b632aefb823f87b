"""The page about stages runs as it stands: workers with a stage each give the digest of those with the whole model."""

from __future__ import annotations

import re

import pytest

from tests.projects import REPOSITORY, Project

PAGE = (REPOSITORY / "docs" / "model-parallel.md").read_text()
UNSPLIT = "c021ea3ef672ca816559ddca4eab9a9b6ad9a81522e7e166290a60f932131241"  # conf=digits run.steps=60


@pytest.mark.ray
def test_the_page_works_word_for_word(digits: Project) -> None:
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    launch, rerun = (digits.shell(line) for line in block.splitlines())
    assert launch.code == rerun.code == 0, (launch.err, rerun.err)
    assert UNSPLIT in launch.err
    (told,) = re.findall(
        r"the model of 38,378 parameters is cut: stage 0 from the first layers \((.*?) parameters", launch.err
    )
    assert 0 < int(told.replace(",", "")) < 38_378
    assert rerun.err.splitlines()[-1] == "exact: all 60 steps and the final parameters agree to the last bit"
    assert digits.leftovers() == []
