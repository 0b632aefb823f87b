"""The command line, in a process of the warm pool where there is one (`orchestrator.forkserver`), else in this one."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the command."""
    from orchestrator.commands import surroundings

    surroundings.prepare()
    from orchestrator.forkserver import handing_over

    code = handing_over.handed_over(sys.argv, "orchestrator.commands.line")
    if code is not None:
        return code
    from orchestrator.commands import line

    return line.main()


if __name__ == "__main__":
    sys.exit(main())
