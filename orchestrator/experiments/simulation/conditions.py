"""The cluster that is imagined, and what a step costs on it."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator.errors import UsageError

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RATES = {"Mbit": 1e6 / 8, "Gbit": 1e9 / 8, "MB": 1e6, "GB": 1e9}
_MOST_CORES = 100_000
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Network:
    """The cost of messages, in seconds. One between two hosts goes over the wire of each, which its members share."""

    latency_s: float = 50e-6  # of a message between members of one host
    bandwidth: float = 1.25e9  # bytes per second out of a member, and as much into it
    message_s: float = 0.0  # processor time of handing over, or taking, one message
    byte_s: float = 0.0  # processor time of adding or copying one byte
    hosts: int = 1  # number of hosts that the members are on
    wire_latency_s: float = 50e-6  # of a message between two hosts
    wire_bandwidth: float = 1.25e9  # bytes per second out of a host, and as much into it

    def nodes(self, workers: int, servers: int = 0) -> tuple[int, ...]:
        """The host of each member, by rank: as nearly as many workers on each as may be, and as many servers."""
        return tuple(rank * self.hosts // number for number in (workers, servers) for rank in range(number))


@dataclass(frozen=True)
class Conditions:
    """The conditions of a simulated run. Times are in seconds."""

    network: Network = Network()  # what messages cost
    compute_s: float = 0.02  # of one shard's micro-batch, by a worker that is alone
    # how many times as long micro-batch and update take with several workers, which share caches and memory
    contention: float = 1.0
    update_s: float = 0.001  # of the rest of a worker's step, whatever it hosts: order of samples, optimizer, trace
    vote_s: float = 0.0  # processor time of a member's vote and sum beside its messages, where there are others
    speeds: tuple[float, ...] = ()  # of the workers by rank, in proportion, and again from the first; empty: all alike
    stragglers: float = 0.0  # share of the workers that are always slow
    slower_by: float = 3.0  # how many times as long a straggler computes
    jitter: float = 0.0  # relative standard deviation of a micro-batch's time, log-normal
    stalls: float = 0.0  # probability that a worker's step waits for `stall_s`
    stall_s: float = 0.2  # seconds of such a wait
    cores: int = 0  # number of cores that all workers share; 0 where each has its own
    background_s: float = 0.0  # processor time of a worker's step beside its computing thread, where cores are shared
    others: float = 0.0  # share of a core that the driver and Ray take all the time, where cores are shared
    # further seconds of a core in a worker's step with more workers than cores, which take turns and lose their caches
    switch_s: float = 0.0
    failure_s: float = 0.0  # mean time until a worker is lost, exponential; 0 for never
    detect_s: float = 0.1  # seconds until a loss is known and the others have left
    regroup_s: float = 0.0  # seconds until the members of a new generation begin its first step
    start_s: float = 5.0  # seconds until another worker is ready
    save_s: float = 0.0  # seconds that a checkpoint holds up a step
    seed: int = 0  # of all that is drawn

    def slowed(self, workers: int) -> float:
        """How many times as long a worker's own part of a step takes beside so many."""
        return self.contention if workers > 1 else 1.0


def time_of(text: str) -> float:
    """Seconds: "20ms", "50us", "2h"."""
    return _measured(text, _TIMES, "a time such as 50us, 20ms, 2s or 24h")


def rate_of(text: str) -> float:
    """Bytes per second: "10Gbit", "100MB"."""
    return _measured(text, _RATES, "a rate such as 1Gbit or 100MB (a second)")


def _seconds_of_a_byte(text: str) -> float:
    return 1 / _measured(text, _RATES, "a rate such as 1GB (a second)")


def size_of(text: str) -> float:
    return _measured(text, _SIZES, "a number such as 25M")


def _within(least: float, most: float, expected: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := float(text)) <= most:
                return value
        raise ValueError(expected)

    return read


_share = _within(0, 1, "a share from 0 to 1")
_factor = _within(1, sys.float_info.max, "a factor of at least 1")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _MOST_CORES:
        raise ValueError(f"a number from 0 to {_MOST_CORES:,}")
    return int(text)


