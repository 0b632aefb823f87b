"""The arguments typed beside a command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.config.settings import Settings, load, origins
from orchestrator.errors import UsageError


@dataclass
class Arguments:
    """The arguments typed beside a command."""

    value: str  # of the command, "digits" of conf=digits
    rest: tuple[str, ...]  # the other arguments, as given
    started: float  # time of the command, on the monotonic clock
    conf: str = ""  # the configuration, where the command takes one; "" elsewhere
    overrides: list[str] = field(default_factory=list)  # those of the settings, after `load`
    loaded: Settings | None = None  # the settings, after `load`; None before

    def load(self, overrides: list[str], used: Sequence[str] = ()) -> None:
        """Read the settings of a command that has some. used: as of `settings.load`. Raises OrchestratorError."""
        self.overrides = overrides
        self.loaded = load(self.files, overrides, used=used)

    @property
    def files(self) -> list[str]:
        return entries(self.conf)

    @property
    def settings(self) -> Settings:
        assert self.loaded is not None
        return self.loaded

    @property
    def origins(self) -> dict[str, str]:
        """The sources of the settings, by key."""
        return origins(self.files, self.overrides)

    @property
    def as_json(self) -> bool:
        return "output=json" in self.rest if self.loaded is None else self.loaded.output == "json"

    @property
    def uri(self) -> str | None:
        """The address of the MLflow store, None for the project's own."""
        return self.get("tracking.uri")

    def get(self, key: str) -> str | None:
        """The last value given to a key; None where there is none, or it is empty."""
        given = [each.partition("=")[2] for each in self.rest if each.partition("=")[0] == key]
        return (given[-1] if given else None) or None

    def path(self, key: str) -> Path | None:
        found = self.get(key)
        return None if found is None else Path(found)

    def number(self, key: str, least: int) -> int | None:
        """Raises UsageError."""
        found = self.get(key)
        if found is not None and not (found.isascii() and found.isdigit() and int(found) >= least):
            raise UsageError(f"{key}={found}: expected a whole number, at least {least}", code="command.number")
        return None if found is None else int(found)

    def choice(self, key: str, *words: str) -> str:
        """The value of a key, the first word where it is not given. Raises UsageError."""
        found = self.get(key) or words[0]
        if found not in words:
            raise UsageError(f"{key}={found}: it is {listed(words, 'or')}", code="command.choice")
        return found

    def flag(self, key: str) -> bool:
        """Whether a key is true. Raises UsageError."""
        return self.choice(key, "false", "true") == "true"

    def without(self, *keys: str) -> list[str]:
        """The arguments that are left for the settings."""
        return [each for each in self.rest if each.partition("=")[0] not in keys]

    def only(self, command: str, takes: Sequence[str]) -> None:
        """Raises UsageError for what a command that changes no settings does not take; takes: such as "port=N"."""
        keys = {each.partition("=")[0] for each in takes}
        unknown = self.without(*keys)
        if "output" in keys:
            unknown += [each for each in self.rest if each.startswith("output=") and each not in _OUTPUT]
        if unknown:
            named = f"only {listed(takes, 'and')}" if takes else "nothing else"
            raise UsageError(
                f"{command} takes {named}, not {' '.join(unknown)}",
                code="command.options",
            )


def entries(conf: str) -> list[str]:
    """The names and paths of a value of conf=, between commas; a file that has some in its path is one."""
    with suppress(OSError):  # a long list is no path that can be looked for
        if Path(conf).is_file():
            return [conf]
    return conf.split(",")


_OUTPUT = ("output=json", "output=text")


def listed(words: Sequence[str], last: str) -> str:
    """ "a, b and c", with `last` for "and"."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
