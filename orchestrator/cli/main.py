"""The command line: one command (`orchestrator.cli.command_table`), then settings as key=value. Progress goes to stderr; stdout
is for programs."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult, refused
from orchestrator.cli.command_table import COMMANDS, Command, the_command
from orchestrator.cli.usage import usage
from orchestrator.driver.terminal import console, signals
from orchestrator.errors import OF_DESCRIPTORS, Interrupted, OrchestratorError, RunFailed, is_out_of_descriptors
from orchestrator.numerics import determinism
from orchestrator.provenance.tracking import lean
from orchestrator.records import phases

# New objects until the next search for garbage: among the million of them that imports make, there is none to be found.
_COLLECTED_AFTER = 100_000
# Faults of this program where nobody has foreseen them; other errors of the system are not.
_OURS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, BlockingIOError)


def main() -> int:
    """The exit code of the command."""
    phases.began(phases.COMMAND)
    started = time.monotonic() - phases.process_age()
    gc.set_threshold(_COLLECTED_AFTER)
    lean.prefer()
    console.prepare()
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        return console.answer(usage(), 0)
    signals.interrupt()
    determinism.prepare_environment()
    if "" not in sys.path:
        sys.path.insert(0, "")  # the console script starts without the working directory, `python -m` with it
    command, given = COMMANDS["conf"], Arguments("", tuple(arguments), started)
    try:
        command, typed = the_command(arguments)
        rest = list(arguments)
        rest.remove(typed)
        given = Arguments(typed.partition("=")[2], tuple(rest), started)
        answer = _run(command, given)
    except OrchestratorError as error:
        console.tell(f"error: {error}")
        answer = CommandResult(error.exit_code, refused(error, command.refused(given)) if given.as_json else None)
    return answer.code if answer.stdout is None else console.answer(answer.stdout, answer.code)


def _run(command: Command, arguments: Arguments) -> CommandResult:
    """Prints of a pipeline while it is imported go to stderr."""
    with _interruptible(), foreseen(), nullcontext() if command.speaks else redirect_stdout(sys.stderr):
        return command.run(arguments)


@contextmanager
def foreseen() -> Iterator[None]:
    """A refusal of the operating system, before a run exists that tells of it, is an error like others. Raises RunFailed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:  # of `getcwd`
            raise RunFailed(
                "the working directory has been removed",
                "go to the folder of the project again",
                code="command.no-folder",
            ) from error
        if isinstance(error, _OURS):
            raise
        where = "" if error.filename is None else f" ({error.filename})"
        remedy = OF_DESCRIPTORS if is_out_of_descriptors(error) else "see to its rights and its disk"
        raise RunFailed(
            f"the command could not go on: {error.strerror or error}{where}", remedy, code="command.system-refused"
        ) from error


@contextmanager
def _interruptible() -> Iterator[None]:
    """A signal that comes before the driver of a run listens to them is an error like others. So is a failure after code
    that was interrupted has swallowed it, as torch does while it imports numpy. Raises Interrupted."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"interrupted by {interrupt}", code="command.interrupted") from None
    except BaseException as error:  # a panic of Rust is no Exception
        if isinstance(error, SystemExit) or (swallowed := signals.raised()) is None:
            raise
        raise Interrupted(f"interrupted by {swallowed}", code="command.interrupted") from None
