"""How a model is cut into stages: borders, what each stage holds, what crosses each border. Pure: it follows from surveys.

A survey is made of each way in which the model is called: the loss in training, the loss and the metrics in evaluation. Stages
have the same borders in all of them, and hold what they use in any.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from orchestrator.errors import PipelineRaised
from orchestrator.worker.pipeline_parallel.fake_tensors import Key
from orchestrator.worker.pipeline_parallel.survey import Survey

Way = Literal["training", "evaluation", "metrics"]
_MOST_CANDIDATES: Final = 400
_MOST_REASONS: Final = 3
_MUCH_LESS: Final = 0.6  # of the largest load of a stage
_DIGITS: Final = 2  # of a load of at most 2: what is nearer than that counts as equal
_REMEDY: Final = "name modules at which stages begin in the pipeline's stages(self, model), or lower cluster.stages"


@dataclass(frozen=True)
class Cuts:
    """The borders at which a model is cut into stages, and what crosses there."""

    borders: tuple[str, ...]  # the modules at whose first call stages 1, 2, ... begin
    hosted: tuple[frozenset[str], ...]  # by stage, the parameters and buffers that it uses
    owners: Mapping[str, int]  # the first stage of each parameter and buffer
    # by way and border, the earlier outputs that cross beside the arguments
    skips: Mapping[Way, tuple[tuple[Key, ...], ...]]
    shares: tuple[float, ...]  # by stage, its part of the cost of the loss in training
    apart: frozenset[Way] = frozenset()  # the ways that use nothing of the model, which the last stage goes alone
    draws: bool = False  # whether the loss draws random numbers in evaluation
    crossing: tuple[int, ...] = ()  # by border, the bytes of a micro-batch's tensors that cross it in training
    # by way, the modules whose results later stages are told, each with the tree of a result
    readers: Mapping[Way, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        return len(self.hosted)

    def owned(self, stage: int) -> frozenset[str]:
        return frozenset(name for name, owner in self.owners.items() if owner == stage)

    def guests(self, stage: int) -> frozenset[str]:
        """The parameters and buffers that this stage uses and another one owns."""
        return frozenset(name for name in self.hosted[stage] if self.owners[name] != stage)

    @property
    def tied(self) -> tuple[str, ...]:
        """The parameters and buffers that several stages use, sorted."""
        return tuple(sorted(name for name in self.owners if sum(name in held for held in self.hosted) > 1))


def _with_unused(surveys: Mapping[Way, Survey], names: Sequence[str]) -> Mapping[Way, Survey]:
    """The surveys, where a parameter or buffer that none of them uses counts as used by the loss in training, where the
    innermost module around it is used last. So an expert to which no row of a micro-batch goes is held with the others.
    names: of all parameters and buffers."""
    training = surveys["training"]
    used = frozenset().union(*(survey.uses for survey in surveys.values()))
    uses = {name: (_last_around(training, name),) for name in names if name not in used}
    return {**surveys, "training": replace(training, uses={**training.uses, **uses})}


def _last_around(survey: Survey, name: str) -> int:
    """The last position at which the innermost called module with this tensor uses one of its own; 0 if none is called."""
    around = name
    while around:
        around = around.rpartition(".")[0]
        if (called := survey.position(around)) is not None:
            inside = f"{around}." if around else ""
            return max((at[-1] for other, at in survey.uses.items() if other.startswith(inside)), default=called)
    return 0


def _barred_within(survey: Survey, undivided: Collection[str]) -> Survey:
    """The survey, where no stage can begin between two uses of one of these."""
    barred = dict(survey.barred)
    for name in sorted(survey.uses.keys() & set(undivided)):
        first, last = survey.uses[name][0], survey.uses[name][-1]
        for border in range(first + 1, last + 1):
            barred.setdefault(border, f"{name!r}, which one stage alone may use, is used on both sides of it")
    return replace(survey, barred=barred)


def cut(surveys: Mapping[Way, Survey], borders: Sequence[str], names: Sequence[str]) -> Cuts:
    """Cut a model into stages. names: of all parameters and buffers. Raises PipelineRaised for borders that cannot be, by
    name."""
    apart, surveys = _apart(_with_unused(surveys, names))
    for way, survey in surveys.items():
        _check(survey, borders, way)
    hosted: list[set[str]] = [set() for _ in range(len(borders) + 1)]
    for survey in surveys.values():
        for name, positions in survey.uses.items():
            for position in positions:
                hosted[_stage_of(survey, borders, position)].add(name)
    owners = {name: next(s for s, held in enumerate(hosted) if name in held) for name in names}
    skips = {way: _skips(survey, borders) for way, survey in surveys.items()} | dict.fromkeys(apart, ())
    shares = _shares(surveys["training"], borders)
    draws = "evaluation" in surveys and surveys["evaluation"].draws
    crossing = _crossing(surveys["training"], borders)
    readers = {way: survey.readers for way, survey in surveys.items() if survey.readers}
    return Cuts(tuple(borders), tuple(map(frozenset, hosted)), owners, skips, shares, apart, draws, crossing, readers)


def choose(
    surveys: Mapping[Way, Survey], stages: int, sizes: Mapping[str, int], undivided: Collection[str] = ()
) -> list[str]:
    """Borders for so many stages, so that the largest sum of a stage's parts of the cost and of the parameters is least; of
    nearly equal ones those that lie least deep. sizes: the elements of each trained parameter; undivided: parameters and
    buffers that one stage alone may use. Raises PipelineRaised where there are too few candidates."""
    _, surveys = _apart(_with_unused(surveys, tuple(sizes)))
    surveys = {way: _barred_within(survey, undivided) for way, survey in surveys.items()}
    options = []
    for glued in (False, True):
        candidates = _candidates(surveys, glued=glued)
        if len(candidates) >= stages - 1 and (chosen := _chosen(surveys["training"], candidates, stages, sizes)):
            options.append(chosen)
    if options:  # what crosses by a name of its own has every operation looked at
        plain, glued_too = options[0], options[-1]
        return (glued_too if glued_too[0] < _MUCH_LESS * plain[0] else plain)[1]
    reasons = _reasons(surveys, candidates)
    if len(candidates) < stages - 1:
        found = ", ".join(candidates) or "none"
        raise PipelineRaised(
            f"the model cannot be cut into {stages} stages: of its module calls only these can begin one: {found}"
            + "".join(f"; not {name}: {why}" for name, why in reasons),
            ("put what stands in the way, with all that uses it, into a module of its own, " if reasons else "")
            + "lower cluster.stages, or write the model as more modules that are called for every batch",
            code="stages.not-cut",
        )
    raise PipelineRaised(
        f"no {stages} stages of the model would each hold a parameter that is trained"
        + "".join(f"; none can begin at {name}: {why}" for name, why in reasons),
        _REMEDY,
        code="stages.no-parameters",
    )


def _apart(surveys: Mapping[Way, Survey]) -> tuple[frozenset[Way], Mapping[Way, Survey]]:
    """The ways that use nothing of the model, and the surveys of the others."""
    apart = frozenset(way for way, survey in surveys.items() if survey.is_apart and way != "training")
    return apart, {way: survey for way, survey in surveys.items() if way not in apart}


def _reasons(surveys: Mapping[Way, Survey], candidates: Sequence[str]) -> list[tuple[str, str]]:
    """Why no stage can begin at the least deep of the other modules, the first of each reason."""
    found: dict[str, str] = {}
    others = [name for name in surveys["training"].calls if name and name not in candidates]
    for name in sorted(others, key=lambda each: each.count(".")):
        found.setdefault(_reason(surveys, name), name)
    return [(name, why) for why, name in found.items() if why][:_MOST_REASONS]


def _reason(surveys: Mapping[Way, Survey], name: str) -> str:
    for way, survey in surveys.items():
        position = survey.position(name)
        if position is None:
            return f"{_during(way)} does not call it"
        if position in survey.barred:
            return survey.barred[position] + ("" if way == "training" else f" ({_during(way)})")
    return ""


def _during(way: Way) -> str:
    return "metrics()" if way == "metrics" else f"loss() in {way}"


def _chosen(
    training: Survey, candidates: Sequence[str], stages: int, sizes: Mapping[str, int]
) -> tuple[float, list[str]] | None:
    """The largest load of a stage, and the borders."""
    loads = _loads(training, sizes)
    positions = [training.position(name) or 0 for name in candidates]
    depths = [name.count(".") for name in candidates]
    held = [0] * len(loads)
    for name in sizes.keys() & training.uses.keys():
        held[training.uses[name][0]] += sizes[name]
    chosen = _balance([0, *positions, len(loads)], depths, loads, held, stages)
    return None if chosen is None else (chosen[0], [candidates[i] for i in chosen[1]])


def _balance(
    points: Sequence[int], depths: Sequence[int], loads: Sequence[float], held: Sequence[int], stages: int
) -> tuple[float, list[int]] | None:
    """The largest load of a stage, and indices (from 0) of the inner points at which to cut: that load is least, or nearly so;
    of equals the least deep, then the first."""

    def goodness(option: tuple[float, list[int]]) -> tuple[float, int]:
        return round(option[0], _DIGITS), sum(depths[i] for i in option[1])

    total, sizes = [0.0, *itertools.accumulate(loads)], [0, *itertools.accumulate(held)]
    inner = len(points) - 2
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # by the point where the next stage begins
    for _ in range(stages - 1):
        following: dict[int, tuple[float, list[int]]] = {}
        for point in range(1, inner + 1):
            options = [
                (max(worst, total[points[point]] - total[points[before]]), cuts)
                for before, (worst, cuts) in best.items()
                if before < point and sizes[points[before]] < sizes[points[point]]
            ]
            if options:
                worst, cuts = min(options, key=goodness)
                following[point] = worst, [*cuts, point - 1]
        best = following
    ends = [
        (max(worst, total[-1] - total[points[point]]), cuts)
        for point, (worst, cuts) in best.items()
        if sizes[points[point]] < sizes[-1]
    ]
    return min(ends, key=goodness) if ends else None


def _candidates(surveys: Mapping[Way, Survey], *, glued: bool) -> list[str]:
    """The modules at which a stage can begin in every way, in the order of their calls. glued: also where glue crosses."""
    training = surveys["training"]
    found: list[str] = []
    last = dict.fromkeys(surveys, 0)
    for name in training.calls:
        at = {way: survey.position(name) for way, survey in surveys.items()}
        fits = all(
            position is not None
            and position > last[way]
            and position not in surveys[way].barred
            and (glued or position not in surveys[way].glued)
            for way, position in at.items()
        )
        if fits:
            found.append(name)
            last = {way: position or 0 for way, position in at.items()}
    if len(found) > _MOST_CANDIDATES:  # deep within blocks there is no need to cut
        depth = sorted(name.count(".") for name in found)[_MOST_CANDIDATES - 1]
        found = [name for name in found if name.count(".") <= depth][:_MOST_CANDIDATES]
    return found


def _loads(survey: Survey, sizes: Mapping[str, int]) -> list[float]:
    """By position, its part of the cost and of the parameters that are first used there, together."""
    cost, size = sum(survey.costs) or 1.0, sum(sizes.values()) or 1
    loads = [each / cost for each in survey.costs]
    for name, positions in survey.uses.items():
        loads[positions[0]] += sizes.get(name, 0) / size
    return loads


def _shares(survey: Survey, borders: Sequence[str]) -> tuple[float, ...]:
    shares = [0.0] * (len(borders) + 1)
    for position, cost in enumerate(survey.costs):
        shares[_stage_of(survey, borders, position)] += cost
    return tuple(share / (sum(survey.costs) or 1.0) for share in shares)


def activations(survey: Survey, borders: Sequence[str]) -> tuple[int, ...]:
    """By stage, the bytes that autograd keeps of a micro-batch, as far as they were counted."""
    kept = [0] * (len(borders) + 1)
    for position, size in enumerate(survey.kept):
        kept[_stage_of(survey, borders, position)] += size
    return tuple(kept)


def _stage_of(survey: Survey, borders: Sequence[str], position: int) -> int:
    return sum((survey.position(border) or 0) <= position for border in borders)


def _skips(survey: Survey, borders: Sequence[str]) -> tuple[tuple[Key, ...], ...]:
    """By border. A tensor has the name of an output, unless it crosses a border before it is returned: that name stays. Behind
    a reader that returns it, it has the name of its output."""
    positions = [survey.position(border) or 0 for border in borders]
    found: list[set[Key]] = [set() for _ in borders]
    for crossing in survey.crossings:
        crossed = [n for n, at in enumerate(positions) if crossing.crosses(at)]
        names = {n: crossing.returned_as(positions[n]) for n in crossed}
        first = crossing.keys[0][1] if crossing.keys else None
        unreturned = None in names.values()
        for n, name in names.items():
            found[n].add(crossing.operation_key if name is None or (unreturned and name == first) else name)
    return tuple(tuple(sorted(keys)) for keys in found)


def _crossing(survey: Survey, borders: Sequence[str]) -> tuple[int, ...]:
    """By border, in bytes: the arguments of the call there, and what crosses beside them."""
    positions = [survey.position(border) or 0 for border in borders]
    beside = [sum(each.size for each in survey.crossings if each.crosses(at)) for at in positions]
    return tuple(survey.passed[at] + more for at, more in zip(positions, beside, strict=True))


def _check(survey: Survey, borders: Sequence[str], way: Way) -> None:
    during = _during(way)
    before = 0
    for border in borders:
        position = survey.position(border)
        if position is None:
            known = ", ".join(name for name in survey.calls if name and name.count(".") < 2)
            raise PipelineRaised(
                f"a stage cannot begin at {border!r}: {during} calls no module of that name",
                f"{_REMEDY}; it calls {known}",
                code="stages.border-not-called",
            )
        if position <= before:
            earlier = borders[list(borders).index(border) - 1]
            raise PipelineRaised(
                f"a stage cannot begin at {border!r} after one that begins at {earlier!r}: {during} calls it before",
                "name each module once, in the order in which they are called",
                code="stages.border-order",
            )
        if position in survey.barred:
            raise PipelineRaised(
                f"a stage cannot begin at {border!r} ({during}): {survey.barred[position]}",
                f"begin at the block that contains it, or at another module; {_REMEDY}",
                code="stages.border-barred",
            )
        before = position
