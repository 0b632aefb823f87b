"""The same code and the same data on every node: compared by hash before the start, and carried where they are not there.

A node whose folder of the same path holds the same project and the same inputs works in that folder; so do nodes that share
it. Every other node gets a copy of what git would track and of the inputs, by Ray's runtime environment, and the copy is
compared too. A part that cannot be carried is an error that names the node: another orchestrator or library, an input outside
the project, a project larger than Ray carries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement import node_tree
from orchestrator.cluster.placement.node_tree import Tree
from orchestrator.cluster.placement.reservation import Node, living_nodes
from orchestrator.cluster.ray_calls import last_line, not_set_up
from orchestrator.cluster.sessions import environment
from orchestrator.common import temporary
from orchestrator.common.tested_versions import RAY
from orchestrator.errors import ClusterUnavailable, OrchestratorError, few

_LOOK_S = 0.5
_SHOWN = 3


@dataclass(frozen=True)
class Workspace:
    """The folder in which the members of a node work. project: None for a copy, which Ray makes their working directory;
    runtime_env: Ray's."""

    project: str | None
    runtime_env: Mapping[str, Any]


@dataclass(frozen=True)
class Project:
    """The project that every node must have. check: called while waiting, may raise; timeout_s: how long none of them may
    answer; variables: of this process, which the pipeline reads."""

    path: Path
    inputs: Sequence[str]
    timeout_s: float
    check: Callable[[], None]
    variables: Sequence[str] = ()

    @property
    def in_place(self) -> Workspace:
        """The workspace of a node that has the project in the same folder."""
        return Workspace(str(self.path), {"env_vars": environment.of_workers(self.variables)})


def prepare_workspaces(project: Project, nodes: Iterable[Node], say: Callable[[str], None]) -> dict[str, Workspace]:
    """The workspace of each node, by node id. say: told what is copied and why. Raises ClusterUnavailable."""
    every = {node.id: node for node in nodes}
    expected = node_tree.capture(project.path, project.inputs)
    found = _survey(project, every.values(), project.in_place)
    if not node_tree.holds_package(project.path):
        _refuse({node: _foreign(expected, found[node]) for node in every}, every)
    wrong = {node: _wrong(expected, found[node]) for node in every}
    carried = {node: every[node] for node, problems in wrong.items() if problems}
    workspaces = dict.fromkeys(every, project.in_place)
    if carried:
        for node in carried:
            say(f"note: carrying code and data to node {every[node].name}: {few(wrong[node], _SHOWN)}")
        copy = copied(project, carried.values())
        there = _survey(project, carried.values(), copy)
        _refuse({node: _wrong(expected, there[node]) for node in carried}, every)
        workspaces.update(dict.fromkeys(carried, copy))
    return workspaces


def copied(project: Project, nodes: Iterable[Node]) -> Workspace:
    """A copy of the project that Ray unpacks on any node. nodes: that lack it, as far as is known. Raises ClusterUnavailable
    where it cannot be carried."""
    variables = environment.of_workers(project.variables)
    return Workspace(None, {"env_vars": variables, "working_dir": _upload(project, nodes)})


def unlike(project: Project, node_id: str) -> str | None:
    """Why a node that came later cannot host members in the project's own folder; None when it can. Hashes everything there
    and here. Raises ClusterUnavailable when the node does not answer in time."""
    node = next((node for node in living_nodes() if node.id == node_id), None)
    if node is None:
        return "the node is gone"
    expected = node_tree.capture(project.path, project.inputs)
    problems = _wrong(expected, _survey(project, [node], project.in_place)[node.id])
    return f"node {node.name}: {few(problems, _SHOWN)}" if problems else None


class LateWorkspaces:
    """The workspaces of members that are started later than the first ones: on nodes that nobody knew then, or beyond the
    reserved room.

    As long as every living node has the project in its own folder, members work there. The first one that may come to another
    node has the project carried, once, for all that follow.
    """

    def __init__(
        self,
        project: Project,
        known: set[str],  # nodes that have it in its own folder, the driver's among them
        say: Callable[[str], None],  # told what is carried, and why it cannot be
        has_changed: Callable[[], bool],  # whether what is there now is not what the run began with
    ) -> None:
        self._project = project
        self._known = known
        self._say = say
        self._has_changed = has_changed
        self._copy: Workspace | None = None
        self._cannot = False

    def copied(self, place: ActorPlacement) -> ActorPlacement | None:
        """The same place for whoever works in a copy; None where it is on a node that has the project, or no other one is
        there."""
        try:
            nodes = {node.id: node for node in living_nodes() if node.resources.get("CPU", 0)}
        except ClusterUnavailable:  # its head is going, and soon that is known
            return None
        others = [node for node in nodes.values() if node.id not in self._known]
        if place.node in nodes or not others or not self._is_carried(others):
            return None
        assert self._copy is not None
        return replace(place, project=None, options={**place.options, "runtime_env": dict(self._copy.runtime_env)})

    def check(self, node: str) -> str | None:
        """Why a member that works in the project's own folder cannot take part on this node; None when it can."""
        if node in self._known:
            return None
        try:
            problem = unlike(self._project, node)
        except OrchestratorError as error:
            return error.message
        self._known.update([node] if problem is None else [])
        return problem

    def _is_carried(self, nodes: Sequence[Node]) -> bool:
        if self._copy is None and not self._cannot:
            try:
                copy = copied(self._project, nodes)
                if self._has_changed():
                    return False
                self._copy = copy
                names = ", ".join(node.name for node in nodes)
                self._say(f"note: carrying code and data for workers that may come to node {names}")
            except ClusterUnavailable as error:
                self._cannot = True
                self._say(f"note: {error.message}; {error.remedy}")
        return self._copy is not None


