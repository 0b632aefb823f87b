"""The command line."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the command."""
    from orchestrator.cli import surroundings

    surroundings.prepare()
    from orchestrator.cli import line

    return line.main()


if __name__ == "__main__":
    sys.exit(main())
