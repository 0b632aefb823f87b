"""Options that several modes have in common, so that each is described once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

REST_EVERY = 20
RestEvery = Annotated[
    int, Field(ge=1, description="Steps between two rests, at which all replicas become equal, at most.")
]