def _foreign(expected: Tree, found: Tree | RayError) -> list[str]:
    if isinstance(found, RayError):
        return [not_set_up(found) or f"orchestrator does not run there ({last_line(found)})"]
    return node_tree.foreign(expected, found)


def _wrong(expected: Tree, found: Tree | RayError) -> list[str]:
    foreign = _foreign(expected, found)
    return foreign if isinstance(found, RayError) else [*foreign, *node_tree.differences(expected, found)]


def _refuse(problems: Mapping[str, list[str]], nodes: Mapping[str, Node]) -> None:
    """Raises ClusterUnavailable when any node has a problem."""
    listed = [f"node {nodes[node].name}: {few(found, _SHOWN)}" for node, found in problems.items() if found]
    if listed:
        raise ClusterUnavailable(
            f"not every node is like this one: {'; '.join(listed)}",
            "install the same Python, orchestrator and libraries there as here; where no process is set up, see whether "
            "there is room in the folder of Ray (by default /tmp/ray)",
            code="ray.nodes-differ",
        )


def _survey(project: Project, nodes: Iterable[Node], workspace: Workspace) -> dict[str, Tree | RayError]:
    """The tree of each node in that workspace; an error if the node could not be asked."""
    task: Any = ray.remote(num_cpus=0, max_retries=0, runtime_env=dict(workspace.runtime_env))(_look)
    waiting = {}
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        question = task.options(scheduling_strategy=strategy)
        waiting[question.remote(workspace.project, list(project.inputs))] = node
    found: dict[str, Tree | RayError] = {}
    heard = time.monotonic()
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_S)
        for reference in ready:
            node = waiting.pop(reference)
            heard = time.monotonic()
            try:
                found[node.id] = Tree(**ray.get(reference))
            except RayError as error:
                found[node.id] = error
        project.check()
        if waiting and time.monotonic() > heard + project.timeout_s:
            late = ", ".join(node.name for node in waiting.values())
            raise ClusterUnavailable(
                f"code and data were not compared in time on node {late}",
                "raise cluster.start_timeout_s",
                code="ray.nodes-late",
            )
    return found


def _look(project: str | None, inputs: list[str]) -> dict[str, Any]:
    """The tree of this node; runs on the node."""
    folder = Path.cwd() if project is None else Path(project)
    try:
        tree = node_tree.capture(folder, inputs, git=project is not None)
    except PermissionError as error:
        tree = node_tree.closed(str(error.filename))
    return asdict(tree)


def _upload(project: Project, nodes: Iterable[Node]) -> str:
    """Hand the project to Ray; returns the URI from which nodes unpack it. Ray has no public name for this: it packs by
    itself, and only for all workers of a job, and would leave out what git ignores, which is where data lies. A Ray that was
    not tested is not asked."""
    where = ", ".join(node.name for node in nodes)
    remedy = f"put the project with its data on node {where}, as {project.path}, or on a file system that nodes share"
    if away := node_tree.outside(project.path, project.inputs):
        raise ClusterUnavailable(
            f"node {where} lacks the project or its data, and {away[0]} is outside the project",
            remedy,
            code="ray.outside-project",
        )
    if not RAY.is_here:
        raise ClusterUnavailable(
            f"node {where} lacks the project or its data, and this version of Ray was not tested to carry them",
            f"{remedy}, or install {RAY.wanted} on every node",
            code="ray.carries-no-project",
        )
    from ray._private.runtime_env.packaging import GCS_STORAGE_MAX_SIZE
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    size = node_tree.packed_bytes(project.path, project.inputs)
    if size >= GCS_STORAGE_MAX_SIZE:
        raise ClusterUnavailable(
            f"node {where} lacks the project or its data; they are {size / 2**20:.0f} MiB, and Ray carries less than "
            f"{GCS_STORAGE_MAX_SIZE / 2**20:.0f} MiB",
            remedy,
            code="ray.project-too-large",
        )
    with temporary.folder() as folder:
        package = folder / "project.zip"
        node_tree.pack(project.path, project.inputs, package)
        quiet = logging.getLogger("ray")
        sent = upload_working_dir_if_needed({"working_dir": str(package)}, include_gitignore=False, logger=quiet)
    return str(sent["working_dir"])
