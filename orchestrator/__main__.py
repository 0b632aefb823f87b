"""The command line, in a process of the warm pool where there is one (`orchestrator.cluster.forkserver`), else in this one."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the command."""
    from orchestrator.cli import surroundings

    surroundings.prepare()
    from orchestrator.cluster.forkserver import handing_over

    code = handing_over.handed_over(sys.argv, "orchestrator.cli.line")
    if code is not None:
        return code
    from orchestrator.cli import line

    return line.main()


if __name__ == "__main__":
    sys.exit(main())
