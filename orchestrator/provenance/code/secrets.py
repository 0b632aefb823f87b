"""Files that look as if they held a secret: by their names, and by credentials of known shapes in their text.

A snapshot holds every file that git does not ignore. A key or an `.env` that lies about untracked is left out of it by its
name, and said. Files that git tracks stay: they have been published on purpose, or long ago, and the code may need them. In
the text of files that are new or changed a credential is pointed out and not taken out, since the code would be another one
then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from orchestrator.errors import few
from orchestrator.records import redaction

_NAMES = re.compile(
    r"\.env(\..+)?|\.envrc|\.netrc|\.pypirc|\.htpasswd|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|credentials(\..+)?"
    r"|client_secret.*|.+\.(pem|p12|pfx|keystore|jks|ppk|tfstate)|.*(?<!_pub)\.key|\.npmrc|\.pgpass|\.my\.cnf|\.s3cfg|\.boto"
    r"|\.dockercfg|\.vault-token|kaggle\.json|service[-_]account.*\.json|application_default_credentials\.json"
    r"|secrets?\.(ya?ml|toml|json|ini)",
    re.IGNORECASE,
)
_IN_FOLDERS = (".docker/config.json", ".kube/config")
_EXAMPLES = re.compile(r".*\.(example|sample|template|dist|pub)", re.IGNORECASE)
_SHOWN = 3
_READ_BYTES = 1 << 20
_MOST_FILES = 2000
DVC_CONFIG = ".dvc/config"  # tracked, and a usual place of a remote's password


def is_suspicious(path: str) -> bool:
    """Whether the name is typical of keys, tokens and passwords. Pure."""
    name = PurePosixPath(path).name
    if any(f"/{path}".endswith(f"/{each}") for each in _IN_FOLDERS):
        return True
    return _NAMES.fullmatch(name) is not None and _EXAMPLES.fullmatch(name) is None


def note(left_out: Iterable[str]) -> str | None:
    """The note about files that were left out by their names; None if there are none."""
    found = list(left_out)
    if not found:
        return None
    return (
        f"{few(found, _SHOWN)}: left out of the record, since by their names they hold secrets; list them in .gitignore, or "
        "git add those that hold none and that the run needs"
    )


def note_of_contents(root: Path, paths: Iterable[str]) -> str | None:
    """The note about files in whose text a credential stands."""
    places = [place for path in list(paths)[:_MOST_FILES] if (place := _place(root, path)) is not None]
    if not places:
        return None
    return (
        f"{few(places, _SHOWN)}: a credential stands there, and is recorded with the code in this run's artifacts; take it "
        "out, and read it from the environment"
    )


def _place(root: Path, path: str) -> str | None:
    """file:line of the first credential."""
    file = root / path
    try:
        if file.is_symlink() or file.stat().st_size > _READ_BYTES:
            return None
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):  # gone, or no text
        return None
    if redaction.text(text) == text:
        return None
    lines = enumerate(text.splitlines(), 1)
    number = next((number for number, line in lines if redaction.text(line) != line), 1)
    return f"{path}:{number}"
