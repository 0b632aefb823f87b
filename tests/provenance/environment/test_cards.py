"""Cards as NVIDIA's tool tells of them: texts that it has given, and a program in its place that answers late, or wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.common.bounded_command import Output
from orchestrator.provenance.environment import cards
from orchestrator.provenance.environment.cards import CardsUnknown

TWO = (
    "0, GPU-6b2a1f0c-1111-2222-3333-444455556666, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 9.0, Disabled, 0\n"
    "1, GPU-6b3b0000-1111-2222-3333-444455556666, NVIDIA GB10, 570.86.15, [N/A], 12.1, [N/A], [N/A]\n"
)
CUT = "0, GPU-aa, NVIDIA A100-SXM4-40GB, 535.104.05, 40960, 8.0, Enabled, 2\n"
LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)
  MIG 1g.5gb      Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-aa/1/0)
"""


def test_what_a_card_does_not_tell_is_left_out() -> None:
    first, second = cards.read(TWO)
    assert (first.index, first.capability, first.mig, first.ecc_errors) == (0, "9.0", False, 0)
    assert (first.memory_bytes, first.driver) == (81559 << 20, "570.86.15")
    assert (second.memory_bytes, second.mig, second.ecc_errors) == (0, False, None)
    assert str(second) == "1 (NVIDIA GB10, GPU-6b3b0000-1111-2222-3333-444455556666)"
    assert cards.read("") == []


def test_devices_of_mig_are_listed_below_their_card() -> None:
    (card,) = cards.with_parts(cards.read(CUT), LISTED)
    assert card.parts == ("MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-GPU-aa/1/0")
    assert card.as_dict()["parts"] == [*card.parts]


def test_measures_are_in_units_of_their_names() -> None:
    found = cards.measured("GPU-a, 97, 1024, 61, 412.50\nGPU-b, [N/A], 3, 30, [Not Supported]\n")
    assert found == {
        "GPU-a": {"utilization": 0.97, "memory_bytes": 2.0**30, "temperature_c": 61.0, "power_w": 412.5},
        "GPU-b": {"memory_bytes": 3.0 * 2**20, "temperature_c": 30.0},
    }


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "nvidia-smi"
    monkeypatch.setattr(cards, "PROGRAM", str(place))
    return place


def says(place: Path, script: str) -> None:
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


def test_without_the_tool_nothing_is_known(program: Path) -> None:  # noqa: ARG001
    with pytest.raises(FileNotFoundError):
        cards.look()


def test_the_tool_is_asked_for_parts_only_where_a_card_is_cut(program: Path) -> None:
    says(program, f"case $1 in -L) echo '{LISTED}' ;; *) echo '{CUT}' ;; esac")
    assert len(cards.look().cards[0].parts) == 2
    says(program, f"case $1 in -L) exit 1 ;; *) echo '{TWO}' ;; esac")
    assert [card.parts for card in cards.look().cards] == [(), ()]


def test_a_machine_without_cards_has_none(program: Path) -> None:
    says(program, "echo No devices were found; exit 6")
    assert cards.look() == ([], [])


def test_a_warning_behind_the_answer_takes_nothing_from_it(program: Path) -> None:
    says(program, f"echo '{TWO}'; echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0'; exit 14")
    assert len(cards.look().cards) == 2


