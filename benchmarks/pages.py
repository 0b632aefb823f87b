"""Pages of docs/benchmarks: benchmarks write a part of a page between two marks, and pictures.

The marks are comments of their own lines: `<!-- NAME: made by ... -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def replace(page: Path, name: str, text: str) -> None:
    """Put `text` between the marks of this name. Raises ValueError for a page that lacks them."""
    found, count = _marked(name).subn(lambda marks: f"{marks[1]}{text}\n{marks[2]}", page.read_text())
    if count != 1:
        raise ValueError(
            f"{page}: {count} parts between <!-- {name}: made by ... --> and <!-- end of {name} -->, not one"
        )
    page.write_text(found)


def with_marks(*names: str) -> Callable[[str], Path]:
    """A type of argparse: a page that has the marks of these names. It is looked at before hours of measuring."""

    def page(text: str) -> Path:
        try:
            found = Path(text).read_text()
        except (OSError, UnicodeError) as error:
            raise ArgumentTypeError(f"{text} cannot be read: {error}") from error
        if lacking := [name for name in names if len(_marked(name).findall(found)) != 1]:
            raise ArgumentTypeError(f"{text} lacks the marks of {', '.join(lacking)}, between which results are put")
        return Path(text)

    return page


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: made by [^\n]* -->\n).*?(<!-- end of {name} -->)", re.DOTALL)


@contextmanager
def picture(path: Path, panels: int, width: float, height: float = 3.2) -> Iterator[Any]:
    """An SVG file of panels beside each other, each as many inches wide, that share their vertical axis. Gives their axes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "orchestrator"}):  # two pictures of the same figures are the same file
        figure, axes = pyplot.subplots(1, panels, figsize=(1 + width * panels, height), sharey=True, squeeze=False)
        yield axes[0]
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
