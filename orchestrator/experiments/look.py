"""`look=RUN_ID [parameter=NAME]`: what the servers of a running run hold of its parameters, to the bit, with its clock."""

from __future__ import annotations

import difflib
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.driver.folders import RunFolder, project_folder
from orchestrator.driver.run import inspection_requests
from orchestrator.errors import RunFailed, UsageError, from_dict
from orchestrator.provenance.tracking import Past, Store

_PATIENCE_S = 30.0
_SHOWN = 8


@dataclass(frozen=True)
class Slice:
    """The answer of one server. start, end: the elements of the parameter that it holds, of those asked for; clocks: per
    shard, how many of its updates are in them; step: of the run, so many updates of each shard in the mean."""

    server: int
    start: int
    end: int
    clocks: tuple[int, ...]

    @property
    def step(self) -> int:
        return sum(self.clocks) // len(self.clocks)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "step": self.step}


@dataclass(frozen=True)
class Look:
    """A look at a running model. parameters: shape of each, by name; parameter: the one that was asked for; values: it, or its
    elements that were asked for, float32, None where none was; slices: of each server, in order, with the clock of its part."""

    run_id: str
    parameters: dict[str, tuple[int, ...]]
    parameter: str | None
    values: torch.Tensor | None
    slices: tuple[Slice, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "parameters": {name: list(shape) for name, shape in self.parameters.items()},
            "parameter": self.parameter,
            "values": None if self.values is None else self.values.tolist(),
            "slices": [each.as_dict() for each in self.slices],
        }

    def as_text(self) -> str:
        lines = [f"run {self.run_id}"]
        for each in self.slices:
            held = "" if self.parameter is None else f", elements {each.start} to {each.end}"
            lines.append(
                f"  server {each.server}: step {each.step}, updates per shard {', '.join(map(str, each.clocks))}{held}"
            )
        if self.values is None:
            lines += [f"  {name}  {' x '.join(map(str, shape)) or 'scalar'}" for name, shape in self.parameters.items()]
            return "\n".join(lines)
        flat = self.values.reshape(-1)
        shown = ", ".join(f"{value:.6g}" for value in flat[:_SHOWN].tolist())
        more = f", ... ({flat.numel()} values; all of them: output=json)" if flat.numel() > _SHOWN else ""
        return "\n".join([*lines, f"  {self.parameter}: {shown}{more}"])


def look(
    name: str,
    parameter: str | None = None,
    *,
    first: int = 0,
    count: int | None = None,
    uri: str | None = None,
) -> Look:
    """Look at a parameter of a running model. name: of the run. parameter: None to see which there are, and the clocks.
    first, count: of its elements, in the order of memory; then the values have one axis. Raises UsageError,
    ConfigurationError, RunFailed where nothing came in time."""
    folder = project_folder(Path.cwd())
    past = Store.with_run(uri, folder, name).find(name)
    if past.status != "RUNNING":
        raise _not_running(past)
    told, raw = _asked(past, RunFolder(folder, past.run_id), {"name": parameter, "first": first, "count": count})
    known = {each: (tuple(shape), tuple(stride)) for each, (shape, stride) in told["parameters"].items()}
    shapes = {each: shape for each, (shape, _) in known.items()}
    slices = tuple(
        Slice(each["server"], each["first"], each["first"] + each["bytes"] // 4, tuple(each["clocks"]))
        for each in told["slices"]
    )
    if parameter is None:
        return Look(past.run_id, shapes, None, None, slices)
    if parameter not in known:
        raise _unknown(past.run_id, parameter, list(known))
    shape, stride = known[parameter]
    size = math.prod(shape)
    if first >= size > 0:
        raise UsageError(
            f"first={first}: {parameter} has {size} elements", f"the last one is {size - 1}", code="look.first"
        )
    values = torch.frombuffer(bytearray(raw), dtype=torch.float32) if raw else torch.empty(0)
    if first == 0 and count is None:
        values = values.as_strided(shape, stride).contiguous()
    return Look(past.run_id, shapes, parameter, values, tuple(each for each in slices if each.end > each.start))


def _asked(past: Past, files: RunFolder, request: inspection_requests.Request) -> tuple[dict[str, Any], bytes]:
    """The answers of the servers. At the start of an async phase, or of a generation, they hold nothing for a moment."""

    def check() -> None:
        if not files.is_driven:
            raise _not_running(past)

    deadline = time.monotonic() + _PATIENCE_S
    answer: dict[str, Any] = {}
    try:
        while not answer.get("slices"):
            answer, raw = inspection_requests.ask(files.inspections, request, deadline - time.monotonic(), check)
            if "failed" in answer:
                error = from_dict(answer["failed"])
                raise type(error)(
                    f"run {past.run_id} cannot be looked at: {error.message}", error.remedy, code=error.code
                )
    except TimeoutError:
        raise RunFailed(
            f"the servers of run {past.run_id} have not answered for {_PATIENCE_S:g} s", code="look.unanswered"
        ) from None
    return answer, raw


def _not_running(past: Past) -> UsageError:
    """Nobody on this machine drives it."""
    if past.status == "RUNNING":
        problem, remedy = "nobody drives it on this machine, from this folder", "look from where it was launched"
    else:
        problem = f"it is {past.status.lower()}"
        remedy = "the trained parameters lie in the run's folder and its artifacts; with resume= it may go on"
    return UsageError(f"run {past.run_id} is not running: {problem}", remedy, code="look.not-running")


def _unknown(run_id: str, name: str, known: list[str]) -> UsageError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UsageError(
        f"parameter={name}: run {run_id} trains no parameter of that name{hint}",
        f"look={run_id} lists them",
        code="look.no-such-parameter",
    )
