"""The command line."""

from __future__ import annotations

import sys

from orchestrator.common import early_signals


def main() -> int:
    """The exit code of the command."""
    try:
        from orchestrator.cli import process_setup

        process_setup.prepare()
        from orchestrator.cli import main

        return main.main()
    except KeyboardInterrupt as interrupt:  # before the command listens to signals
        return early_signals.tell(interrupt)
    except (ImportError, AttributeError) as error:
        from orchestrator.common import shadowing

        cause = shadowing.told(error)
        if cause is None:
            raise
        print(f"error: {cause}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    code = main()
    # Python ends by the signal where an interrupt came out of text that it executed last, as of a named tuple.
    exec("")
    sys.exit(code)
