"""The numbers of shards that members computed, from their reports of their time, and in words."""

from __future__ import annotations

from typing import Any

from orchestrator.records.times import sentence_of_shards, shards_by_member

WINDOWS: list[dict[str, Any]] = [
    {"member": "worker 10", "shards": [3, 0]},
    {"member": "worker 2", "shards": [1200, 30]},
    {"member": "server 3"},
    {"member": "worker 2", "shards": [34, 10]},
]


def test_what_members_have_told_is_added_up() -> None:
    assert shards_by_member(WINDOWS) == {"worker 2": (1234, 40), "worker 10": (3, 0)}


def test_in_words() -> None:
    assert sentence_of_shards(shards_by_member(WINDOWS)) == "worker 2 1,234 (40 of others), worker 10 3"
    assert sentence_of_shards({}) == ""


def test_of_many_only_the_most_and_the_fewest_are_named() -> None:
    many = {f"worker {number}": (10 + number, number % 2) for number in range(8)}
    assert sentence_of_shards(many) == "worker 7 17 (1 of others), worker 0 10, all 8 workers 108 (4 of others)"
