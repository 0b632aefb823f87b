"""Files that look as if they held a secret, by their names; the contents are not read.

A snapshot holds every file that git does not ignore, so a key that lies about untracked goes into the run's artifacts. What git
tracks already is not named: it has been published on purpose, or long ago.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

_NAMES = re.compile(
    r"\.env(\..+)?|\.netrc|\.pypirc|\.htpasswd|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|credentials(\..+)?|client_secret.*"
    r"|.+\.(pem|p12|pfx|keystore|jks)|.*(?<!_pub)\.key",
    re.IGNORECASE,
)
_EXAMPLES = re.compile(r".*\.(example|sample|template|dist|pub)", re.IGNORECASE)
_SHOWN = 3


def suspicious(paths: Iterable[str]) -> list[str]:
    """Those of the paths whose names are typical of keys, tokens and passwords. Pure."""
    names = {path: PurePosixPath(path).name for path in paths}
    return [path for path, name in names.items() if _NAMES.fullmatch(name) and not _EXAMPLES.fullmatch(name)]


def note(untracked: Iterable[str]) -> str | None:
    """What to tell a person about them; None when there are none."""
    found = suspicious(untracked)
    if not found:
        return None
    listed = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
    return (
        f"{listed}: untracked, not ignored, and so recorded with the code in this run's artifacts; "
        "if it holds a secret, list it in .gitignore"
    )
