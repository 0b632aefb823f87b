"""The costs of a run beside its work, by the number of its members.

    python -m benchmarks.scale [--parts true-workers,virtual-members] [--page docs/benchmarks/scale.md] [options of the parts]

A part is a module with `options`, which adds what it asks for to the command line, and `measured`, which measures and returns
Markdown. It is printed, and with `--page` it takes the place between the part's marks there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import pages
from benchmarks.scale import topologies, true_workers, virtual_members

PARTS: dict[str, Any] = {
    "true-workers": true_workers,
    "virtual-members": virtual_members,
    "topologies": topologies,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--page", type=pages.with_marks(*PARTS), help="of docs/benchmarks, where the tables go")
    for part in PARTS.values():
        part.options(parser)
    chosen = parser.parse_args(arguments)
    names = chosen.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for name in names:
        text = PARTS[name].measured(chosen)
        print(text, flush=True)
        if chosen.page is not None:
            pages.replace(chosen.page, name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