def _speeds(text: str) -> tuple[float, ...]:
    with suppress(ValueError):
        speeds = tuple(map(float, text.split(",")))
        if all(0 < speed < math.inf for speed in speeds):
            return speeds
    raise ValueError("speeds above 0 with commas between them, such as 1,1,0.5")


def _hosts(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST_CORES:
        raise ValueError(f"a number from 1 to {_MOST_CORES:,}")
    return int(text)


def _measured(text: str, units: Mapping[str, float], expected: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e-?\d+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in units or not float(found[1]) >= 0:
        raise ValueError(expected)
    return float(found[1]) * units[found[2]]


# Key of the command line -> (field, how it is read, what it is).
KEYS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "network.latency": ("latency_s", time_of, "latency of a message between two members (workers or servers)"),
    "network.bandwidth": ("bandwidth", rate_of, "bandwidth out of a member, and into it"),
    "hosts": ("hosts", _hosts, "number of hosts, on which workers lie in the order of their ranks; 1: all on one"),
    "wire.latency": ("wire_latency_s", time_of, "latency of a message between two hosts"),
    "wire.bandwidth": ("wire_bandwidth", rate_of, "bandwidth out of a host, and into it, which its members share"),
    "network.message": ("message_s", time_of, "processor time of handing over or taking a message"),
    "network.add": ("byte_s", _seconds_of_a_byte, "rate at which a member adds up or copies what it takes"),
    "compute": ("compute_s", time_of, "time of the micro-batch of one shard"),
    "update": ("update_s", time_of, "time of the rest of a worker's step, whatever it hosts"),
    "contention": ("contention", _factor, "factor on compute and update with several workers, which share caches"),
    "vote": ("vote_s", time_of, "processor time of a member's vote and sum beside its messages"),
    "speeds": ("speeds", _speeds, "speeds of the workers by rank, in proportion, repeated: 1,1,1,0.33"),
    "stragglers": ("stragglers", _share, "share of the workers that are slow"),
    "slower_by": ("slower_by", _factor, "factor on the time of a slow worker"),
    "jitter": ("jitter", _share, "relative standard deviation of a micro-batch's time"),
    "stalls": ("stalls", _share, "probability that a worker stalls in a step"),
    "stall": ("stall_s", time_of, "length of a stall"),
    "cores": ("cores", _count, "number of cores, which all workers share; 0: each has its own"),
    "background": (
        "background_s",
        time_of,
        "processor time of a worker's step beside its computing thread, if cores are shared",
    ),
    "others": ("others", _share, "share of a core that the driver and Ray take all the time, if cores are shared"),
    "switch": (
        "switch_s",
        time_of,
        "additional time of a core in a worker's step if more workers than cores take turns",
    ),
    "failures": ("failure_s", time_of, "mean time until a worker is lost; 0s: never"),
    "detection": ("detect_s", time_of, "time until a loss is known and the others have left the step"),
    "regroup": ("regroup_s", time_of, "time until the others are connected anew, and a new one has the state"),
    "start": ("start_s", time_of, "time until another worker is ready"),
    "save": ("save_s", time_of, "time for which a checkpoint holds up a step"),
}
_NETWORK = {field.name for field in fields(Network)}


def conditions(words: Mapping[str, str]) -> Conditions:
    """Raises UsageError with every problem."""
    problems, values = [], {}
    for key, text in words.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            problems.append(f"{key}: no such key" + (f"; did you mean {near[0]}?" if near else ""))
            continue
        field, read, _ = KEYS[key]
        try:
            values[field] = read(text)
        except ValueError as error:
            problems.append(f"{key}={text}: expected {error}")
        except ZeroDivisionError:
            problems.append(f"{key}={text}: must be greater than 0")
    for section in ("network", "wire"):
        if values.get({"network": "bandwidth", "wire": "wire_bandwidth"}[section]) == 0:
            problems.append(f"{section}.bandwidth: must be greater than 0")
    if values.get("hosts", 1) > 1 and values.get("cores"):
        problems.append("cores: workers on several hosts do not share them; leave out cores or hosts")
    if problems:
        raise UsageError("; ".join(problems), f"there are {', '.join(KEYS)}", code="simulation.conditions")
    network = replace(Network(), **{name: value for name, value in values.items() if name in _NETWORK})
    rest = {name: value for name, value in values.items() if name not in _NETWORK}
    return Conditions(network=network, **rest)
