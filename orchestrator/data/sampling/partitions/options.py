"""The options that several partitions have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Clients = Annotated[
    int | None, Field(ge=1, description="Among how many the samples are divided; null: as many as there are shards.")
]
By = Annotated[str, Field(min_length=1, description="What `labels` of the pipeline is asked for.")]
