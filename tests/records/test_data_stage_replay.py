"""The first stage that made something else is named, and what has an explanation is never called divergence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.data_stage_replay import Made, Preparation, Repeated

HASHES = st.sampled_from(["a" * 32, "b" * 32, None])
OUTPUTS = st.builds(Made, st.sampled_from(["data/a", "data/b"]), HASHES, HASHES)
STAGES = st.builds(
    Repeated,
    st.sampled_from(["clean", "split"]),
    st.lists(OUTPUTS, min_size=1, max_size=2).map(tuple),
    st.lists(st.just("clean.py is modified"), max_size=1).map(tuple),
)


@given(st.lists(STAGES, min_size=1, max_size=4), st.lists(st.just("package numpy: 1 -> 2"), max_size=1))
def test_it_is_exact_only_if_every_output_is_the_recorded_one(stages: list[Repeated], surroundings: list[str]) -> None:
    found = Preparation(tuple(stages), tuple(surroundings))
    made = [output for stage in stages for output in stage.outputs]
    parted = [each for each in made if each.got is None or each.expected not in (None, each.got)]
    assert (found.word == "exact") == (not parted) == (found.parted is None)
    assert [each["same"] for each in found.as_list()] == [not stage.parted for stage in stages]
    if found.parted is not None:
        explained = bool(surroundings or found.parted.changed)
        assert found.word == ("inputs-differ" if explained else "diverged")
        assert f"stage {found.parted.stage}: {parted[0].text}" in found.text
        assert found.text.startswith(f"{found.word}: {surroundings[0] if surroundings else ''}")


def test_what_is_said() -> None:
    same = Repeated("clean", (Made("data/clean.csv", "a" * 32, "a" * 32),))
    other = Repeated("split", (Made("data/parts", "b" * 32 + ".dir", "c" * 32 + ".dir", ("train.csv",)),))
    assert Preparation((same,)).text == "from the raw data on: stage clean made data/clean.csv again, byte for byte"
    parting = "stage split: data/parts was bbbbbbbbbbbb, is cccccccccccc (train.csv); the 1 stage before agrees"
    assert Preparation((same, other)).text == f"diverged: {parting}"
    assert (
        Preparation((same, other), ("package numpy: 1 -> 2",)).text
        == f"inputs-differ: package numpy: 1 -> 2. {parting}"
    )
    assert Made("data/parts", "b" * 32, None).text == "data/parts was not made"
