"""CUDA_VISIBLE_DEVICES before anything is started: set, not set, empty, wrong, reordered, UUIDs and MIG devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.settings import ClusterSettings, PipelineSettings, RunSettings, Settings
from orchestrator.driver.preflight import checks, visible_cards
from orchestrator.errors import ConfigurationError, code_of
from orchestrator.numerics import cuda
from orchestrator.provenance.environment import cards
from orchestrator.provenance.environment.cards import Card, CardsUnknown, Lost, Seen


def card(index: int, uuid: str, parts: Sequence[str] = ()) -> Card:
    return Card(index, uuid, "NVIDIA H100", "570", 1 << 36, "9.0", bool(parts), 0, tuple(parts))


CARDS = [card(0, "GPU-6b2a"), card(1, "GPU-6b3b"), card(2, "GPU-77aa", ["MIG-1", "MIG-2"])]
FINE = ["0", "0,1", "1,0", "2, 0", "GPU-6b2a", "GPU-6b2", "GPU-77aa,GPU-6b3b", "MIG-2", "MIG-2,MIG-1", None]
WRONG = {
    "": "gpu.hidden",
    " ": "gpu.hidden",
    "NoDevFiles": "gpu.hidden",
    "-1": "gpu.hidden",
    "3": "gpu.unknown-card",
    "0,3": "gpu.unknown-card",
    "0,-1": "gpu.unknown-card",
    "all": "gpu.unknown-card",
    "cuda:0": "gpu.unknown-card",
    "0,,1": "gpu.unknown-card",
    "GPU-6b": "gpu.unknown-card",  # the beginning of two
    "GPU-0": "gpu.unknown-card",
    "MIG-3": "gpu.unknown-card",
    "GPU-6b2a, GPU-6b3b": "gpu.unknown-card",  # Ray hands a worker the name with its space
    "0,0": "gpu.named-twice",
    "1,GPU-6b3b": "gpu.named-twice",
}


@pytest.mark.parametrize("named", FINE)
def test_cards_that_are_there_may_be_named_in_any_order(named: str | None) -> None:
    assert visible_cards.problem_of(named, CARDS) is None


@pytest.mark.parametrize("named", WRONG)
def test_what_cuda_would_not_show_is_refused(named: str) -> None:
    problem = visible_cards.problem_of(named, CARDS)
    assert problem is not None
    assert code_of(problem) == WRONG[named]
    assert problem.startswith("run.device: CUDA_VISIBLE_DEVICES=")


def test_a_card_that_is_not_there_is_told_with_those_that_are() -> None:
    problem = visible_cards.problem_of("7", CARDS[:2])
    assert problem is not None
    assert "names '7', which is no GPU of this machine; it has 0 (NVIDIA H100, GPU-6b2a), 1 (" in problem


def test_a_machine_without_cards_is_told_of() -> None:
    assert code_of(visible_cards.problem_of(None, []) or "") == "gpu.none-here"


@given(st.permutations(["0", "1", "GPU-77aa"]), st.integers(1, 3))
def test_any_choice_in_any_order_is_fine(names: list[str], count: int) -> None:
    assert visible_cards.problem_of(",".join(names[:count]), CARDS) is None


@given(st.text(alphabet="0123456789,-GPUMI ", max_size=12))
def test_whatever_is_named_gets_an_answer(named: str) -> None:
    problem = visible_cards.problem_of(named, CARDS)
    assert problem is None or code_of(problem)


def test_the_tool_is_not_asked_where_all_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look() -> Seen:
        asked.append("tool")
        return Seen(CARDS, [])

    monkeypatch.setattr(cards, "look", look)
    assert refused({"CUDA_VISIBLE_DEVICES": ""}) == "gpu.hidden"
    kept = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    assert refused(kept) == "gpu.ray-does-not-set"
    assert asked == []
    assert refused({}) is None
    assert refused({"CUDA_VISIBLE_DEVICES": "9"}) == "gpu.unknown-card"


def refused(environ: dict[str, str]) -> str | None:
    """The code of the problem."""
    found = visible_cards.look(environ)
    assert (found.named, found.note) == (None, None)
    return None if found.problem is None else code_of(found.problem)


PLAIN = Settings(
    run=RunSettings(steps=1, device="cuda"),
    pipeline=PipelineSettings(target="a:B"),
    cluster=ClusterSettings(gpus_per_worker=0.5),
)
FAILURES = {
    CardsUnknown("nvidia-smi did not answer in 10 s", hangs=True): ("gpu.no-answer", "reset the card"),
    CardsUnknown("Failed to initialize NVML: Driver/library version mismatch"): (
        "gpu.driver-mismatch",
        "reboot, or reload the module",
    ),
    CardsUnknown("Failed to initialize NVML: Unknown Error"): ("gpu.taken-away", "start the container again"),
    CardsUnknown("couldn't communicate with the NVIDIA driver"): ("gpu.no-driver", "load NVIDIA's driver"),
}


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_tool_that_fails_refuses_the_run(failure: CardsUnknown, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Seen:
        raise failure

    monkeypatch.setattr(cards, "look", fail)
    problem = visible_cards.look({}).problem
    assert problem is not None
    code, remedy = FAILURES[failure]
    assert code_of(problem) == code
    assert remedy in problem
    assert str(failure) in problem


def test_without_the_tool_workers_will_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (FileNotFoundError("nvidia-smi"), CardsUnknown('Field "mig" is not a valid field to query.')):

        def fail(error: Exception = error) -> Seen:
            raise error

        monkeypatch.setattr(cards, "look", fail)
        assert refused({"CUDA_VISIBLE_DEVICES": "0"}) is None


def test_the_preflight_of_a_run_on_a_private_ray_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "build_problem", lambda: None)
    monkeypatch.setattr(cards, "look", lambda: Seen(CARDS, []))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(ConfigurationError) as caught:
        checks.take_cards(PLAIN)
    assert caught.value.code == "gpu.unknown-card"
    joined = replace(PLAIN, cluster=replace(PLAIN.cluster, address="10.0.0.1:6379"))
    assert checks.take_cards(joined) == []
    assert checks.take_cards(replace(PLAIN, run=RunSettings(steps=1))) == []


COUNTED = {None: 3, "1,0": 2, "GPU-6b2a": 1, "MIG-2,MIG-1": 2, "0,1,2,3,4": 3}


@pytest.mark.parametrize("named", COUNTED)
def test_a_ray_is_told_how_many_gpus_there_are_and_the_product_of_the_first(
    named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "look", lambda: Seen(CARDS, []))
    environ = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert visible_cards.for_ray(environ) == (COUNTED[named], "NVIDIA H100")


@pytest.mark.parametrize("failure", [FileNotFoundError("nvidia-smi"), CardsUnknown("Segmentation fault")])
def test_where_nobody_tells_a_ray_counts_them_itself(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Seen:
        raise failure

    monkeypatch.setattr(cards, "look", look)
    assert visible_cards.for_ray({}) == (None, None)
    assert visible_cards.for_ray({"CUDA_VISIBLE_DEVICES": "MIG-1"}) == (1, None)


def test_a_driver_that_hangs_ends_the_launch_before_a_ray_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Seen:
        raise CardsUnknown("nvidia-smi did not answer in 10 s", hangs=True)

    monkeypatch.setattr(cards, "look", look)
    with pytest.raises(ConfigurationError) as caught:
        visible_cards.for_ray({})
    assert caught.value.codes == ("gpu.no-answer",)


def test_free_memory_is_told_of_the_cards_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"GPU-6b2a": 1.0 * (1 << 30), "GPU-6b3b": 3.0 * (1 << 30)}
    monkeypatch.setattr(cards, "look", lambda: Seen(CARDS, []))
    monkeypatch.setattr(cards, "measure", lambda uuid: {"memory_bytes": used[uuid]})
    free = [(1 << 36) - (1 << 30), (1 << 36) - (3 << 30)]
    assert visible_cards.free_bytes({"CUDA_VISIBLE_DEVICES": "0,1"}) == free
    assert visible_cards.free_bytes({"CUDA_VISIBLE_DEVICES": "GPU-6b3b"}) == free[1:]
    for named in ("0,MIG-1", "2"):
        with pytest.raises(CardsUnknown, match="has no figure for"):
            visible_cards.free_bytes({"CUDA_VISIBLE_DEVICES": named})
    with pytest.raises(CardsUnknown):  # one of them is cut
        visible_cards.free_bytes({})
    monkeypatch.setattr(cards, "look", lambda: Seen(CARDS[:2], []))
    assert visible_cards.free_bytes({}) == free

    def missing() -> Seen:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(cards, "look", missing)
    with pytest.raises(CardsUnknown, match="not installed"):
        visible_cards.free_bytes({})


LOST = Lost("0000:3b:00.0", "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.")
LEFT = [CARDS[0], card(2, "GPU-77aa"), card(3, "GPU-88cc", ["MIG-1", "MIG-2"])]  # without the one of index 1
LEFT_OUT = {
    None: "GPU-6b2a,GPU-77aa,MIG-1",  # of a card that is cut CUDA shows its first device, by any name of the card
    "0,1,2": "GPU-6b2a,GPU-77aa",
    "2,1": "GPU-77aa",
    "1,3,MIG-2": "MIG-1,MIG-2",
    "GPU-6b3b,GPU-6b2": "GPU-6b2",  # a lost card tells no UUID
    "MIG-7,MIG-8,2": "GPU-77aa",
    "2,0": "GPU-77aa,GPU-6b2a",  # CUDA may number the rest otherwise, also where the lost one is not named
}
NOT_FOR_A_RUN = {
    "1": "gpu.fell-off",
    "GPU-6b3b": "gpu.fell-off",
    "0,1,4": "gpu.unknown-card",
    "0,GPU-a,GPU-b": "gpu.unknown-card",  # one card is lost, and not two
    "0,1,0": "gpu.named-twice",
    "0,cuda:1": "gpu.unknown-card",
}


@pytest.mark.parametrize("named", LEFT_OUT)
def test_a_card_that_is_lost_is_left_out_and_the_others_are_named_by_uuid(named: str | None) -> None:
    found = visible_cards.without_lost(named, LEFT, [LOST])
    assert (found.problem, found.named) == (None, LEFT_OUT[named])
    assert found.note is not None
    assert found.note.startswith(f"the GPU at {LOST.place} does not answer (Unable to determine")
    assert "and is left out; the run has the other GPUs: " in found.note
    assert "reboot the machine" in found.note


@pytest.mark.parametrize("named", NOT_FOR_A_RUN)
def test_a_run_whose_cards_are_all_lost_is_refused_and_a_wrong_name_is_wrong(named: str) -> None:
    found = visible_cards.without_lost(named, LEFT, [LOST])
    assert found.problem is not None
    assert code_of(found.problem) == NOT_FOR_A_RUN[named]
    assert found.named is None


@given(st.lists(st.sampled_from(["0", "1", "2", "GPU-77aa", "GPU-6b3b", "MIG-1", "MIG-9", "7", "x"]), max_size=4))
def test_what_is_left_are_cards_that_answer(names: list[str]) -> None:
    found = visible_cards.without_lost(",".join(names), LEFT, [LOST])
    assert (found.problem is None) == (found.named is not None)
    assert found.named is None or visible_cards.problem_of(found.named, LEFT) is None


def test_the_lost_card_is_hidden_from_what_a_launch_starts_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "build_problem", lambda: None)
    monkeypatch.setattr(cards, "look", lambda: Seen(LEFT[:2], [LOST]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert len(checks.take_cards(PLAIN)) == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-6b2a,GPU-77aa"
