"""The trial of cards, with a double of torch.cuda and of the driver's calls: no card has run it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from orchestrator.numerics.device.compiling import CompilationFailed
from orchestrator.worker import card_trial
from tests.comm.transports.device_double import HostDriver


def test_what_is_written_by_one_mapping_is_read_by_the_other_and_nothing_stays() -> None:
    driver = HostDriver()
    card_trial.share(driver)
    assert driver.mapped == {}
    assert driver.settled == 1


class Torn(HostDriver):
    """Another memory is mapped than the one that was exported."""

    def take(self, fd: int) -> int:  # noqa: ARG002
        return self.create(self.granularity * 2)


def test_memory_that_reads_otherwise_is_not_shared() -> None:
    driver = Torn()
    with pytest.raises(RuntimeError, match="other bytes are read"):
        card_trial.share(driver)
    assert driver.mapped == {}
    with pytest.raises(RuntimeError, match="NOT_SUPPORTED"):
        card_trial.share(HostDriver(refuses=True))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two cards, of which the second maps the first one's memory; returns those that were made current."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: (one, other) == (1, 0))
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: len(seen))
    seen: list[int] = []

    @contextlib.contextmanager
    def device(card: int) -> Iterator[None]:
        yield
        seen.append(card)

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda card: SimpleNamespace(uuid=f"{card}a"))
    return current


def test_each_card_is_tried_and_what_fails_is_told_with_its_reason(two: list[int]) -> None:
    def compiles() -> None:
        if two[-1] == 1:
            raise CompilationFailed("NVRTC cannot be loaded\nat all")

    assert list(card_trial.trials(compiles, lambda: None)) == [
        ("cards", ["GPU-0a", "GPU-1a"]),
        ("peers", [(1, 0)]),
        ("compiles", None),
        ("shares", None),
        ("compiles", "NVRTC cannot be loaded"),
        ("shares", None),
    ]


def test_why_torch_sees_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Error 802: system not yet initialized\nmore")

    sent: list[bytes] = []
    told = SimpleNamespace(send=sent.append, end=lambda: sent.append(b"end"))
    monkeypatch.setattr("orchestrator.common.child.parent", lambda: told)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", fail)
    card_trial.main()
    assert sent == [b'["failed", "Error 802: system not yet initialized"]', b"end"]
