"""Reports of several members about one run, merged into the lines of its files; differences between them are found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records.merging import Change, Disagreement, Entry, History, Merger
from orchestrator.records.trace import Line, line

TRACE: list[Line] = [line(step, 1 / (step + 1), step, "digest" if step % 3 == 2 else None) for step in range(9)]


def added(merger: Merger, lines: list[Line]) -> list[Line]:
    for entry in lines:
        merger.add(entry)
    change = merger.change()
    assert not change.replaces
    return change.new


@st.composite
def interleavings(draw: st.DrawFn) -> list[list[Line]]:
    """Pieces of the trace, until each of 1 to 4 reporters has sent all of it; in order, or each piece at any time."""
    sent = [0] * draw(st.integers(1, 4))
    batches: list[list[Line]] = []
    while waiting := [reporter for reporter, count in enumerate(sent) if count < len(TRACE)]:
        reporter = draw(st.sampled_from(waiting))
        count = draw(st.integers(1, len(TRACE) - sent[reporter]))
        batches.append(TRACE[sent[reporter] : sent[reporter] + count])
        sent[reporter] += count
    return draw(st.permutations(batches)) if draw(st.booleans()) else batches


@given(interleavings(), st.sets(st.integers(0, 9), min_size=2))
def test_of_ranges_any_interleaving_gives_their_lines_once(batches: list[list[Line]], borders: set[int]) -> None:
    """The steps that an audit repeats have gaps; no line behind one waits for what is not computed."""
    ordered = sorted(borders)
    ranges = list(zip(ordered[::2], ordered[1::2], strict=False))
    computed = [entry for first, end in ranges for entry in TRACE[first:end]]
    merger = Merger(ranges=ranges)
    written = [new for lines in batches for new in added(merger, [entry for entry in lines if entry in computed])]
    assert written == computed


@given(interleavings())
def test_any_interleaving_gives_the_trace_once(batches: list[list[Line]]) -> None:
    """A line comes out as soon as it and all before it have come."""
    merger = Merger()
    written: list[Line] = []
    seen: set[int] = set()
    for lines in batches:
        seen |= {entry["step"] for entry in lines}
        written += added(merger, lines)
        whole = next(step for step in range(len(TRACE) + 1) if step not in seen)
        assert written == TRACE[:whole]
        assert merger.written == whole
    assert written == TRACE


WHAT = [(step, what) for step in range(9) for what in TRACE[step] if what != "step"]


@given(interleavings(), interleavings(), st.sampled_from(WHAT))
def test_a_replica_that_parts_is_found(
    batches: list[list[Line]], others: list[list[Line]], place: tuple[int, str]
) -> None:
    """The second report of the step tells, no matter which reporter is wrong and when."""
    step, what = place
    wrong = [[{**entry, what: "other"} if entry["step"] == step else entry for entry in lines] for lines in others]
    for first, second in ((batches, wrong), (wrong, batches)):
        merger = Merger()
        for lines in first:
            added(merger, lines)
        with pytest.raises(Disagreement, match=f"the {what} of step {step}:"):
            added(merger, [entry for lines in second for entry in lines])


@given(st.integers(0, 9), st.sampled_from(WHAT))
def test_steps_that_are_computed_again_are_compared_with_what_they_were(start: int, place: tuple[int, str]) -> None:
    """After a resume from step `start` the lines from there on are written anew."""
    step, what = place
    merger = Merger(start)
    merger.expect(TRACE[start:])
    assert added(merger, TRACE[start:]) == TRACE[start:]
    again = Merger(start)
    again.expect(TRACE[start:])
    spoilt: list[Line] = [{**entry, what: "other"} if entry["step"] == step else entry for entry in TRACE[start:]]
    if step < start:
        assert added(again, spoilt) == TRACE[start:]
    else:
        with pytest.raises(Disagreement):
            added(again, spoilt)


def test_a_digest_that_only_one_has_is_no_contradiction() -> None:
    merger = Merger()
    assert added(merger, [line(0, 1.0, 1)]) == [line(0, 1.0, 1)]
    assert added(merger, [line(0, 1.0, 1, "digest")]) == []
    with pytest.raises(Disagreement, match="gradient"):
        added(merger, [line(0, 1.0, 2)])


def rest(number: int, steps: int, content: int) -> Entry:
    return {"rest": number, "steps": steps, "content": content}


AsyncPhase = list[Entry]  # the lines of a sprint, then its rest, as a member reports them
Sent = list[dict[str, Any]]


@st.composite
def sprints(draw: st.DrawFn, number: int, steps: int) -> AsyncPhase:
    """Few contents, so that what is done again often comes out the same; where a sprint ends a line may have a digest."""
    lines = [line(steps + i, 1.0, draw(st.integers(0, 1))) for i in range(draw(st.integers(0, 2)))]
    if lines and (digest := draw(st.integers(0, 2))):
        lines[-1]["parameters"] = str(digest)
    return [*({"trace": each} for each in lines), {"rest": rest(number, steps + len(lines), draw(st.integers(0, 1)))}]


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[list[AsyncPhase]], list[Sent]]:
    """The rests that each generation of a run came to, and the reports that each member sent in its life.

    A generation goes on from some rest of the one before, or of a checkpoint; whoever died may have been farther. Somebody
    may report the rest from which it goes on once more. A member that joins takes over the reports that are not acknowledged.
    """
    chain: list[AsyncPhase] = []
    made: list[list[AsyncPhase]] = []
    sent: list[Sent] = [[]]  # member 0 outlives all
    for generation in range(draw(st.integers(1, 4))):
        start = draw(st.integers(max(0, len(chain) - 3), len(chain)))
        chain = chain[:start]
        for number in range(start, start + draw(st.integers(0, 3))):
            steps = chain[-1][-1]["rest"]["steps"] if chain else 0
            chain.append(draw(sprints(number, steps)))
        again = start - 1 if start and draw(st.booleans()) else start
        told = [{**entry, "generation": generation} for sprint in chain[again:] for entry in sprint]
        for _ in range(draw(st.integers(0, 2))):
            sent.append([*sent[0], *told[: draw(st.integers(0, len(told)))]])
        sent[0] += told
        made.append(list(chain))
    return made, sent


@st.composite
def arrivals(draw: st.DrawFn, sent: list[Sent]) -> list[tuple[int, Sent]]:
    """Batches of what members sent, each member's in order."""
    places, batches = [0] * len(sent), []
    while waiting := [member for member, place in enumerate(places) if place < len(sent[member])]:
        member = draw(st.sampled_from(waiting))
        count = draw(st.integers(1, len(sent[member]) - places[member]))
        batches.append((member, sent[member][places[member] : places[member] + count]))
        places[member] += count
    return batches


