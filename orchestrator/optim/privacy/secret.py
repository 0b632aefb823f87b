"""The secret of a user: 256 bits in a file outside of every record, and the keys that follow from it for one run.

A record holds its commitment, a hash from which nobody finds it. The keys of a run are bound to all that the run is made of,
so that other data, other code or other settings never meet the same noise. The difference of two releases with the same noise
would show what differs, without any noise. One run repeated has the same keys, which is what makes a rerun exact.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.errors import ConfigurationError
from orchestrator.optim.privacy.keys import KEY_BYTES, Keys, extract

_DIGITS: Final = re.compile(r"[0-9a-f]{64}")
_OTHERS: Final = 0o077  # what group and others may do


@dataclass(frozen=True)
class Secret:
    """The secret of a user. value: 256 bits; path: where it lies; new: it has been made just now."""

    value: bytes = field(repr=False)
    path: Path
    new: bool = False

    @property
    def commitment(self) -> str:
        """By which a record knows this secret again."""
        return commitment_of(self.value)

    def keys(self, about: str) -> Keys:
        """The keys of the run that is made of this."""
        return Keys(extract(self.value, "run", hashlib.sha256(about.encode()).digest()))


def commitment_of(value: bytes) -> str:
    return hashlib.sha256(b"orchestrator privacy secret\0" + value).hexdigest()


def place(given: str | None) -> Path:
    """The file of the secret. given: the setting; null: in the user's folder of configurations. Raises ConfigurationError."""
    configurations = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(given) if given is not None else Path(configurations) / "orchestrator" / "privacy.secret"
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise _unusable(path, "has no place: the user behind ~ has no home here") from None


def read(path: Path) -> Secret:
    """Raises ConfigurationError where it is not there, open to others, or not what `create` writes."""
    try:
        with path.open("r", encoding="ascii") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(200).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, f"cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    if mode & _OTHERS:
        raise _unusable(path, "may be read by others", f"chmod 600 {path}, if nobody has read it; else remove it")
    if not _DIGITS.fullmatch(text):
        raise _unusable(path, f"does not hold {2 * KEY_BYTES} hexadecimal digits")
    return Secret(bytes.fromhex(text), path)


def read_or_create(path: Path) -> Secret:
    """The secret of this file, drawn from the system's random numbers where there is no file. Raises ConfigurationError."""
    value = secrets.token_bytes(KEY_BYTES)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read(path)
    except OSError as error:
        raise _unusable(path, f"cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(value.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return Secret(value, path, new=True)


def _unusable(path: Path, why: str, remedy: str = "") -> ConfigurationError:
    return ConfigurationError(
        [f"privacy.secret: {path} {why}"],
        remedy or "give the file that another run has made, or the path of one that is to be made",
        code="privacy.secret-unusable",
    )
