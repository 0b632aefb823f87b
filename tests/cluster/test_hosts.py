"""Two hosts: code and data are carried to the one that has neither, gradients travel by TCP, the result is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cluster.conftest import SHORT, two_hosts
from tests.commands.alone import Alone, assert_as_alone
from tests.projects import Project


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.root
def test_a_host_without_the_project_gets_it_and_the_result_is_the_same(digits: Project, at_home: Alone) -> None:
    with two_hosts(hidden=digits.path) as hosts:
        project = replace(digits, variables=hosts.access, before=hosts.inside)
        done = project.run(*SHORT, f"cluster.address={hosts.address}", "cluster.workers=3", "topology=tree")
        assert_as_alone(project, done, at_home)
        assert "note: carrying code and data to node 10.77.0.2" in done.err
        assert "10.77.0.1" not in done.err
