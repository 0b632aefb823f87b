"""Two minutes of the campaign: true launches under faults, in lockstep, in stages and where replicas run free."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from campaign import cells, kinds, modes, parts, plans

MODES = ("bsp", "stages of 2", "ssp")
FAULTS = 12


@pytest.mark.long
@pytest.mark.ray
def test_two_minutes_of_the_campaign_find_nothing(tmp_path: Path) -> None:
    names = [name for name in kinds.of_family("process") if kinds.BY_NAME[name].effect in ("ends", "asks", "delays")]
    launches = [plans.launch(1, 0, modes.BY_NAME[mode], 0, names, FAULTS) for mode in MODES]
    with parts.project() as project, closing(parts.Part(project, tmp_path, "part")) as part:
        part.carry_out(launches)
        assert project.leftovers() == []
    found = cells.read(parts.every_line(tmp_path))
    assert [launch["findings"] for launch in found.launches] == [[], [], []]
    assert sum(found.struck.values()) >= len(MODES) * FAULTS // 2


@pytest.mark.long
@pytest.mark.ray
def test_a_driver_that_stands_still_at_the_end_does_the_last_steps_again(tmp_path: Path) -> None:
    """Campaign, seeds 1000 and 103: the workers ended with their lease, the trained weights with them, and the run failed."""
    launch = plans.unmet(1, [cells.Cell("driver stop", "end", "bsp")])
    with parts.project() as project, closing(parts.Part(project, tmp_path, "part")) as part:
        part.carry_out(
            [
                replace(each, supervised=supervised, id=f"{supervised}")
                for each in launch
                for supervised in (True, False)
            ]
        )
        assert project.leftovers() == []
    found = cells.read(parts.every_line(tmp_path))
    assert [each["findings"] for each in found.launches] == [[], []]
    assert [fault["kind"] for fault in found.faults] == ["driver stop"] * 2
