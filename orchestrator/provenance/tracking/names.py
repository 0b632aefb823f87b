"""Names as MLflow takes them, of metrics, parameters and tags, and back. Pure.

MLflow refuses most characters, names longer than 250, and names that as a path would be another one (`top1/`, `a//b`, `..`).
One such name in a request loses all that is in it. So what it refuses in a name is written as `_xHEX_`, the number of the
character: `acc[0]` becomes `acc_x005B_0_x005D_`. Different names stay different, and each can be read again.
Source: the rules of `mlflow/utils/validation.py`; the form of XmlConvert.EncodeName of .NET.
"""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any

from orchestrator.errors import coded

MOST = 250
DIGITS = 16  # of the hash at the end of a name that was too long
_KEPT = 220  # of such a name
_REFUSED = re.compile(
    r"[^\w\-. /:]"
    r"|\A/|/(?=/)|/\Z"  # a part that is empty
    r"|(?:\A|(?<=/))\.(?=/|\Z|\./|\.\Z)"  # the parts . and ..
    r"|\A\.(?=\.)"
    r"|_(?=x[0-9A-F]{4,6}_)"  # what looks as if it had been written here
)
_WRITTEN = re.compile(r"_x([0-9A-F]{4,6})_")
_OF_REGISTERED = re.compile(r"(?!\.\Z|\.\.)\s*[^/:@'\s][^/:@']*")
_ALIAS = re.compile(r"(?!(latest|v\d+)\Z)[\w-]{1,255}", re.IGNORECASE)
_NOT_OF_LOGGED = re.compile(r"[/:.%\"']")
_NOTHING = "_xFFFFFF_"  # no character: all of an empty name, and the end of one that was too long
_LONG = re.compile(rf"(.*){_NOTHING}[0-9a-f]{{{DIGITS}}}", re.DOTALL)


def valid(name: str) -> str:
    """A name that MLflow takes; its own where it does. A name that is too long becomes its beginning, and a hash of all."""
    found = _REFUSED.sub(lambda each: f"_x{ord(each[0]):04X}_", name) or _NOTHING
    if len(found) <= MOST:
        return found
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{found[:_KEPT].rstrip('/')}{_NOTHING}{digest[:DIGITS]}"


def original(found: str) -> str:
    """The name that became this one; of one that was too long its beginning."""
    cut = _LONG.fullmatch(found)
    return _WRITTEN.sub(lambda each: _character(each[1]), f"{cut[1]}..." if cut else found)


def is_cut(found: str) -> bool:
    """Whether the name was too long."""
    return _LONG.fullmatch(found) is not None


def text(value: str) -> str:
    """A value that every store takes: what is no text is written as Python escapes it."""
    return value.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def parameter(value: Any) -> str:
    """The value of a parameter, as text."""
    return "null" if value is None else text(str(value))


def of_logged_model(name: str) -> str:
    """A name that MLflow takes for a logged model, of which the run has no other one."""
    return _NOT_OF_LOGGED.sub("-", name)


def registration_problems(key: str, registered: str | None) -> list[str]:
    """The refusal that MLflow would give after the training. key: of the setting; registered: `NAME` or
    `NAME@ALIAS`, None for none."""
    if registered is None:
        return []
    name, mark, alias = registered.partition("@")
    if mark and not _ALIAS.fullmatch(alias):
        why = "it has at most 255 letters, digits, - and _, and MLflow keeps latest, v1 and the like for itself"
        return [coded("mlflow.alias", f"{key}: {alias!r} is no alias of a registered model: {why}")]
    if not _OF_REGISTERED.fullmatch(name):
        return [coded("mlflow.registered-name", f"{key}: MLflow registers no model by the name {name!r}")]
    return []


def _character(number: str) -> str:
    return chr(int(number, 16)) if int(number, 16) <= sys.maxunicode else ""
