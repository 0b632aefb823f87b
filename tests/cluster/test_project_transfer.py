"""Files that no node has are carried by a Ray that was tested to carry them, and refused with the remedy by others."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from ray.exceptions import RayError, RuntimeEnvSetupError

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement import node_tree, project_transfer
from orchestrator.cluster.placement.node_tree import Tree
from orchestrator.cluster.placement.project_transfer import LateWorkspaces, Project, Workspace
from orchestrator.cluster.placement.reservation import Node
from orchestrator.common.tested_versions import RAY, Tried
from orchestrator.provenance.data import hashing
from orchestrator.provenance.environment import packages
from tests.refusals import refused

FAR = Node("a" * 56, "10.0.0.1", {"CPU": 4.0})


def project(folder: Path) -> Project:
    (folder / "data.csv").write_text("1,2\n")
    return Project(folder, ["data.csv"], 10.0, lambda: None)


def test_a_ray_that_was_not_tested_is_not_asked_to_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tried, "is_here", False)
    with refused("ray.carries-no-project") as caught:
        project_transfer.copied(project(tmp_path), [FAR])
    assert caught.value.remedy is not None
    assert f"as {tmp_path}" in caught.value.remedy
    assert caught.value.remedy.endswith(f"install {RAY.wanted} on every node")


def test_one_that_was_gets_all_that_git_would_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[str]] = []

    def upload(environment: dict[str, str], **_options: object) -> dict[str, str]:
        sent.append(zipfile.ZipFile(environment["working_dir"]).namelist())
        return {"working_dir": "gcs://package.zip"}

    monkeypatch.setattr("ray._private.runtime_env.working_dir.upload_working_dir_if_needed", upload)
    (tmp_path / ".gitignore").write_text("data.csv\n")
    workspace = project_transfer.copied(project(tmp_path), [FAR])
    assert (workspace.project, workspace.runtime_env["working_dir"]) == (None, "gcs://package.zip")
    assert [name for name in sent[0] if name.endswith("data.csv")]


def test_a_copy_of_files_that_have_changed_meanwhile_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody there would know: what a late worker reads is looked at in the folder of the launch."""
    changed, said = [True, False], list[str]()
    monkeypatch.setattr(project_transfer, "living_nodes", lambda: [FAR])
    monkeypatch.setattr(project_transfer, "copied", lambda *_: Workspace(None, {"working_dir": "gcs://package.zip"}))
    late = LateWorkspaces(project(tmp_path), set(), said.append, lambda: changed.pop(0))
    here = ActorPlacement(str(tmp_path), {"num_cpus": 1})
    assert (late.copied(here), said) == (None, [])
    place = late.copied(here)
    assert place is not None
    assert (place.project, place.options["runtime_env"]) == (None, {"working_dir": "gcs://package.zip"})
    assert late.copied(here) == place
    assert said == ["note: carrying code and data for workers that may come to node 10.0.0.1 (aaaaaaaa)"]


def test_a_node_without_room_for_a_copy_is_told_by_what_ray_said_last() -> None:
    expected = Tree({}, {}, "", {})
    full = RuntimeEnvSetupError(
        "Traceback (most recent call last):\n  ...\nOSError: [Errno 28] No space left on device\n"
    )
    told = "Ray could not set up its process there: OSError: [Errno 28] No space left on device"
    assert project_transfer._wrong(expected, full) == [told]
    assert project_transfer._foreign(expected, RayError("ModuleNotFoundError: orchestrator")) == [
        "orchestrator does not run there (ModuleNotFoundError: orchestrator)"
    ]
    with refused("ray.nodes-differ") as caught:
        project_transfer._refuse({FAR.id: [told]}, {FAR.id: FAR})
    assert "room in the folder of Ray" in str(caught.value.remedy)


def test_a_node_whose_user_may_not_read_the_folder_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused, and called one on which orchestrator does not run. Such is a home folder, or one of NFS for its root."""
    expected = Tree({"pipes.py": "1"}, {"data.csv": "2"}, packages.own_sha256(), {})
    monkeypatch.setattr(node_tree, "_versions", dict)

    def scan(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "data.csv").touch()
    monkeypatch.setattr(hashing, "scan", scan)
    there = Tree(**project_transfer._look(str(tmp_path), ["data.csv"]))
    assert project_transfer._foreign(expected, there) == []
    assert project_transfer._wrong(expected, there) == [f"{tmp_path / 'data.csv'} may not be read by the user there"]
