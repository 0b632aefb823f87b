"""Files of a server are compared with what was sent by their size: a gateway may answer in its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.provenance.tracking import Store, uploads
from orchestrator.provenance.tracking.uploads import NotThere, Sizes
from tests.refusals import refused


def listing(**sizes: int | None) -> list[Any]:
    """As a server lists them; a folder has the size -1."""
    return [SimpleNamespace(path=path, file_size=size, is_dir=size == -1) for path, size in sizes.items()]


def test_a_file_is_there_with_a_size_that_it_had_while_it_was_sent() -> None:
    sent = {"a": Sizes(3, 5), "b": Sizes(0, 0), "c": Sizes(7, 7), "d": Sizes(1, 1)}
    with pytest.raises(NotThere, match="has not got a, though") as caught:
        uploads.check(sent, lambda _: listing(a=2, b=0, c=8, d=-1))
    assert caught.value.paths == ["a", "c", "d"]
    uploads.check(sent, lambda _: listing(a=4, b=0, c=None, d=1, e=9))


def test_a_file_that_came_as_something_else_is_not_taken_for_the_run_s(tmp_path: Path) -> None:
    page = b"<html>Sign in</html>"

    class Client:
        size = 3

        def list_artifacts(self, *_: str) -> list[Any]:
            return listing(**{"run/trace.jsonl": self.size})

        def download_artifacts(self, _run: str, path: str, place: str) -> str:
            found = Path(place) / Path(path).name
            found.write_bytes(page)
            return str(found)

    store = Store(None, tmp_path)
    client: Any = Client()
    store.client = client
    with refused("mlflow.unusable", "run/trace.jsonl came as something else"):
        store.fetch("r", "run", tmp_path)
    assert not (tmp_path / "trace.jsonl").exists()
    client.size = len(page)
    store.fetch("r", "run", tmp_path)
    assert (tmp_path / "trace.jsonl").read_bytes() == page
