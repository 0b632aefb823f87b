"""The identity changes with everything that determines a result, and with nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.records import identity

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
mappings = st.dictionaries(st.text(max_size=5), plain, max_size=4)
MADE: dict[str, Any] = {
    "code_tree": "t",
    "elsewhere": {},
    "data": {"data/a": "1.dir", "b": "2"},
    "settings": {"run.seed": 1, "optimizer.lr": 0.001},
    "environment": [{"cpu": "x", "variables": {"MKL_CBWR": "AUTO"}}],
    "initial_parameters": "p",
}
PART_OF = {"code_tree": "code", "elsewhere": "code"}


def test_the_identity_is_known() -> None:
    """A change of this value is a new FORMAT: recorded identities would not match any more."""
    assert identity.of(identity.parts(**MADE)) == "c56889d9c5f06d33adbcc4964f1cc525ee9a1d71a8aa7479af87fad31e1662fe"


@pytest.mark.parametrize(
    ("argument", "other"),
    [
        ("code_tree", "u"),
        ("elsewhere", {"helper": "3"}),
        ("data", {"data/a": "1.dir", "b": "3"}),
        ("data", {"data/a": "1.dir"}),
        ("settings", {"run.seed": 2, "optimizer.lr": 0.001}),
        ("settings", {"run.seed": 1, "optimizer.lr": 0.0010000000000000002}),
        ("environment", [{"cpu": "y", "variables": {"MKL_CBWR": "AUTO"}}]),
        ("environment", [*MADE["environment"], {"cpu": "y"}]),
        ("initial_parameters", "q"),
    ],
)
def test_every_part_counts_and_is_named(argument: str, other: Any) -> None:
    before, after = identity.parts(**MADE), identity.parts(**{**MADE, argument: other})
    assert identity.of(before) != identity.of(after)
    assert [name for name in before if before[name] != after[name]] == [PART_OF.get(argument, argument)]


def test_orders_and_numbers_of_nodes_do_not_count() -> None:
    same = copy.deepcopy(MADE)
    same["settings"] = dict(reversed(same["settings"].items()))
    same["data"] = {"b": "2", "./data//a": "1.dir"}
    same["environment"] = [dict(reversed(node.items())) for node in same["environment"] * 3]
    assert identity.of(identity.parts(**same)) == identity.of(identity.parts(**MADE))


@pytest.mark.slow
@settings(max_examples=50)
@given(mappings, mappings)
def test_equal_mappings_and_only_those_have_one_hash(left: dict[str, Any], right: dict[str, Any]) -> None:
    def part(chosen: dict[str, Any]) -> str:
        return identity.parts(**{**MADE, "settings": chosen})["settings"]

    assert part(left) == part(dict(reversed(left.items()))) == part(json.loads(json.dumps(left)))
    assert (part(left) == part(right)) == (json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True))


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError):
        identity.parts(**{**MADE, "settings": {"a": object()}})
