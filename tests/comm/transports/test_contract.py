"""The promises of `base.Transport`, over every transport there is."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

import pytest
import torch

from orchestrator.comm.transports.base import (
    DeadlineExceeded,
    PeerLeft,
    PeerLost,
    ProtocolError,
    Received,
    Tag,
    Transport,
)
from orchestrator.comm.transports.frames import DTYPES
from tests.comm.transports.worlds import PATIENCE_S, TAG, World, together
from tests.products import thinned

pytestmark = pytest.mark.threads


def tag(step: int) -> Tag:
    return TAG._replace(step=step)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def poll_until(transport: Transport, count: int, phases: Collection[int] = (0,)) -> list[tuple[int, Tag, Received]]:
    """`count` messages, and no more."""
    came: list[tuple[int, Tag, Received]] = []
    while len(came) < count:
        came += transport.poll(phases, PATIENCE_S)
    assert len(came) == count
    return came


def receive(transport: Transport, peer: int, step: int = 0) -> Received:
    return transport.receive(peer, tag(step), PATIENCE_S)


def test_messages_of_one_peer_arrive_in_order_whatever_others_send(world: World) -> None:
    first, second, third = world.members(3)
    for step in range(100):
        first.transport.send(2, tag(step), numbers(step))
        second.transport.send(2, tag(step), numbers(-step))
    assert [receive(third.transport, 1, step).payload.item() for step in range(100)] == [-step for step in range(100)]
    assert [receive(third.transport, 0, step).payload.item() for step in range(100)] == list(range(100))


@pytest.mark.parametrize("field", Tag._fields)
def test_another_tag_than_the_expected_is_a_fault(world: World, field: str) -> None:
    sender, receiver = world.members(2)
    sender.transport.send(1, TAG, numbers(1))
    with pytest.raises(ProtocolError, match=f"expected .*{field}=7.* from member 0, got .*{field}="):
        receiver.transport.receive(0, TAG._replace(**{field: 7}), PATIENCE_S)


def test_tags_and_notes_survive_at_their_limits(world: World) -> None:
    sender, receiver = world.members(2)
    limits = [Tag(2**63 - 1, 2**63 - 1, 2**31 - 1, 2**31 - 1, 2**31 - 1), Tag(-1, -1, -1, -1, -1)]
    for each in limits:
        for note in (-(2**63), -1, 0, 2**63 - 1):
            sender.transport.send(1, each, numbers(1), note)
            assert receiver.transport.receive(0, each, PATIENCE_S).note == note


def test_a_stranger_is_a_fault(world: World) -> None:
    member, _ = world.members(2)
    with pytest.raises(ProtocolError, match="member 5"):
        member.transport.send(5, TAG, numbers(1))
    with pytest.raises(ProtocolError, match="member 0"):
        member.transport.receive(0, TAG, PATIENCE_S)


@pytest.mark.parametrize("in_region", [True, False])
def test_every_dtype_arrives_with_its_bits(world: World, in_region: bool) -> None:
    sender, receiver = world.members(2)
    region = sender.regions.allocate(24, torch.uint8)
    for step, dtype in enumerate(DTYPES):
        top = 2 if dtype is torch.bool else 256
        bits = torch.randint(top, (24,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
        payload = bits.view(dtype)
        if in_region:
            payload = region.copy_(bits).view(dtype)
        sender.transport.send(1, tag(step), payload)
        received = receive(receiver.transport, 0, step).payload
        assert received.dtype == dtype
        assert torch.equal(received.view(torch.uint8), bits), dtype


def test_a_payload_may_be_empty(world: World) -> None:
    sender, receiver = world.members(2)
    region = sender.regions.allocate(4, torch.float64)
    for step, payload in enumerate([torch.empty(0), torch.empty(0, dtype=torch.int32), region[2:2], region]):
        sender.transport.send(1, tag(step), payload, note=step)
        received = receive(receiver.transport, 0, step)
        assert (received.payload.shape, received.payload.dtype) == (payload.shape, payload.dtype)
        assert received.note == step


@pytest.mark.parametrize("polls", [False, True])
def test_a_payload_in_a_region_is_read_in_place(world: World, polls: bool) -> None:
    sender, receiver = world.members(2)
    region = sender.regions.allocate(8, torch.float32)
    region.copy_(torch.arange(8))
    sender.transport.send(1, TAG, region[2:5])
    received = (poll_until(receiver.transport, 1)[0][2] if polls else receive(receiver.transport, 0)).payload
    assert received.tolist() == [2, 3, 4]
    region.add_(10)
    assert received.tolist() == ([12, 13, 14] if world.shares else [2, 3, 4])


def test_a_payload_outside_regions_is_copied_before_send_returns(world: World) -> None:
    sender, receiver = world.members(2)
    payloads = [torch.ones(3), torch.ones(1_000_000)]  # the large one is more than a kernel buffers
    for payload in payloads:
        sender.transport.send(1, TAG, payload)
        payload.fill_(2)

    def read() -> list[bool]:
        return [bool((receive(receiver.transport, 0).payload == 1).all()) for _ in payloads]

    def flush() -> list[bool]:
        sender.transport.flush(PATIENCE_S)
        return []

    assert together([read, flush])[0] == [True, True]


def test_flush_notices_a_loss(world: World) -> None:
    member, _, dead = world.members(3)
    member.transport.flush(0.0)
    member.transport.send(1, TAG, torch.ones(5_000_000))
    dead.transport.abort()
    with pytest.raises(PeerLost) as raised:
        member.transport.flush(PATIENCE_S)
    assert raised.value.peer == 2
    member.transport.abort()
    with pytest.raises(ConnectionAbortedError):
        member.transport.flush(PATIENCE_S)


def test_a_received_copy_belongs_to_the_receiver(world: World) -> None:
    sender, receiver = world.members(2)
    for step in range(3):
        sender.transport.send(1, tag(step), torch.full((1000,), float(step)))
    received = [receive(receiver.transport, 0, step).payload for step in range(3)]
    received[0].fill_(-1)
    assert [payload[0].item() for payload in received] == [-1, 1, 2]


def test_a_payload_that_needs_a_gradient_is_sent_as_numbers(world: World) -> None:
    sender, receiver = world.members(2)
    sender.transport.send(1, TAG, torch.ones(2, requires_grad=True))
    assert not receive(receiver.transport, 0).payload.requires_grad


@pytest.mark.parametrize(
    "payload", [torch.ones(2, 2), torch.ones(()), torch.ones(4)[::2], torch.ones(2, device="meta")]
)
def test_other_payloads_are_refused(world: World, payload: torch.Tensor) -> None:
    sender, _ = world.members(2)
    with pytest.raises(ValueError, match="1-D, contiguous"):
        sender.transport.send(1, TAG, payload)


@pytest.mark.parametrize("count", [2, 3])
def test_large_payloads_both_ways_at_once_do_not_block(world: World, count: int) -> None:
    members = world.members(count)

    def exchange(rank: int) -> list[float]:
        others = [peer for peer in range(count) if peer != rank]
        for peer in others:
            members[rank].transport.send(peer, TAG, torch.full((2_000_000,), float(rank)))
        got = [receive(members[rank].transport, peer).payload[-1].item() for peer in others]
        members[rank].transport.flush(PATIENCE_S)
        return got

    got = together([partial(exchange, rank) for rank in range(count)])
    assert got == [[peer for peer in range(count) if peer != rank] for rank in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_of_messages_arrives_as_sent(world: World, seed: int) -> None:
    count, rounds = 3, 60
    members = world.members(count)
    regions = [member.regions.allocate(16_000, torch.float32) for member in members]
    for rank, region in enumerate(regions):
        region.copy_(torch.arange(16_000) + rank)

    def payload(source: int, target: int, step: int) -> torch.Tensor:
        draw = random.Random(f"{seed} {source} {target} {step}")
        if draw.random() < 0.5:
            return torch.full((draw.choice([0, 1, 100, 30_000]),), draw.random(), dtype=draw.choice(DTYPES[:2]))
        start = draw.randrange(16_000)
        return regions[source][start : start + draw.randrange(16_000)]

    def live(rank: int) -> bool:
        others = [peer for peer in range(count) if peer != rank]
        transport, intact = members[rank].transport, True
        for step in range(rounds):
            for peer in others:
                transport.send(peer, tag(step), payload(rank, peer, step), note=step - rank)
            for peer in random.Random(f"{seed} {rank} {step}").sample(others, len(others)):
                received, sent = receive(transport, peer, step), payload(peer, rank, step)
                intact &= torch.equal(received.payload, sent) and received.payload.dtype == sent.dtype
                intact &= received.note == step - peer
        members[rank].transport.flush(PATIENCE_S)
        return intact

    assert all(together([partial(live, rank) for rank in range(count)]))


def test_the_deadline_ends_a_wait_and_nothing_else(world: World) -> None:
    sender, receiver = world.members(2)
    for timeout_s in (0.0, 0.05):
        with pytest.raises(DeadlineExceeded, match="member 0") as raised:
            receiver.transport.receive(0, TAG, timeout_s)
        assert raised.value.peer == 0
    sender.transport.send(1, TAG, numbers(4))
    assert receive(receiver.transport, 0).payload.item() == 4


def test_a_message_that_is_there_needs_no_time(world: World) -> None:
    sender, receiver = world.members(2)
    for step in range(2):
        sender.transport.send(1, tag(step), numbers(step))
    receive(receiver.transport, 0, 0)  # the second lies behind it
    assert receiver.transport.receive(0, tag(1), 0.0).payload.item() == 1


@pytest.mark.parametrize("leave", ["close", "abort"])
def test_what_was_sent_before_the_end_is_received_first(world: World, leave: str) -> None:
    sender, receiver = world.members(2)
    region = sender.regions.allocate(1000, torch.float32)
    sender.transport.send(1, tag(0), numbers(0))
    sender.transport.send(1, tag(1), region)
    getattr(sender.transport, leave)()
    assert receive(receiver.transport, 0, 0).payload.item() == 0
    assert receive(receiver.transport, 0, 1).payload.shape == region.shape
    with pytest.raises(PeerLost, match="member 0") as raised:
        receive(receiver.transport, 0, 2)
    assert raised.value.peer == 0
    assert isinstance(raised.value, PeerLeft) == (leave == "close")


def test_close_delivers_large_payloads_to_a_peer_whose_own_were_never_read(world: World) -> None:
    first, second = world.members(2)
    second.transport.send(0, TAG, torch.ones(100_000))
    first.transport.send(1, TAG, torch.ones(1_000_000))

    def read() -> bool:
        return bool((receive(second.transport, 0).payload == 1).all())

    def leave() -> bool:
        first.transport.close()
        return True

    assert together([read, leave]) == [True, True]


def test_a_farewell_disturbs_nobody_who_waits_for_another(world: World) -> None:
    leaver, sender, receiver = world.members(3)
    leaver.transport.close()
    with pytest.raises(DeadlineExceeded):
        receiver.transport.receive(1, TAG, 0.05)
    sender.transport.send(2, TAG, numbers(1))
    assert receive(receiver.transport, 1).payload.item() == 1


def test_the_loss_of_a_third_member_ends_the_wait(world: World) -> None:
    dead, silent, waiting = world.members(3)

    def die() -> None:
        receive(dead.transport, 2)
        dead.transport.abort()

    def wait() -> int:
        waiting.transport.send(0, TAG, numbers(0))
        with pytest.raises(PeerLost) as raised:
            receive(waiting.transport, 1)
        return raised.value.peer

    assert together([die, wait])[1] == 0
    silent.transport.send(2, TAG, numbers(7))
    assert receive(waiting.transport, 1).payload.item() == 7  # what came is delivered, loss or not
    with pytest.raises(PeerLost):
        receive(waiting.transport, 1)  # and nobody waits again
    with pytest.raises(PeerLost) as raised:
        waiting.transport.send(0, TAG, numbers(0))
    assert raised.value.peer == 0


def test_nothing_is_sent_to_who_has_left(world: World) -> None:
    leaver, member = world.members(2)
    leaver.transport.close()
    with pytest.raises(PeerLeft, match="it has left"):
        receive(member.transport, 0)
    with pytest.raises(PeerLeft, match="it has left"):
        member.transport.send(0, TAG, numbers(0))


def test_who_finds_out_by_sending_still_receives_what_came_before(world: World) -> None:
    leaver, member = world.members(2)
    leaver.transport.send(1, TAG, numbers(8))
    leaver.transport.close()

    def send_on() -> None:
        while True:  # a kernel takes a few before it hears that nobody listens
            member.transport.send(0, TAG, numbers(0))

    with pytest.raises(PeerLeft, match="it has left"):
        send_on()
    assert receive(member.transport, 0).payload.item() == 8


@pytest.mark.parametrize("first", ["close", "abort"])
@pytest.mark.parametrize("second", ["close", "abort"])
def test_closing_twice_is_safe_and_the_first_time_counts(world: World, first: str, second: str) -> None:
    member, peer = world.members(2)
    getattr(member.transport, first)()
    getattr(member.transport, second)()
    verbs: list[Callable[[], object]] = [
        lambda: member.transport.send(1, TAG, numbers(1)),
        lambda: receive(member.transport, 1),
    ]
    for verb in verbs:
        with pytest.raises(ConnectionAbortedError, match="closed on this side"):
            verb()
    with pytest.raises(PeerLost) as raised:
        receive(peer.transport, 0)
    assert isinstance(raised.value, PeerLeft) == (first == "close")


@pytest.mark.parametrize("attempt", range(5))
def test_abort_from_another_thread_ends_a_wait(world: World, attempt: int) -> None:
    member, peer = world.members(2)
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        with pytest.raises(ConnectionAbortedError):
            receive(member.transport, 1)

    def abort() -> None:
        entered.wait()
        for _ in range(attempt):  # a little later each time: before, at and after the start of the wait
            with pytest.raises(DeadlineExceeded):
                peer.transport.receive(0, TAG, 0.001)
        member.transport.abort()

    together([wait, abort])
    with pytest.raises(PeerLost):
        receive(peer.transport, 0)


def test_a_view_outlives_transport_and_regions(world: World) -> None:
    sender, receiver = world.members(2)
    region = sender.regions.allocate(1000, torch.float32)
    region.fill_(3)
    sender.transport.send(1, TAG, region)
    received = receive(receiver.transport, 0).payload
    sender.transport.close()
    receiver.transport.close()
    sender.regions.close()
    assert bool((received == 3).all())


def test_a_farewell_comes_through_to_one_who_reads_late(world: World) -> None:
    leaver, late = world.members(2)
    leaver.transport.send(1, TAG, numbers(1))
    leaver.transport.close(0.0)
    assert receive(late.transport, 0).payload.item() == 1
    with pytest.raises(PeerLeft):
        receive(late.transport, 0)


def test_a_peer_that_does_not_read_holds_no_farewell_up(world: World) -> None:
    leaver, _ = world.members(2)
    leaver.transport.send(1, TAG, torch.ones(5_000_000))  # more than a kernel buffers
    began = time.monotonic()
    leaver.transport.close(0.1)
    assert time.monotonic() - began < 2.0


def test_poll_takes_from_everybody_each_ones_in_order(world: World) -> None:
    first, second, third = world.members(3)
    for step in range(100):
        first.transport.send(2, tag(step), numbers(step), note=step)
        second.transport.send(2, tag(step)._replace(phase=1), numbers(-step), note=-step)
    came = poll_until(third.transport, 200, {0, 1})
    for peer, sign in ((0, 1), (1, -1)):
        of_peer = [(its_tag, received) for source, its_tag, received in came if source == peer]
        assert [its_tag for its_tag, _ in of_peer] == [tag(step)._replace(phase=peer) for step in range(100)]
        assert [received.note for _, received in of_peer] == [sign * step for step in range(100)]
        assert [received.payload.item() for _, received in of_peer] == [sign * step for step in range(100)]
    assert third.transport.poll({0, 1}, 0.0) == []


def test_an_early_vote_stays_queued_and_what_was_sent_after_it(world: World) -> None:
    voter, other, member = world.members(3)
    vote = TAG._replace(phase=2)
    for note, each in enumerate([tag(0), vote, tag(1)]):
        voter.transport.send(2, each, numbers(1), note)
    other.transport.send(2, tag(5), numbers(1))
    came = poll_until(member.transport, 2)
    assert sorted((peer, each.step) for peer, each, _ in came) == [(0, 0), (1, 5)]
    assert member.transport.poll([0], 0.05) == [], "what stands behind the vote is not there yet"
    other.transport.send(2, tag(6), numbers(1))
    assert [(peer, each.step) for peer, each, _ in poll_until(member.transport, 1)] == [(1, 6)]
    assert member.transport.receive(0, vote, 0.0).note == 1
    [(_, after, received)] = poll_until(member.transport, 1)
    assert (after, received.note) == (tag(1), 2)


def test_poll_waits_as_long_as_it_may_for_the_first(world: World) -> None:
    sender, receiver = world.members(2)
    for timeout_s in (0.0, 0.05):
        began = time.monotonic()
        assert receiver.transport.poll([0], timeout_s) == []
        assert time.monotonic() - began >= timeout_s
    waiting = threading.Event()

    def poll() -> list[tuple[int, Tag, Received]]:
        waiting.set()
        return receiver.transport.poll([0], PATIENCE_S)

    def send() -> list[tuple[int, Tag, Received]]:
        waiting.wait()
        sender.transport.send(1, TAG, numbers(3))
        return []

    [(peer, came, received)] = together([poll, send])[0]
    assert (peer, came, received.payload.item()) == (0, TAG, 3)


@pytest.mark.parametrize("timeout_s", thinned([PATIENCE_S, 0.0], 2))
def test_large_payloads_both_ways_come_by_polling_alone(world: World, timeout_s: float) -> None:
    members = world.members(2)

    def exchange(rank: int) -> bool:
        transport, finished, whole = members[rank].transport, [False, False], False
        transport.send(1 - rank, TAG, torch.full((5_000_000,), float(rank)))
        while not all(finished):  # to the end of both, for the last bytes of the one need the other's polls too
            for _, came, received in transport.poll([0], timeout_s):
                finished[came.step] = True
                if came == TAG:
                    whole = bool((received.payload == 1 - rank).all())
                    transport.send(1 - rank, tag(1), torch.empty(0))
        transport.flush(PATIENCE_S)
        return whole

    assert together([partial(exchange, rank) for rank in range(2)]) == [True, True]


def test_poll_tells_of_a_loss_though_others_have_sent(world: World) -> None:
    dead, sender, member = world.members(3)
    sender.transport.send(2, TAG, numbers(1))
    dead.transport.send(2, TAG, numbers(1))
    dead.transport.abort()

    def poll_on() -> None:
        while True:  # the end may come a moment later than the messages
            member.transport.poll([0], PATIENCE_S)

    for _ in range(2):
        with pytest.raises(PeerLost) as raised:
            poll_on()
        assert (raised.value.peer, type(raised.value)) == (0, PeerLost)


def test_a_loss_ends_the_wait_of_a_poll(world: World) -> None:
    dead, member = world.members(2)
    waiting = threading.Event()

    def die() -> None:
        waiting.wait()
        dead.transport.abort()

    def wait() -> None:
        waiting.set()
        with pytest.raises(PeerLost, match="member 0"):
            member.transport.poll([0], PATIENCE_S)

    together([die, wait])


def test_who_has_left_is_told_once_all_of_it_is_taken(world: World) -> None:
    leaver, sender, member = world.members(3)
    for step in range(2):
        leaver.transport.send(2, tag(step), numbers(1))
    leaver.transport.close()
    assert [(peer, each.step) for peer, each, _ in poll_until(member.transport, 2)] == [(0, 0), (0, 1)]
    with pytest.raises(PeerLeft, match="member 0"):
        member.transport.poll([0], PATIENCE_S)
    sender.transport.send(2, TAG, numbers(4))
    with pytest.raises(PeerLeft, match="member 0"):
        member.transport.poll([0], PATIENCE_S)
    assert receive(member.transport, 1).payload.item() == 4, "an error takes no message away"


def test_who_has_left_after_an_early_vote_disturbs_no_poll(world: World) -> None:
    leaver, sender, member = world.members(3)
    leaver.transport.send(2, TAG._replace(phase=2), numbers(1))
    leaver.transport.close()
    assert member.transport.poll([0], 0.05) == []
    sender.transport.send(2, TAG, numbers(4))
    assert [peer for peer, _, _ in poll_until(member.transport, 1)] == [1]


@pytest.mark.parametrize("end", ["close", "abort"])
def test_nobody_polls_after_the_end(world: World, end: str) -> None:
    sender, member = world.members(2)
    sender.transport.send(1, TAG, numbers(1))
    getattr(member.transport, end)()
    for timeout_s in (0.0, PATIENCE_S):
        with pytest.raises(ConnectionAbortedError, match="closed on this side"):
            member.transport.poll([0], timeout_s)


def test_abort_from_another_thread_ends_a_poll(world: World) -> None:
    member, _ = world.members(2)
    entered = threading.Event()

    def wait() -> None:
        entered.set()
        with pytest.raises(ConnectionAbortedError):
            member.transport.poll([0], PATIENCE_S)

    def abort() -> None:
        entered.wait()
        member.transport.abort()

    together([wait, abort])
