"""The command line."""

from __future__ import annotations

import sys


def main() -> int:
    """The exit code of the command."""
    from orchestrator.cli import process_setup

    process_setup.prepare()
    from orchestrator.cli import main

    return main.main()


if __name__ == "__main__":
    sys.exit(main())
