"""`help=KEY`: what a setting is, or all settings of a section; what is typed with a command."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_result import CommandResult
from orchestrator.cli.command_table import COMMANDS
from orchestrator.cli.usage import commands, of, usage
from orchestrator.common.checked_values import plain, show
from orchestrator.common.registry import Option
from orchestrator.config.settings import described, names

_OPTIMIZERS = ("optimizer", "optimizer.name")


def run(arguments: Arguments) -> CommandResult:
    name = arguments.value
    if name in _PAGES:
        return CommandResult(stdout=_PAGES[name]())
    is_section = any(f"{key}.".startswith(f"{name}.") for key in names())
    parts = [of(name)] if name in COMMANDS else []
    parts += [described(name)] if is_section or not parts else []
    parts += [optimizers()] if name in _OPTIMIZERS else []
    return CommandResult(stdout="\n\n".join(parts))


def optimizers() -> str:
    """The options of each optimizer on offer, with their defaults."""
    from orchestrator.optim.optimizers import OPTIMIZERS  # torch takes a second to import

    lines = ["The keys below optimizer that each of them takes, with their defaults:"]
    for name in OPTIMIZERS:
        lines.append(f"  {name}: " + ", ".join(map(_option, OPTIMIZERS.options(name).values())))
    return "\n".join([*lines, "  or your own as package.module:name"])


def _option(option: Option) -> str:
    value = plain(option.default)
    return f"{option.name} ({'required' if option.is_required else f'{value:g}' if isinstance(value, float) else show(value)})"


_PAGES: dict[str, Callable[[], str]] = {
    "": usage,
    "commands": commands,
    "settings": lambda: described(""),
}