def applied(file: list[Entry], change: Change) -> list[Entry]:
    assert change.replaces == (change.kept < len(file))
    return [*file[: change.kept], *change.new]


@given(st.data())
def test_what_is_done_again_replaces_what_was_done(data: st.DataObject) -> None:
    """The files hold what one of the generations came to, and all that the last one did."""
    made, sent = data.draw(lives())
    history = History(supersedes=True)
    trace: list[Entry] = []
    rests: list[Entry] = []
    for _, batch in data.draw(arrivals(sent)):
        of_trace, of_rests = history.add(batch)
        trace, rests = applied(trace, of_trace), applied(rests, of_rests)
    as_made = [_files(chain) for chain in made]
    assert any((trace, rests) == (lines[: len(trace)], records[: len(rests)]) for lines, records in as_made)
    lines, records = as_made[-1]
    assert (trace[: len(lines)], rests[: len(records)]) == (lines, records)


def _files(chain: list[AsyncPhase]) -> tuple[list[Entry], list[Entry]]:
    entries = [entry for sprint in chain for entry in sprint]
    return [each["trace"] for each in entries if "trace" in each], [each["rest"] for each in entries if "rest" in each]


@pytest.mark.parametrize("entry", [{"trace": line(0, 1.0, 2)}, {"rest": rest(0, 1, 2)}])
def test_copies_of_one_generation_are_equal(entry: Entry) -> None:
    history = History(supersedes=True)
    history.add([{"trace": line(0, 1.0, 1), "generation": 3}, {"rest": rest(0, 1, 1), "generation": 3}])
    history.add([{"trace": line(0, 1.0, 1), "generation": 4}, {"rest": rest(0, 1, 1), "generation": 4}])
    for generation in (3, 4):
        with pytest.raises(Disagreement, match=r"of (step|rest) 0: "):
            history.add([{**entry, "generation": generation}])
    assert any(change.replaces for change in history.add([{**entry, "generation": 5}]))


def test_a_digest_of_a_sprint_that_was_done_again_and_ended_elsewhere_is_gone() -> None:
    """Simulated run 415: all were lost, and the run began anew with the same updates and other rests."""
    history = History(supersedes=True)
    history.add([{"trace": {**line(0, 1.0, 1), "parameters": "a1"}, "generation": 0}])
    assert history.add([{"trace": line(0, 1.0, 1), "generation": 1}])[0] == Change(0, [line(0, 1.0, 1)], replaces=True)
    late = [{"trace": {**line(0, 1.0, 1), "parameters": "a1"}, "generation": 0}]
    assert not history.add(late)[0].new


def test_what_a_replay_does_again_is_equal() -> None:
    history = History()
    history.add([{"rest": rest(0, 0, 1), "generation": 0}])
    with pytest.raises(Disagreement, match="replicas disagree about the content of rest 0"):
        history.add([{"rest": rest(0, 0, 2), "generation": 1}])


def test_a_run_that_is_resumed_goes_back_behind_what_is_remembered() -> None:
    """Its newest checkpoint is damaged, and an older one counts."""
    history = History(lines=5, barriers=3, supersedes=True)
    entries = [{"trace": line(2, 1.0, 1), "generation": 4}, {"rest": rest(1, 3, 1), "generation": 4}]
    lines, rests = history.add(entries)
    assert lines == Change(2, [line(2, 1.0, 1)], replaces=True)
    assert rests == Change(1, [rest(1, 3, 1)], replaces=True)
    assert history.add(entries) == (Change(3, [], last=line(2, 1.0, 1)), Change(2, [], last=rest(1, 3, 1)))
