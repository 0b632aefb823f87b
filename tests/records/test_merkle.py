"""Lines of a trace against its root: what was changed, swapped, dropped, added or moved is refused."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import merkle

LINES = st.lists(st.binary(max_size=4), min_size=1, max_size=40, unique=True)


def leaves(lines: Sequence[bytes]) -> list[bytes]:
    return [merkle.leaf(line) for line in lines]


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[bytes], int, int]:
    """Lines, and some of them that follow each other."""
    lines = draw(LINES)
    begin = draw(st.integers(0, len(lines) - 1))
    return lines, begin, draw(st.integers(begin + 1, len(lines)))


def test_the_roots_are_those_of_rfc_6962() -> None:
    """The test vectors of certificate-transparency's own tree."""
    inputs = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    roots = {
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    }
    hashed = leaves([bytes.fromhex(each) for each in inputs])
    assert {count: merkle.head(hashed[:count]) for count in roots} == {n: f"{n}:{root}" for n, root in roots.items()}
    assert merkle.head([]) == f"0:{hashlib.sha256().hexdigest()}"


@given(parts())
def test_any_lines_are_those_of_their_root(part: tuple[list[bytes], int, int]) -> None:
    lines, begin, end = part
    whole = leaves(lines)
    beside = merkle.path(whole, begin, end)
    assert merkle.holds(merkle.head(whole), begin, whole[begin:end], beside)
    assert len(beside) <= 2 * len(lines).bit_length()


@given(parts(), st.binary(max_size=4), st.data())
def test_changed_swapped_dropped_and_added_lines_are_refused(
    part: tuple[list[bytes], int, int], other: bytes, data: st.DataObject
) -> None:
    lines, begin, end = part
    whole = leaves(lines)
    told, beside, some = merkle.head(whole), merkle.path(whole, begin, end), lines[begin:end]
    at = data.draw(st.integers(0, len(some) - 1))
    changed = [*some[:at], other, *some[at + 1 :]]
    assert merkle.holds(told, begin, leaves(changed), beside) == (changed == some)
    for first, second in itertools.combinations(range(len(some)), 2):
        swapped = list(some)
        swapped[first], swapped[second] = some[second], some[first]
        assert not merkle.holds(told, begin, leaves(swapped), beside)
    assert not merkle.holds(told, begin, leaves([*some[:at], *some[at + 1 :]]), beside)
    assert not merkle.holds(told, begin, leaves([*some[:at], other, *some[at:]]), beside)


@given(parts(), st.integers(-2, 45), st.integers(0, 45))
def test_lines_at_another_place_or_of_another_length_are_refused(
    part: tuple[list[bytes], int, int], elsewhere: int, length: int
) -> None:
    lines, begin, end = part
    whole = leaves(lines)
    told, beside = merkle.head(whole), merkle.path(whole, begin, end)
    root = told.partition(":")[2]
    assert merkle.holds(told, elsewhere, whole[begin:end], beside) == (elsewhere == begin)
    if length != len(lines) and beside == []:
        assert not merkle.holds(f"{length}:{root}", begin, whole[begin:end], beside)


@given(parts(), st.data())
def test_a_path_with_another_hash_is_refused(part: tuple[list[bytes], int, int], data: st.DataObject) -> None:
    lines, begin, end = part
    whole = leaves(lines)
    told, beside = merkle.head(whole), merkle.path(whole, begin, end)
    assert not merkle.holds(told, begin, whole[begin:end], [*beside, merkle.leaf(b"more")])
    if beside:
        at = data.draw(st.integers(0, len(beside) - 1))
        assert not merkle.holds(told, begin, whole[begin:end], [*beside[:at], *beside[at + 1 :]])
        changed = [*beside[:at], merkle.leaf(b"another line"), *beside[at + 1 :]]
        assert not merkle.holds(told, begin, whole[begin:end], changed)


@pytest.mark.parametrize("told", ["", "3", "3:00", f"x:{'0' * 64}", f"3:{'g' * 64}", f"-1:{'0' * 64}"])
def test_what_is_no_head_is_refused(told: str) -> None:
    with pytest.raises(ValueError, match=r"no head|hexadecimal"):
        merkle.parsed(told)