def test_what_the_tool_says_is_told_where_it_fails(program: Path) -> None:
    says(program, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with pytest.raises(CardsUnknown, match="NVML: Driver/library version mismatch"):
        cards.look()
    says(program, "exit 9")
    with pytest.raises(CardsUnknown, match="ended with exit code 9"):
        cards.look()
    says(program, "echo '0, GPU-aa'")
    with pytest.raises(CardsUnknown, match="otherwise than expected: 0,GPU-aa"):
        cards.look()
    says(program, f"echo '{CUT.replace('0, GPU', 'x, GPU', 1)}'")
    with pytest.raises(CardsUnknown, match="otherwise than expected: invalid literal"):
        cards.look()


def test_a_tool_that_cannot_be_started_tells_nothing(program: Path) -> None:
    program.write_bytes(b"")
    with pytest.raises(CardsUnknown, match="cannot be started: Permission denied"):
        cards.look()
    program.chmod(0o755)
    with pytest.raises(CardsUnknown, match="cannot be started: Exec format error"):
        cards.look()


def test_a_tool_that_hangs_is_given_up(program: Path) -> None:
    says(program, "exec sleep 600")
    with pytest.raises(CardsUnknown, match=r"nvidia-smi did not answer in 0\.1 s") as caught:
        cards.look(0.1)
    assert caught.value.hangs


PLACES = ("0000:17:00.0", "0000:3b:00.0", "0000:65:00.0")
SAID = "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's folder of a machine with three cards."""
    place = tmp_path / "gpus"
    for each in PLACES:
        (place / each).mkdir(parents=True)
    monkeypatch.setattr(cards, "BUS", place)
    return place


def without_the_middle(row: str = f"echo '{SAID}'; exit 15") -> str:
    """A tool that fails for all cards together, and for the middle one alone. row: its answer for that one."""
    first, last = TWO.splitlines()[0], CUT.replace("0, GPU-aa", "2, GPU-aa")
    return (
        f"case \"$*\" in \"-L -i GPU-aa\") echo '{LISTED}' ;; *{PLACES[0]}*) echo '{first}' ;; "
        f"*{PLACES[1]}*) {row} ;; *{PLACES[2]}*) echo '{last}' ;; *) echo '{SAID}'; exit 15 ;; esac"
    )


def test_where_one_card_is_lost_the_others_are_asked_one_by_one(program: Path, bus: Path) -> None:
    says(program, without_the_middle())
    found, lost = cards.look()
    assert [(card.index, len(card.parts)) for card in found] == [(0, 0), (2, 2)]
    assert [each.place for each in lost] == [PLACES[1]]
    assert lost[0].why.startswith("Unable to determine the device handle")
    (bus / PLACES[2]).rmdir()
    assert [card.index for card in cards.look().cards] == [0]


def test_a_card_that_is_lost_within_an_answer_is_lost(program: Path, bus: Path) -> None:  # noqa: ARG001
    row = "1, GPU-bb, [GPU is lost], 570.86.15, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]"
    says(program, without_the_middle(f"echo '{row}'"))
    assert [each.place for each in cards.look().lost] == [PLACES[1]]


def test_where_all_are_lost_or_nobody_lists_them_the_tool_is_told(program: Path, bus: Path) -> None:
    says(program, f"echo '{SAID}'; exit 15")
    with pytest.raises(CardsUnknown, match="GPU is lost"):
        cards.look()
    for each in PLACES:
        (bus / each).rmdir()
    says(program, without_the_middle())
    with pytest.raises(CardsUnknown, match="GPU is lost"):
        cards.look()


def test_a_card_that_hangs_is_not_taken_for_lost(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    def output_of(command: Sequence[str], _limit_s: float) -> Output:
        if PLACES[1] in command:
            raise TimeoutError("nvidia-smi did not answer in 10 s")
        return Output(0, TWO, "") if "-i" in command else Output(15, "", SAID)

    monkeypatch.setattr(cards, "output_of", output_of)
    with pytest.raises(CardsUnknown, match="did not answer") as caught:
        cards.look()
    assert caught.value.hangs


def test_only_the_card_of_a_worker_is_measured(program: Path) -> None:
    says(program, 'case "$*" in "-i GPU-a "*) echo "GPU-a, 97, 1024, 61, 412.50" ;; *) exit 15 ;; esac')
    assert cards.measure("GPU-a")["power_w"] == 412.5
    assert cards.measure("MIG-a") == {}
    with pytest.raises(CardsUnknown):
        cards.measure("GPU-b")
