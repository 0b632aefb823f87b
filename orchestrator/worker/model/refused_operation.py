"""The line of the user's whose backward pass torch has refused, for the message.

An error of a backward pass has no frame of the user's. So the loss is computed once more, while autograd notes where each
node of its graph was made, and the node of the refused operation says its line. It costs nothing where nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from traceback import FrameSummary
from typing import Any

import torch

from orchestrator.common import nondeterministic
from orchestrator.common.frames import is_own
from orchestrator.pipeline import users_frames

_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)\n(?:    (.*))?')


def name_line(error: RuntimeError, loss: Callable[[], Any]) -> None:
    """Add it as notes to what a backward pass has raised, where that is a refusal. loss: what loss() returns of the same batch,
    a tensor or a pair with one, anew."""
    operation = nondeterministic.raised(error)
    for frame in () if operation is None or not operation.nodes else _frames(operation, loss):
        error.add_note(frame)


def _frames(operation: nondeterministic.Operation, loss: Callable[[], Any]) -> list[str]:
    try:
        with noting_lines():
            returned = loss()
    except Exception:  # the first error is the one to tell
        return []
    root = returned if isinstance(returned, torch.Tensor) else returned[0]
    node = next((node for node in nodes_of(root) if type(node).__name__.startswith(operation.nodes)), None)
    return [] if node is None else frames_of(node)


@contextmanager
def noting_lines() -> Iterator[None]:
    """Within this, autograd notes for each node of a graph the lines in which it is made."""
    before, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(before, check_nan)


def frames_of(node: Any) -> list[str]:
    """The lines of the user's in which a node of a graph was made, as `noting_lines` has them noted."""
    found = [_FRAME.match(each) for each in reversed(node.metadata.get("traceback_", []))]
    return innermost(FrameSummary(m[1], int(m[2]), m[3], line=m[4] or "") for m in found if m is not None)


def innermost(stack: Iterable[FrameSummary]) -> list[str]:
    """The user's lines that ours have called last, innermost last. stack: innermost first."""
    found: list[str] = []
    for frame in stack:
        if found and is_own(frame):
            break
        found = [*users_frames([frame]), *found]
    return found


def nodes_of(root: torch.Tensor, without: Collection[Any] = ()) -> Iterator[Any]:
    """The nodes of the graph, those near the root first, as the backward pass meets them. without: these, and what leads to
    them."""
    waiting: list[Any] = [root.grad_fn]
    seen: set[Any] = {None, *without}
    for node in waiting:
        if node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)
