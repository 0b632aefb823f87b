"""The answers of a member in which something goes wrong; no Ray is started."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cluster.actors import card_failure
from orchestrator.cluster.actors.member_actor import Answer, MemberActor, disregard_signals, with_imports
from orchestrator.errors import CardFailed, NonFinite, PipelineRaised

FAULTS = {
    "RunFailed no memory left": MemoryError(),
    "RunFailed DefaultCPUAllocator: can't allocate memory": RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "RunFailed CUDA out of memory": torch.OutOfMemoryError("CUDA out of memory"),
    "RunFailed CUDA error: unspecified": torch.AcceleratorError("CUDA error: unspecified\n"),
    "RunFailed the card that was there is gone: CUDA error: no CUDA-capable device is detected": torch.AcceleratorError(
        "CUDA error: no CUDA-capable device is detected"
    ),
    "NonFinite the loss": NonFinite("the loss"),
    "RunFailed KeyError: 'x'": KeyError("x"),
}
REMEDIES = [
    "fewer workers on a machine, or more memory; or cut the model into stages (cluster.stages",
    "or cut the model into stages (cluster.stages",
    "let fewer workers share a GPU",
    "CUDA_LAUNCH_BLOCKING=1",
    "start the container again",
    "",
    "a fault of orchestrator",
]


@pytest.mark.parametrize(("said", "remedy"), list(zip(FAULTS, REMEDIES, strict=True)))
def test_a_fault_is_an_answer(said: str, remedy: str) -> None:
    def fail() -> Answer:
        raise FAULTS[said]

    answer = object.__new__(MemberActor)._answer(fail)["failed"]
    assert f"{answer['kind']} {answer['message']}" == said
    assert remedy in answer["remedy"]


def test_the_failure_of_a_card_is_answered_with_where_it_was() -> None:
    asserted = torch.AcceleratorError("CUDA error: device-side assert triggered\n")
    answer = card_failure.answered(asserted, {"step": 4, "shard": 1}, "GPU-a")
    assert answer is not None
    assert answer["card"] == {"code": "gpu.assertion", "card": "GPU-a", "step": 4, "shard": 1}
    assert answer["failed"]["message"] == "an assertion failed in a kernel: CUDA error: device-side assert triggered"
    prepares = card_failure.answered(asserted, card_failure.PREPARING, "GPU-a")
    assert prepares is not None
    assert prepares["card"] == {"code": "gpu.assertion", "card": "GPU-a", "step": None, "shard": None, "prepares": True}
    named = CardFailed(PipelineRaised("loss() (step 4, shard 1)", code="pipeline.raised"))
    named.__cause__ = asserted
    answer = card_failure.answered(named, {"step": 4, "shard": 1}, "")
    assert answer is not None
    assert (answer["card"]["code"], answer["failed"]["code"]) == ("gpu.assertion", "pipeline.raised")
    late = torch.AcceleratorError("CUDA error: device-side assert triggered")
    late.__context__ = named  # of what lets go of the step
    answer = card_failure.answered(late, {"step": 4, "shard": 1}, "")
    assert answer is not None
    assert answer["failed"]["code"] == "pipeline.raised"
    assert card_failure.answered(KeyError("x"), card_failure.PREPARING, "GPU-a") is None


ABORTED = (
    "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: unknown error\n"
)
UUID = "GPU-e0cbd06e-0d3d-4c3b-8b0b-5b1c5a1d5f0c"


@given(
    st.text(),
    st.none() | st.fixed_dictionaries({"step": st.none() | st.integers(), "shard": st.none() | st.integers()}),
    st.booleans(),
)
def test_the_last_words_of_a_process_are_an_answer_where_they_tell_of_a_card(
    said: str, last: dict[str, Any] | None, prepares: bool
) -> None:
    """The step counts where it is known, and none while a member prepares."""
    answer = card_failure.of_death(f"{said}\n{ABORTED}", last, UUID, prepares=prepares)
    assert answer is not None
    at = card_failure.PREPARING if prepares else {key: (last or {}).get(key) for key in ("step", "shard")}
    assert answer["card"] == {"code": "gpu.failed", "card": UUID, **at}
    assert "CUDA error: unknown error; it ended the process" in answer["failed"]["message"]
    assert ABORTED in answer["failed"]["details"]
    assert card_failure.of_death(said, last, UUID, prepares=prepares) is None


def test_a_card_is_known_by_its_uuid_where_that_is_how_it_was_set_aside() -> None:
    assert card_failure.named_card({"CUDA_VISIBLE_DEVICES": UUID}) == UUID
    for name in ("", "0", "1,0", "GPU-e0cb", "NoDevFiles"):
        assert card_failure.named_card({"CUDA_VISIBLE_DEVICES": name}) == ""
    assert card_failure.named_card({}) == ""


def test_while_a_member_prepares_each_import_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = {"activity": "prepare", "beats": 3}
    before = with_imports(heartbeat)["beats"]
    assert with_imports({**heartbeat, "activity": "admission"})["beats"] == before
    monkeypatch.setitem(sys.modules, "imported_just_now", sys)
    assert with_imports(heartbeat)["beats"] == before + 1
    training = {"activity": "compute", "beats": 3}
    assert with_imports(training) == training


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_member_takes_no_notice_of_a_signal_to_its_group_and_its_children_do(number: signal.Signals) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        disregard_signals()
        os.kill(os.getpid(), number)
        assert signal.getsignal(number) is not signal.SIG_IGN  # which what it starts would inherit
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.parametrize(
    ("first", "writers", "address", "tries"),
    [
        (True, (0, 1), "a:1", True),
        (False, (0, 1), "a:1", False),
        (True, (0,), "a:1", False),
        (True, (0, 1), None, False),
    ],
)
def test_a_writer_of_a_joined_ray_tries_the_place_before_the_first_step(
    first: bool, writers: tuple[int, ...], address: str | None, tries: bool
) -> None:
    """Later the run has something to lose. A private Ray writes as the driver does, who has tried."""

    class Opened(Exception):
        pass

    def opened(place: str, *, tries: bool) -> None:
        raise Opened(place, tries)

    actor: Any = object.__new__(MemberActor)
    actor._checkpoint_client = SimpleNamespace(open=opened)
    actor._plan = SimpleNamespace(cluster=SimpleNamespace(address=address))
    generation: Any = SimpleNamespace(is_first=first, writers=writers, storage="there")
    with pytest.raises(Opened) as raised:
        actor._run(generation, 1, {})
    assert raised.value.args == ("there", tries)
