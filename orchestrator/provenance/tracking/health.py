"""Whether an MLflow server is well, asked in a moment and without MLflow, whose import takes a second.

It refuses no server: behind a gateway MLflow may be able to use a server that does not answer here.
"""

from __future__ import annotations

import http.client
import urllib.request
from urllib.parse import urlsplit

_PATIENCE_S = 2.0
_WELL = b"OK"
_EXPERIMENTS = "/api/2.0/mlflow/experiments/search?max_results=1"


def is_well(uri: str) -> bool:
    """Whether the server at this address says so by itself, without credentials."""
    return _answer(uri, "/health") == _WELL


def is_open(uri: str) -> bool:
    """Whether the server lets everybody read, so that neither a name nor a password can be wrong. It tells how well it is to
    whomever it refuses."""
    return _answer(uri, _EXPERIMENTS)[:1] == b"{"


def _answer(uri: str, path: str) -> bytes:
    """To a request without credentials, its beginning; empty if it is none that counts."""
    parts = urlsplit(uri)
    server = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/"))
    try:
        with urllib.request.urlopen(f"{server.geturl()}{path}", timeout=_PATIENCE_S) as answer:
            return bytes(answer.read(len(_WELL) + 1))
    except (OSError, ValueError, http.client.HTTPException):
        return b""
