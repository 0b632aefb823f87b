"""Whether a file of the working directory was imported in place of a module of Python or of a library, as a `random.py` is.

Asked when something has failed, since most such files hide what nobody needs. It imports no more than it must, which may be
hidden, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import TracebackType


def told(error: BaseException) -> str | None:
    """The file that may be the cause of a name that was not found, and what to do, in a sentence; None where there is none."""
    if not isinstance(error, ImportError | AttributeError):
        return None
    here = os.getcwd()  # noqa: PTH109 (pathlib imports much)
    elsewhere = [each for each in sys.path if os.path.abspath(each) != here]  # noqa: PTH100
    for file in sorted({*_of_frames(error.__traceback__), *_imported()}):
        if not file.startswith(here + os.sep):
            continue
        top = file[len(here) + 1 :].partition(os.sep)[0]
        name = top.removesuffix(".py")
        if name != "orchestrator" and name.isidentifier() and PathFinder.find_spec(name, elsewhere) is not None:
            return (
                f"{os.path.join(here, top)} is imported in place of the module {name} of Python or a library; rename it"  # noqa: PTH118
            )
    if getattr(sys.modules.get("orchestrator"), "__file__", None) is None:
        return f"the folder orchestrator in {here} hides parts of the package orchestrator; type this in another folder"
    return None


def tell(error: BaseException) -> None:
    """Say which file may be the cause of a failed import of this package, where there is one: `python -m` ends with that, and
    who imports it gets an ImportError."""
    cause = told(error)
    if cause is None:
        return
    if sys.argv[:1] == ["-m"]:  # as long as the package is being found
        print(f"error: {cause}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(cause) from error


def _of_frames(frame: TracebackType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.tb_frame.f_code.co_filename
        frame = frame.tb_next


def _imported() -> Iterator[str]:
    for module in list(sys.modules.values()):
        if isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
            yield file
