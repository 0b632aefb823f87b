"""The places of a schedule's members in a picture. Pure: looks at the links, never at the topology's name.

a tree with one owner, not too deep or wide     layers, the root on top; children below the middle of their own
anything else                                    workers on a circle, in order of rank; servers on a circle inside
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from orchestrator.comm.topologies import Schedule

Point = tuple[float, float]

APART = 1.0  # two members are never closer than this
_DEEPEST = 8
_WIDEST = 32
_LAYER = 1.5  # from one layer to the next


def place_members(schedule: Schedule) -> dict[int, Point]:
    """member -> (x, y), y upwards; no two closer than APART."""
    children = _tree(schedule)
    if children is not None:
        placed = _layers(children, schedule.owners[0])
        depth = 1 + round(-min(y for _, y in placed.values()) / _LAYER)
        width = 1 + max(x for x, _ in placed.values())
        if depth <= _DEEPEST and width <= _WIDEST:
            return placed
    return _circles(schedule)


def _tree(schedule: Schedule) -> dict[int, list[int]] | None:
    """member -> its children, when the links of workers form a tree of three or more that one of them owns; else None."""
    links = schedule.links()
    if schedule.servers or schedule.members < 3 or len(links) != schedule.members - 1 or len(set(schedule.owners)) != 1:
        return None
    neighbours: dict[int, list[int]] = {member: [] for member in range(schedule.members)}
    for a, b in sorted(links):
        neighbours[a].append(b)
        neighbours[b].append(a)
    children: dict[int, list[int]] = {}
    waiting = [(schedule.owners[0], -1)]
    while waiting:
        member, parent = waiting.pop()
        if member in children:
            return None  # a circle
        children[member] = [other for other in neighbours[member] if other != parent]
        waiting += [(child, member) for child in children[member]]
    return children if len(children) == schedule.members else None


def _layers(children: Mapping[int, list[int]], root: int) -> dict[int, Point]:
    """Leaves side by side from left to right, a parent over the middle of its children."""
    placed: dict[int, Point] = {}
    leaves = 0

    def put(member: int, depth: int) -> float:
        nonlocal leaves
        below = [put(child, depth + 1) for child in children[member]]
        if below:
            x = (below[0] + below[-1]) / 2
        else:
            x = leaves * APART
            leaves += 1
        placed[member] = (x, -depth * _LAYER)
        return x

    put(root, 0)
    return placed


def _circles(schedule: Schedule) -> dict[int, Point]:
    inner = _radius(schedule.servers)
    outer = max(_radius(schedule.workers), inner + 1.5 * APART if schedule.servers else 0.0)
    inner = max(inner, 0.4 * outer) if inner else inner
    workers = _on_circle(schedule.workers, outer)
    servers = _on_circle(schedule.servers, inner)
    return dict(enumerate([*workers, *servers]))


def _radius(count: int) -> float:
    """The radius of the circle on which `count` members stand APART * 1.2 from each other; a single one stands in the
    middle."""
    return 0.0 if count < 2 else max(APART, 0.6 * APART / math.sin(math.pi / count))


def _on_circle(count: int, radius: float) -> list[Point]:
    """Clockwise, the first on top; two side by side."""
    start = math.pi if count == 2 else math.pi / 2
    angles = [start - 2 * math.pi * i / count for i in range(count)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]
