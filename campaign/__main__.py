"""The command line of the campaign."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from orchestrator.numerics.determinism import prepare_environment

prepare_environment()

from campaign import cells, leftovers, modes, plans, stores, table  # noqa: E402
from campaign.cells import Results  # noqa: E402
from campaign.parts import PLAN, Part, complain, every_line, kept, project, say  # noqa: E402
from campaign.plans import Launch  # noqa: E402

COUNTED = Path(__file__).parent / "counted"  # of earlier sessions, kept beside the code


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        names = plans.families(given.kinds)
        chosen = [modes.BY_NAME[name].name for name in given.modes] or list(modes.NAMES)
    except KeyError as error:
        return complain(f"{error.args[0]!r} is neither a kind nor a family nor a mode; modes: {', '.join(modes.NAMES)}")
    launches = plans.part(given.seed, given.faults, names, chosen, given.storms, given.pairs)
    if given.unmet:
        left = cells.read(every_line(COUNTED, *given.results)).unfilled
        launches += plans.unmet(given.seed, [cell for cell in left if cell.kind in names and cell.mode in chosen])
    launches += [plans.of_dict(json.loads((folder / PLAN).read_text())) for folder in given.again]
    if given.print:
        _print(launches)
        return 0
    for why in filter(None, map(stores.missing, sorted({launch.store for launch in launches if launch.store}))):
        return complain(why)
    failed: list[str] = []
    for what in leftovers.begin():
        say(f"gone now, which a campaign had left that is dead: {what}")
    if launches:
        with project() as made, closing(Part(made, given.results[0], f"seed-{given.seed}")) as part:
            part.carry_out(launches)
            failed = part.failed
    failed += _simulate(given.results[0], given.first, given.lives) if given.lives else []
    failed += _plant(given.results[0]) if given.mutants else []
    if given.keep is not None:
        lines = cells.folded(cells.read(every_line(*given.results)))
        given.keep.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if given.table is not None:
        _write(given.table, cells.read(every_line(COUNTED, *given.results)))
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m campaign", description="Faults, injected into true runs and counted."
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=0, help="about so many, in launches of 36")
    parser.add_argument("--storms", type=int, default=0, help="launches with a fault every two seconds for a minute")
    parser.add_argument("--pairs", type=int, default=0, help="about so many pairs that overlap, in launches of 16")
    parser.add_argument("--unmet", action="store_true", help="launches for the cells that the results lack")
    parser.add_argument("--kinds", nargs="+", default=["process"], metavar="KIND", help="kinds or families")
    parser.add_argument("--modes", nargs="+", default=[], metavar="MODE", help="all where none is given")
    parser.add_argument("--lives", type=int, default=0, help="simulated lives of each kind of run")
    parser.add_argument("--first", type=int, default=0, help="the first seed of these")
    parser.add_argument(
        "--again",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="launches of which a folder was kept, once more",
    )
    parser.add_argument(
        "--mutants", action="store_true", help="plant bugs of the protocol, and look whether they are found"
    )
    default = [Path("build/campaign")]
    parser.add_argument(
        "--results", type=Path, nargs="+", default=default, help="folders of what was found; new goes to the first"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write what was found there, in short; in campaign/counted/ it counts"
    )
    parser.add_argument("--print", action="store_true", help="the plan, without doing it")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write what all parts have found into this page")
    return parser


def _print(launches: Sequence[Launch]) -> None:
    for launch in launches:
        told = asdict(launch)
        faults = told.pop("faults")
        say(str(told))
        for fault in faults:
            say(f"    {fault}")


def _simulate(results: Path, first: int, count: int) -> list[str]:
    from campaign import lives

    failed = []
    for line in kept(results, f"lives-{first}", lives.hunt(first, count)):
        failed += [f"{line['kind']} {each['seed']}: {each['why']}" for each in line["failed"]]
        say(f"{line['count']} lives, {line['kind']}, from seed {line['first']}: {line['seconds']} s")
    for each in failed:
        say(f"  FOUND: {each}")
    return failed


def _plant(results: Path) -> list[str]:
    from campaign import mutants

    failed = []
    for line in kept(results, "mutants", mutants.every()):
        failed += [] if line["found"] else [line["name"]]
        say(f"{line['name']}: " + (f"found by seed {line['seed']}, {line['how']}" if line["found"] else "NOT FOUND"))
    return failed


def _write(page: Path, found: Results) -> None:
    machine = f"{os.cpu_count()} cores of {os.uname().machine}, shared with other work"
    page.write_text(table.on_page(page.read_text(), found, machine))
    say(f"{len(found.unfilled)} cells are not met yet; see {page}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
