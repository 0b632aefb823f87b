"""The plan of a part from its seed: launches, their layouts, and the faults of each. Pure.

Not single faults are drawn at first, but their *rates*, so that each seed has another mixture (a swarm: Groce et al., "Swarm
testing", ISSTA 2012): some kinds not at all, some often. One fault in four is drawn by those rates. The others go through all
cells of a mode in an order of chance, each launch of the mode a stretch of it, so that a known number of launches meets every
cell.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from campaign import cells, kinds, modes, moments
from campaign.cells import Cell
from campaign.kinds import BY_NAME, memory, storage
from campaign.modes import Mode

PER_LAUNCH: Final = 36
STORM_EVERY_S: Final = 2.0
STORM_FAULTS: Final = 30  # of a minute
PAIRS_PER_LAUNCH: Final = 16
_SOON: Final = ("compute", "vote", "sum", "apply", "sprint", "rest")  # moments of every step, or every few
_PAIRS: Final = 0.6  # of the faults that another one can overlap, how many have one
_MOST_ENDS: Final = 3
_MOST_FAILURES: Final = 16  # each may end the run, which is resumed
_MOST_STALLS: Final = 8  # each of them costs the step's timeout
_SHORT_S: Final = (0.1, 0.5)
CHECKING: Final = 3  # workers, of which one flips bits
_CHECKED_STEPS: Final = 60
_CHECK_EVERY: Final = (3, 10)
_FAILED_STEPS: Final = 80
_STORED_STEPS: Final = 240
_AWAYS: Final = 3  # of a launch whose store goes away
_AWAY_S: Final = (1.0, 8.0)
_LONG_S: Final = (1.0, 30.0)  # of what has to be borne for ever
_BORNE: Final = ("cut between workers", "flapping wire")
_DAMAGED_AFTER: Final = (15, 60)  # steps


@dataclass(frozen=True)
class Flip:
    """every: steps between two checks; bit: of an element; place: of that, as a part of the way through all elements."""

    every: int
    bit: int
    place: float


@dataclass(frozen=True)
class Damage:
    """what: the file (`kinds.storage.FILES`); how: one bit is flipped, or the end is cut off; place: where, and in which part
    of a checkpoint, each as a part of the way; bit: of the byte."""

    what: str
    how: storage.How
    place: float
    part: float
    bit: int


@dataclass(frozen=True)
class Fault:
    """skip: so many times the moment passes by before; hold_s: for how long what delays or stalls does so; partner: another
    one, armed as soon as this one strikes, so that both overlap."""

    number: int
    kind: str
    moment: str
    skip: int = 0
    hold_s: float = 0.0
    partner: Fault | None = None
    flip: Flip | None = None
    damage: Damage | None = None


@dataclass(frozen=True)
class Launch:
    """storm: its faults strike by the clock, one every STORM_EVERY_S, whatever became of the one before; alike: settings that
    the undisturbed run has as well; store: the kind of fault of one that goes away."""

    id: str
    seed: int
    mode: str
    layout: tuple[str, ...]
    faults: tuple[Fault, ...]
    storm: bool = False
    supervised: bool = False
    alike: tuple[str, ...] = ()
    store: str | None = None
    steps: int = modes.STEPS

    @property
    def flip(self) -> Fault | None:
        """The one that flips bits, which is alone."""
        return next((fault for fault in self.faults if fault.flip is not None), None)

    @property
    def damage(self) -> Fault | None:
        """The one that damages a file of the run, which is alone."""
        return next((fault for fault in self.faults if fault.damage is not None), None)

    @property
    def played(self) -> Mode:
        """Its mode, with as many workers as it has."""
        mode = modes.BY_NAME[self.mode]
        return mode if self.flip is None else replace(mode, workers=CHECKING)


def of_dict(told: Mapping[str, Any]) -> Launch:
    """The launch of which `dataclasses.asdict` told this."""
    given = {**told, "faults": tuple(_fault_of(each) for each in told["faults"])}
    return Launch(**{**given, "layout": tuple(told["layout"]), "alike": tuple(told["alike"])})


def _fault_of(told: Mapping[str, Any]) -> Fault:
    partner, flip, damage = told["partner"], told["flip"], told["damage"]
    return Fault(
        **{
            **told,
            "partner": None if partner is None else _fault_of(partner),
            "flip": None if flip is None else Flip(**flip),
            "damage": None if damage is None else Damage(**damage),
        }
    )


def part(
    seed: int, faults: int, names: Sequence[str], of: Sequence[str], storms: int = 0, pairs: int = 0
) -> list[Launch]:
    """The launches of a part with about so many faults of these kinds, in these modes in turn; then storms, and about so many
    pairs. If no fault is wanted there are these only. Bits are flipped in launches of their own, one in each, as many as
    faults are wanted."""
    flips = [name for name in names if BY_NAME[name].family == "memory"]
    stores = [name for name in names if BY_NAME[name].family in kinds.AROUND]
    names = [name for name in names if name not in flips and name not in stores]
    found = [flipped(seed, number, flips[number % len(flips)], of) for number in range(faults if flips else 0)]
    found += _stored(seed, faults, stores, of) if stores else []
    calm = [name for name in names if BY_NAME[name].effect != "fails"]
    failing = [name for name in names if BY_NAME[name].effect == "fails"]
    for number in range(-(-faults // PER_LAUNCH) if calm else 0):
        mode, visit = _turn(seed, number, of)
        found.append(launch(seed, number, mode, visit, calm, min(PER_LAUNCH, faults)))
        if failing and number % 2:
            found.append(failure(seed, number, mode, visit, failing))
    for number in range(0 if calm else faults if failing else 0):
        found.append(failure(seed, number, *_turn(seed, number, of), failing))
    for number in range(storms if any(_is_brief(name) for name in names) else 0):
        found.append(storm(seed, number, _turn(seed, number, of)[0], calm))
    ending = [name for name in names if _is_brief(name) and BY_NAME[name].effect == "ends"]
    for number in range(-(-pairs // PAIRS_PER_LAUNCH) if ending else 0):
        found.append(of_pairs(seed, number, _turn(seed, number, of)[0], ending))
    return found


def _stored(seed: int, faults: int, names: Sequence[str], of: Sequence[str]) -> list[Launch]:
    """Each mode meets these kinds in turn, and launches that follow one another have different ones."""
    found: list[Launch] = []
    while sum(len(launch.faults) for launch in found) < faults:
        number = len(found)
        mode, visit = _turn(seed, number, of)
        kind = names[(visit + of.index(mode.name)) % len(names)]
        found.append((damaged if kind == storage.DAMAGED else away)(seed, number, mode, kind))
    return found


def unmet(seed: int, wanted: Sequence[Cell]) -> list[Launch]:
    """Launches that meet these cells. Their ids tell what is in them: with the next results other cells are left."""
    found: list[Launch] = []
    left = list(wanted)
    while left:
        mode = modes.BY_NAME[left[0].mode]
        here = [cell for cell in left if cell.mode == mode.name]
        left = [cell for cell in left if cell.mode != mode.name]
        failing = [(cell.kind, cell.moment) for cell in here if BY_NAME[cell.kind].effect == "fails"]
        calm = [(cell.kind, cell.moment) for cell in here if BY_NAME[cell.kind].effect != "fails"]
        stretches = [*_stretches(failing, _MOST_FAILURES, 1), *_stretches(calm, PER_LAUNCH, _MOST_ENDS)]
        for some in stretches:
            number = len(found)
            found.append(_launch(f"{seed}.{number} {mode.name}", seed, mode, some, Random(f"{seed} {number}"), 0))
    return [replace(launch, id=f"{launch.id} {_told(launch):08x}") for launch in found]


def _stretches(left: Sequence[tuple[str, str]], most: int, ends: int) -> Iterator[list[tuple[str, str]]]:
    """All of these, in parts of at most so many that a launch bears. ends: how many of them at the end of a run."""
    while left:
        some = _bearable(left[:most], ends)
        yield some
        left = [each for each in left if each not in some]


def _told(launch: Launch) -> int:
    return zlib.crc32(repr(launch.faults).encode())


def _turn(seed: int, number: int, of: Sequence[str]) -> tuple[Mode, int]:
    """The mode whose turn it is, and for which time."""
    visit, place = divmod(seed + number, len(of))
    return modes.BY_NAME[of[place]], visit


def launch(seed: int, number: int, mode: Mode, visit: int, names: Sequence[str], count: int) -> Launch:
    """A launch with so many faults, of which none ends the run."""
    dice = Random(f"{seed} {number} {mode.name}")
    tour = _tour(mode, names, visit, 3 * count // 4)
    drawn = [*tour, *(_drawn(mode, names, dice) for _ in range(count - len(tour)))]
    dice.shuffle(drawn)
    return _launch(f"{seed}.{number} {mode.name}", seed, mode, _bearable(drawn), dice, _PAIRS)


def _launch(id: str, seed: int, mode: Mode, drawn: Sequence[tuple[str, str]], dice: Random, pairs: float) -> Launch:
    faults = [_fault(place + 1, kind, moment, dice) for place, (kind, moment) in enumerate(drawn)]
    paired = _in_pairs(faults, dice, pairs)
    layout, driven = modes.layout(mode, dice), any(BY_NAME[fault.kind].family == "driver" for fault in faults)
    if any(fault.kind == "driver stop" for fault in faults):
        layout = (*layout, f"cluster.lease_s={modes.LEASE_S:g}")
    return Launch(id, seed, mode.name, layout, paired, supervised=driven)


def failure(seed: int, number: int, mode: Mode, visit: int, names: Sequence[str]) -> Launch:
    """A short launch with one fault, after which the run may say that it cannot go on, and is resumed."""
    ((kind, moment),) = _tour(mode, names, visit, 1)
    dice = Random(f"failure {seed} {number} {mode.name}")
    fault, alike = _fault(1, kind, moment, dice), (f"run.steps={_FAILED_STEPS}",)
    layout, id = modes.layout(mode, dice), f"{seed}.{number}f {mode.name}"
    return Launch(id, seed, mode.name, layout, (fault,), alike=alike, steps=_FAILED_STEPS)


def flipped(seed: int, number: int, kind: str, of: Sequence[str]) -> Launch:
    """A launch with checks in which one worker flips one bit. If workers divide the update, a flipped parameter is written
    over, or becomes that of all."""
    dice = Random(f"flip {seed} {number} {kind}")
    fitting = [name for name in modes.CHECKED if kind == memory.GRADIENTS or name != "divided update"]
    mode = replace(modes.BY_NAME[dice.choice([name for name in fitting if name in of] or fitting)], workers=CHECKING)
    every = dice.randint(*_CHECK_EVERY)
    flip = Flip(every, dice.randrange(memory.BITS), dice.random())
    fault = Fault(1, kind, "compute", skip=dice.randrange(2 * every), flip=flip)
    layout, id = (*modes.layout(mode, dice), f"check.every={every}"), f"{seed}.{number}m {mode.name}"
    alike = (f"run.steps={_CHECKED_STEPS}", "trace.digest_every=0")  # a check is what has to find it
    return Launch(id, seed, mode.name, layout, (fault,), alike=alike, steps=_CHECKED_STEPS)


def away(seed: int, number: int, mode: Mode, kind: str) -> Launch:
    """A launch whose store goes away some times."""
    dice = Random(f"away {seed} {number} {mode.name}")
    times = [round(dice.uniform(*(_LONG_S if kind in _BORNE else _AWAY_S)), 3) for _ in range(_AWAYS)]
    faults = tuple(Fault(nth, kind, moments.FROM_OUTSIDE, hold_s=hold_s) for nth, hold_s in enumerate(times, 1))
    layout, alike = modes.layout(mode, dice), (f"run.steps={_STORED_STEPS}",)
    id = f"{seed}.{number}a {mode.name}"
    return Launch(id, seed, mode.name, layout, faults, alike=alike, store=kind, steps=_STORED_STEPS)


def damaged(seed: int, number: int, mode: Mode, kind: str) -> Launch:
    """A launch whose driver is killed, and a file of the run damaged, before it is resumed."""
    dice = Random(f"damaged {seed} {number} {mode.name}")
    files = [name for name in storage.FILES if name != storage.RESTS or not mode.lockstep]
    how: storage.How = "bit" if dice.random() < 0.5 else "end"
    damage = Damage(dice.choice(files), how, dice.random(), dice.random(), dice.randrange(storage.BITS))
    fault = Fault(1, kind, moments.FROM_OUTSIDE, skip=dice.randint(*_DAMAGED_AFTER), damage=damage)
    alike, id = (f"run.steps={_FAILED_STEPS}",), f"{seed}.{number}d {mode.name}"
    return Launch(id, seed, mode.name, modes.layout(mode, dice), (fault,), alike=alike, steps=_FAILED_STEPS)


def storm(seed: int, number: int, mode: Mode, names: Sequence[str]) -> Launch:
    """A fault every two seconds for a minute."""
    dice = Random(f"storm {seed} {number} {mode.name}")
    brief = [name for name in names if _is_brief(name)]
    rates = _rates(brief, dice)
    rates = {**rates, **({"short stop": max(1.0, sum(rates.values()))} if "short stop" in brief else {})}
    drawn = [_drawn(mode, brief, dice, rates) for _ in range(STORM_FAULTS)]
    drawn = [(kind, "compute" if moments.BY_NAME[moment].once else moment) for kind, moment in drawn]
    faults = tuple(_fault(place + 1, kind, moment, dice) for place, (kind, moment) in enumerate(drawn))
    return Launch(f"{seed}.{number}s {mode.name}", seed, mode.name, modes.layout(mode, dice), faults, storm=True)


def of_pairs(seed: int, number: int, mode: Mode, names: Sequence[str]) -> Launch:
    """Pairs and nothing else. The second strikes where all come by before the first recovery is over."""
    dice = Random(f"pairs {seed} {number} {mode.name}")
    firsts = [(cell.kind, cell.moment) for cell in cells.possible(names, [mode]) if _comes_again(cell.moment)]
    seconds = [(kind, moment) for kind, moment in firsts if moment in _SOON]
    drawn = [dice.choice(seconds if place % 2 else firsts) for place in range(2 * PAIRS_PER_LAUNCH)]
    return _launch(f"{seed}.{number}p {mode.name}", seed, mode, drawn, dice, 1.0)


def _comes_again(name: str) -> bool:
    moment = moments.BY_NAME[name]
    return name != moments.FROM_OUTSIDE and not moment.joins and not moment.once


def _is_brief(name: str) -> bool:
    return BY_NAME[name].family == "process" and BY_NAME[name].effect in ("ends", "asks", "delays")


def _tour(mode: Mode, names: Sequence[str], visit: int, count: int) -> list[tuple[str, str]]:
    """The stretch of this visit of a way through all cells of the mode. Faults of which a launch bears few lie evenly on
    it."""
    sorts: dict[str, list[tuple[str, str]]] = {}
    for cell in cells.possible(names, [mode]):
        sorts.setdefault(_sort(cell.kind, cell.moment), []).append((cell.kind, cell.moment))
    placed = []
    for sort, some in sorts.items():
        Random(f"tour of {mode.name}, {sort}").shuffle(some)
        placed += [((place + 0.5) / len(some), sort, way) for place, way in enumerate(some)]
    ways = [way for *_, way in sorted(placed)]
    return [ways[(visit * count + place) % len(ways)] for place in range(min(count, len(ways)))]


def _sort(kind: str, moment: str) -> str:
    if moments.BY_NAME[moment].once:
        return "ends"
    return "stalls" if BY_NAME[kind].effect == "stalls" else "others"


def _rates(names: Sequence[str], dice: Random) -> dict[str, float]:
    """By kind; those that cost seconds seldom, some not at all, and one at least."""
    rates = {}
    for name in names:
        weight = dice.expovariate(1.0) * (0.1 if BY_NAME[name].effect == "stalls" else 1.0)
        rates[name] = weight if dice.random() < 0.7 else 0.0
    if not any(rates.values()):
        rates[dice.choice(list(names))] = 1.0
    return rates


def _drawn(mode: Mode, names: Sequence[str], dice: Random, rates: dict[str, float] | None = None) -> tuple[str, str]:
    rates = _rates(names, dice) if rates is None else rates
    (kind,) = dice.choices([*rates], [*rates.values()])
    places = [cell.moment for cell in cells.possible([kind], [mode])]
    return kind, dice.choice(places)


def _bearable(drawn: Sequence[tuple[str, str]], most_ends: int = _MOST_ENDS) -> list[tuple[str, str]]:
    """Few that stall, and those at the end of a run last; what is over the measure strikes at another place."""
    ends = [cell for cell in drawn if _sort(*cell) == "ends"]
    others = [cell for cell in drawn if _sort(*cell) != "ends"]
    stalls = [cell for cell in others if _sort(*cell) == "stalls"]
    spared = stalls[_MOST_STALLS:]
    kept = [cell for cell in others if cell not in spared or cell in stalls[:_MOST_STALLS]]
    return [*kept, *ends[:most_ends]]


def _fault(number: int, kind: str, moment: str, dice: Random) -> Fault:
    effect = BY_NAME[kind].effect
    hold_s = 0.0
    if effect == "delays":
        hold_s = round(dice.uniform(*_SHORT_S), 3)
    elif effect == "stalls":
        of_driver = BY_NAME[kind].family == "driver"
        hold_s = 1.5 * modes.LEASE_S if of_driver else 2.0 * modes.STEP_TIMEOUT_S
    met_once = moments.BY_NAME[moment].joins or moments.BY_NAME[moment].once
    skip = dice.choice([0, 0, 0, 1, 2, 5])
    return Fault(number, kind, moment, skip=0 if met_once else skip, hold_s=hold_s)


def _in_pairs(faults: Sequence[Fault], dice: Random, rate: float) -> tuple[Fault, ...]:
    """Some of the faults get a later one as their partner. rate: of those that one fits to."""
    left, found = list(faults), []
    while left:
        fault = left.pop(0)
        partner = next((each for each in left if _fit_together(fault, each)), None)
        if partner is not None and dice.random() < rate:
            left.remove(partner)
            fault = replace(fault, partner=replace(partner, skip=0))
        found.append(fault)
    return tuple(found)


def _fit_together(first: Fault, second: Fault) -> bool:
    """Both are over soon, and the second one can come at any time."""
    brief = all(BY_NAME[each.kind].effect == "ends" for each in (first, second))
    timely = not moments.BY_NAME[first.moment].joins and moments.FROM_OUTSIDE not in (first.moment, second.moment)
    return brief and timely and second.moment != "manifest"


def families(names: Sequence[str]) -> tuple[str, ...]:
    """The kinds that are meant by names of kinds or families. Raises KeyError."""
    found: list[str] = []
    for name in names:
        of_family = kinds.of_family(name)
        found += of_family or [kinds.BY_NAME[name].name]
    return tuple(found)
