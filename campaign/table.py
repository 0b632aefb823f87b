"""The table of the campaign, as markdown between two markers of a page. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from campaign import cells, flips, kinds, modes, moments
from campaign.cells import Results
from campaign.kinds import BY_NAME, memory

BEGIN: Final = "<!-- campaign: made by python -m campaign --table -->"
END: Final = "<!-- end of the campaign -->"
_QUIET: Final = 3.0  # load, of which a launch itself is up to one and a half


def on_page(page: str, results: Results, machine: str) -> str:
    """The page with these results between its markers."""
    made = f"{BEGIN}\n\n{markdown(results, machine)}\n\n{END}"
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: made, page, flags=re.DOTALL)


def markdown(results: Results, machine: str) -> str:
    return "\n\n".join(
        [
            _summary(results, machine),
            "By kind and moment, over all modes (a dash: it cannot be; 0: not met yet):",
            _by_moment(results),
            "By moment and mode, over all kinds:",
            _by_mode(results),
            _reasons(),
        ]
    )


def _summary(results: Results, machine: str) -> str:
    of_process = [fault for fault in results.faults if BY_NAME[fault["kind"]].family == "process"]
    of_driver = [fault for fault in results.faults if fault["kind"] == "driver SIGKILL"]
    lockstep = [launch for launch in results.launches if modes.BY_NAME[launch["mode"]].lockstep]
    possible = cells.possible(kinds.WITH_MOMENTS)
    filled = len([cell for cell in possible if cell in results.struck])
    rows = [
        ("faults of processes", f"{len(of_process)}", "3000"),
        ("faults of drivers", f"{_count(results, 'driver')}", ""),
        ("faults of storage", f"{_count(results, 'storage')}", ""),
        ("faults of the wire between hosts", f"{_count(results, 'network')}", ""),
        ("faults of a node", f"{_count(results, 'node')}", ""),
        ("jumps of the clock", f"{_count(results, 'clock')}", ""),
        ("newcomers of another build", f"{_count(results, 'version')}", ""),
        ("overlapping pairs", f"{sum(bool(fault.get('pair')) for fault in results.faults)}", "300"),
        ("storms of a minute", f"{sum(bool(launch['storm']) for launch in results.launches)}", "100"),
        ("simulated lives", f"{sum(line['count'] for line in results.lives)}", "1000000"),
        ("of these did not end as they should", f"{_lives(results, 'failed')}", "0"),
        ("of these ended early, by a rule that the page gives", f"{_lives(results, 'ended')}", ""),
        ("cells met", f"{filled} of {len(possible)}", "all"),
        ("launches in which something did not hold", f"{_failed(results.launches)} of {len(results.launches)}", "0"),
        ("bits that differed", f"{_found(results.launches, 'bits')}", "0"),
        ("committed steps lost in lockstep", f"{_found(lockstep, 'steps')}", "0"),
        *_times(results, of_process, "worker", "0.3 s", "2 s"),
        *_times(results, of_driver, "driver", "10 s", "10 s"),
        ("planted flipped bits found within check.every", _flips(results, memory.GRADIENTS), "all"),
        ("flipped bits of parameters found within check.every", _flips(results, memory.PARAMETER), ""),
        ("left behind", f"{_found(results.launches, 'left behind')}", "0"),
        ("planted bugs found", _mutants(results.mutants), "19 of 20"),
    ]
    lines = ["| what | found | wanted |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    seeds = _ranges(sorted({launch["seed"] for launch in results.launches}))
    told = f"Seeds {seeds}. Made on {machine}. {_load(results.launches)}"
    return "\n".join([told, "", *lines])


def _count(results: Results, family: str) -> int:
    return sum(BY_NAME[fault["kind"]].family == family for fault in results.faults)


def _lives(results: Results, how: str) -> int:
    return sum(len(line.get(how, ())) for line in results.lives)


def _flips(results: Results, kind: str) -> str:
    planted = [fault for fault in results.faults if fault["kind"] == kind]
    return f"{sum(flips.is_found(fault) for fault in planted)} of {len(planted)}" if planted else "not tried"


def _failed(launches: Iterable[Mapping[str, Any]]) -> int:
    return sum(bool(launch["findings"]) for launch in launches)


def _found(launches: Iterable[Mapping[str, Any]], what: str) -> int:
    return sum(any(finding.startswith(what) for finding in launch["findings"]) for launch in launches)


def _times(
    results: Results, faults: Sequence[Mapping[str, Any]], who: str, goal: str, at_most: str
) -> list[tuple[str, str, str]]:
    """The times of all launches, and of those that had the machine almost to themselves."""
    times = sorted(fault["seconds"] for fault in faults if "seconds" in fault)
    if not times:
        return []
    worst = max(faults, key=lambda fault: fault.get("seconds", 0.0))
    where = f"{worst['kind']} at {worst['moment']} of {worst['id']}"
    rows = [
        (f"from the loss of a {who} to the next step, median of {len(times)}", f"{_at(times, 0.5):.2f} s", goal),
        ("99 % of them", f"{_at(times, 0.99):.2f} s", at_most),
        ("the worst", f"{times[-1]:.2f} s ({where})", ""),
    ]
    quiet = {launch["id"] for launch in results.launches if launch["load"] < _QUIET}
    times = sorted(fault["seconds"] for fault in faults if "seconds" in fault and fault["id"] in quiet)
    if times:
        told = f"{_at(times, 0.5):.2f} s, {_at(times, 0.99):.2f} s"
        rows.append((f"median, and 99 %, of {len(times)} at a load below {_QUIET:g}", told, f"{goal}, {at_most}"))
    return rows


def _at(times: Sequence[float], part: float) -> float:
    """times: in order."""
    return times[max(0, math.ceil(part * len(times)) - 1)]


def _mutants(mutants: Sequence[Mapping[str, Any]]) -> str:
    found = sum(bool(line["found"]) for line in mutants)
    return f"{found} of {len(mutants)}" if mutants else "not run"


def _load(launches: Sequence[Mapping[str, Any]]) -> str:
    loads = sorted(launch["load"] for launch in launches)
    if not loads:
        return "No launch was made."
    return (
        f"The load of the machine was {loads[len(loads) // 2]:.1f} in the median of launches, {loads[-1]:.1f} at most."
    )


def _ranges(numbers: Sequence[int]) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in found) or "none"


def _by_moment(results: Results) -> str:
    shown = [kind for kind in kinds.KINDS if kind.has_moments]
    met = Counter[tuple[str, str]]()
    for cell, count in results.struck.items():
        met[cell.kind, cell.moment] += count
    rows = []
    for kind in shown:
        each = [str(met[kind.name, moment.name]) if _any_mode(kind, moment) else "-" for moment in moments.MOMENTS]
        rows.append(f"| {kind.name} | {' | '.join(each)} |")
    others = [kind for kind in kinds.KINDS if not kind.has_moments]
    counts = Counter(fault["kind"] for fault in results.faults)
    told = "; ".join(f"{kind.name}: {counts[kind.name] if kind.tests is None else kind.tests}" for kind in others)
    return "\n".join(
        [
            _head("kind", moments.NAMES),
            *rows,
            "",
            f"Kinds without a moment, or the tests that try them: {told}.",
        ]
    )


def _any_mode(kind: kinds.Kind, moment: moments.Moment) -> bool:
    return any(cells.impossible(kind, moment, mode) is None for mode in modes.MODES)


def _by_mode(results: Results) -> str:
    met = Counter[tuple[str, str]]()
    for cell, count in results.struck.items():
        met[cell.moment, cell.mode] += count
    possible = {(cell.moment, cell.mode) for cell in cells.possible(kinds.WITH_MOMENTS)}
    rows = []
    for moment in moments.NAMES:
        each = [str(met[moment, mode]) if (moment, mode) in possible else "-" for mode in modes.NAMES]
        rows.append(f"| {moment} | {' | '.join(each)} |")
    return "\n".join([_head("moment", modes.NAMES), *rows])


def _head(first: str, names: Sequence[str]) -> str:
    return f"| {first} | {' | '.join(names)} |\n|---|{'---|' * len(names)}"


def _reasons() -> str:
    told = [f"- {count} cells: {why}." for why, count in sorted(cells.reasons().items(), key=lambda each: -each[1])]
    return "\n".join(["Cells that cannot be, and why:", "", *told])
