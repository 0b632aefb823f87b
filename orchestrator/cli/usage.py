"""The pages of usage: the commands that are needed first, all of them, or one."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from orchestrator.cli.arguments import listed
from orchestrator.cli.command_table import COMMANDS

_COMMON = {
    "key=value": (
        "change a setting, such as cluster.workers=2 or optimizer.lr=0.01; topology=ring is short for "
        "topology.name=ring"
    ),
    "output=json": "the last line of stdout is one JSON object",
    "--help": "the commands that are needed first",
}
_CODES = """\
Exit codes: 0 fine, 1 the run failed, 2 bad usage or configuration, 3 a rerun diverged or doctor found a difference,
4 it cannot be rerun exactly, 130 interrupted."""
_END = f"""\
examples
  python -m orchestrator conf=digits
  python -m orchestrator conf=digits topology=tree cluster.workers=3 run.seed=7 output=json
  python -m orchestrator resume=last cluster.workers=2
  python -m orchestrator sweep=sweep parallel=3

All settings: docs/settings.md. Runs are recorded in .orchestrator/ of the working directory.
{_CODES}"""
_WIDTH = 19  # of the words that are typed
_WRAPPED = 109  # of what is said of them


def usage() -> str:
    """The commands that a user needs first, and where the others are."""
    first = {command.form.split()[0].partition("|")[0]: command.brief for command in COMMANDS.values() if command.brief}
    others = listed([command.name for command in COMMANDS.values() if not command.brief], "and")
    return "\n".join(
        [
            "usage: python -m orchestrator COMMAND [key=value ...]",
            "",
            *_said(first),
            "",
            *_said(_COMMON),
            "",
            *textwrap.wrap(f"More commands: {others}.", _WIDTH + _WRAPPED),
            "help=commands tells of all, help=export of one; help=settings and docs/settings.md of all settings.",
            _CODES,
        ]
    )


def commands() -> str:
    """All commands."""
    heads = ["usage:", *[" " * 6] * (len(COMMANDS) - 1)]
    lines = [
        f"{head} python -m orchestrator {command.form}" for head, command in zip(heads, COMMANDS.values(), strict=True)
    ]
    lines.append("")
    for about in (*(command.about for command in COMMANDS.values()), _COMMON):
        lines += _said(about)
    return "\n".join([*lines, "", _END])


def of(name: str) -> str:
    """The arguments of a command as they are typed."""
    return "\n".join([f"usage: python -m orchestrator {COMMANDS[name].form}", "", *_said(COMMANDS[name].about)])


def _said(about: Mapping[str, str]) -> list[str]:
    lines = []
    for word, text in about.items():
        first, *rest = (
            part for line in text.splitlines() for part in textwrap.wrap(line, _WRAPPED, break_on_hyphens=False)
        )
        lines += _head(word, first)
        lines += [" " * (_WIDTH + 2) + line for line in rest]
    return lines


def _head(word: str, first: str) -> list[str]:
    if len(word) < _WIDTH - 1:
        return [f"  {word:<{_WIDTH}}{first}"]
    return [f"  {word}", " " * (_WIDTH + 2) + first]
