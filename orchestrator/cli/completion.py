"""`completion=SHELL`: a script for the shell, and the words that it asks for while somebody types."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult
from orchestrator.cli.command_table import COMMANDS
from orchestrator.config.settings import choices, names
from orchestrator.driver.folders import NAME
from orchestrator.errors import UsageError

_BASH = r"""
_orchestrator() {
    local typed="${COMP_LINE:0:COMP_POINT}"
    typed="${typed##* }"
    local before="${typed%"${typed##*[=:]}"}"
    local words
    mapfile -t words < <(orchestrator completion=words "$typed" 2>/dev/null)
    COMPREPLY=("${words[@]#"$before"}")
    [[ "${words[0]}" == *[=.] ]] && compopt -o nospace
}
complete -F _orchestrator orchestrator
"""
_ZSH = r"""
autoload -Uz compinit && compinit
_orchestrator() {
    local -a words
    words=("${(@f)$(orchestrator completion=words "$PREFIX" 2>/dev/null)}")
    compadd -S '' -- $words
}
compdef _orchestrator orchestrator
"""
_FISH = r"""
complete -c orchestrator -f -a '(orchestrator completion=words (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(arguments: Arguments) -> CommandResult:
    if arguments.value == "words":  # what the shell calls, with the word that is being typed behind it
        return CommandResult(stdout="\n".join(words(arguments.rest[0] if arguments.rest else "", Path.cwd())))
    arguments.only("completion", ())
    return CommandResult(stdout=script(arguments.value))


def script(shell: str) -> str:
    """For the shell's own start file, or `eval`. Raises UsageError."""
    if shell not in SCRIPTS:
        raise UsageError(
            f"completion={shell}: there is none for it", f"it is {', '.join(SCRIPTS)}", code="command.completion"
        )
    return SCRIPTS[shell].strip()


def words(typed: str, project: Path) -> list[str]:
    """The words that `typed` may become: commands and keys, section by section, or the values of one that is complete."""
    key, given, value = typed.partition("=")
    if given:
        return [f"{key}={each}" for each in _values(key, project) if each.startswith(value)]
    every = [
        *(command.name if command.is_bare else f"{command.name}=" for command in COMMANDS.values()),
        *(f"{name}=" for name in names()),
    ]
    matching = [word for word in every if word.startswith(typed)]
    depth = typed.count(".") + 1
    if len(matching) == 1:
        return matching
    short = {word if word.count(".") < depth else ".".join(word.split(".")[:depth]) + "." for word in matching}
    return sorted(short)


def _values(key: str, project: Path) -> list[str]:
    wanted = COMMANDS[key].form.split()[0].partition("=")[2] if key in COMMANDS else ""
    if wanted.startswith("NAME"):
        return sorted(file.stem for file in (project / "conf").glob("*.yaml"))
    if wanted.startswith("RUN"):
        runs = sorted((project / NAME).glob("*/settings.yaml"), key=lambda file: file.stat().st_mtime, reverse=True)
        return ["last", *(file.parent.name for file in runs)]
    if key == "help":
        return names()
    return choices(key)
