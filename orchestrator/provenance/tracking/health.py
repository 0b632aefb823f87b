"""Whether an MLflow server is well, asked in a moment and without MLflow, whose import takes a second.

It refuses no server: behind a gateway MLflow may be able to use a server that does not answer here.
"""

from __future__ import annotations

import http.client
import urllib.request
from urllib.parse import urlsplit

_PATIENCE_S = 2.0
_WELL = b"OK"


def is_well(uri: str) -> bool:
    """Whether the server at this address says so by itself, without credentials."""
    parts = urlsplit(uri)
    place = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=f"{parts.path.rstrip('/')}/health")
    try:
        with urllib.request.urlopen(place.geturl(), timeout=_PATIENCE_S) as answer:
            return bytes(answer.read(len(_WELL) + 1)) == _WELL
    except (OSError, ValueError, http.client.HTTPException):
        return False
