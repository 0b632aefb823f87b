"""A mixture of sources trains to one digest, whatever the layout; what does not fit its names is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import Files
from orchestrator.errors import PipelineRaised
from tests.worker.runs import Layout, Run, rotating, train
from tests.worker.test_files import BLOCKS, InMemory, OfRows, written

WEIGHTS = {"a": 0.7, "b": 0.3}


class Few(InMemory):
    def __len__(self) -> int:
        return 3


class OfSources(OfRows):
    """place: of the files of source b; None: they are in memory."""

    def __init__(self, place: str | None = None, names: str = "ab", *, few: bool = False) -> None:
        super().__init__(place)
        self._names = names
        self._few = few

    def datasets(self) -> tuple[Any, Any]:
        kinds = [InMemory(), InMemory() if self._place is None else Files(self._place)]
        if self._few:
            kinds[1] = Few()
        return (dict(zip(self._names, kinds, strict=True)) if self._names else kinds[0]), None


def run(layout: Layout = Layout(1), order: dict[str, Any] | None = None, **args: Any) -> Run:  # noqa: B008
    return train(
        OfSources,
        layout,
        args=args,
        order=order or BLOCKS,
        mixture=WEIGHTS,
        optimizer={"name": "adam", "lr": 0.01},
        shards=4,
        batch_size=12,
        epochs=1,
    )


@pytest.mark.slow
def test_it_is_one_digest_over_layouts_and_places(tmp_path: Path) -> None:
    written(tmp_path)
    reference = run()
    for layout, place in zip(rotating(3, 0), [None, str(tmp_path), None], strict=False):
        again = run(layout, place=place)
        assert (again.trace, again.digest) == (reference.trace, reference.digest)
    assert run(order={"name": "shuffled"}).digest != reference.digest


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ({"names": ""}, "datasets() returned one training set, and data.mixture names a, b"),
        ({"names": "ac"}, "returned the training sets a, c, and data.mixture names a, b"),
        ({"few": True}, "the training set 'b' has 3 samples for 4 shards"),
    ],
)
def test_what_does_not_fit_is_refused(args: dict[str, Any], what: str) -> None:
    with pytest.raises(PipelineRaised) as refused:
        run(**args)
    assert what in refused.value.message
