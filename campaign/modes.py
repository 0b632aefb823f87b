"""The modes in which a run is disturbed, as settings of a small network, and what a seed may vary without another result.

A run has a fixed number of steps, so that the undisturbed one is made once for each mode. It goes as far as the campaign lets
it (`moments.Words.gate`), and does the rest of its steps in one go when no fault is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

STEPS: Final = 750
SEED: Final = 1  # of each run
STEP_TIMEOUT_S: Final = 6.0  # more than the first step of a new process takes on a busy machine
START_TIMEOUT_S: Final = 40.0  # so long one that comes may stand still before it is given up
LEASE_S: Final = 10.0  # where the driver is stopped for longer; else the default, more than a busy machine holds it up
_SGD: Final = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
_PRIVATE: Final = {
    "data": {"shards": 24, "batch_size": 24, "partition": {"name": "iid", "clients": 48}},
    "local": {"steps": 1, "optimizer": {"name": "sgd", "lr": 0.05}, "weight": "uniform"},
    "optimizer": {"name": "sgd", "lr": 1.0, "momentum": 0.9},
    "privacy": {"clipping_norm": 0.2, "noise_multiplier": 2.2, "delta": 0.0001},
    "secure_aggregation": True,
}


@dataclass(frozen=True)
class Mode:
    """settings: beside those that all have. workers: as many are wanted. lockstep: the result does not depend on timing; of the
    others what happened is repeated from the record. second_vote: its steps are committed by one."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 4
    lockstep: bool = True
    stages: int = 1
    served: bool = True  # topology=parameter_server goes with it
    by_tcp: bool = True  # so does transport=tcp
    loads: bool = True  # and data.loaders

    @property
    def second_vote(self) -> bool:
        return self.stages > 1


def _free(name: str, **options: Any) -> Mode:
    sync = {"name": name, "rest_every": 4, **options}
    return Mode(name, {"sync": sync}, lockstep=False, served=name != "gossip")


MODES: Final = (
    Mode("bsp"),
    Mode("divided update", {"update": {"sharded": True}}, served=False, by_tcp=False),
    _free("ssp", staleness=2),
    _free("asp"),
    _free("bap"),
    _free("gossip"),
    Mode(
        "local steps",
        {"local": {"steps": 2, "optimizer": {"name": "sgd", "lr": 0.05}}, "optimizer": {"name": "sgd", "lr": 1.0}},
    ),
    Mode(
        "DiLoCo",
        {
            "local": {"steps": 2, "optimizer": {"name": "adamw", "lr": 0.002}},
            "optimizer": {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True},
        },
    ),
    Mode("federated, noise and masks", _PRIVATE, served=False, loads=False),
    Mode("quantised", {"compression": {"name": "quantize"}}),
    Mode("PowerSGD", {"compression": {"name": "powersgd", "rank": 1, "warmup": 3, "reset": 7}}),
    Mode("top-k", {"compression": {"name": "topk", "ratio": 0.2, "error_feedback": True}}),
    Mode("stages of 2", {"cluster": {"stages": 2}}, stages=2, served=False),
    Mode("stages of 3, ragged", {"cluster": {"stages": 3}}, workers=5, stages=3, served=False),
)
NAMES: Final = tuple(mode.name for mode in MODES)
BY_NAME: Final = {mode.name: mode for mode in MODES}
CHECKED: Final = ("bsp", "divided update", "local steps", "DiLoCo")  # some that go with check.every
SERVED: Final = "topology=parameter_server"  # which has a server
TOPOLOGIES: Final = ("ring", "tree", "parameter_server", "peer_to_peer", "hierarchical")

_COMMON: Final[Mapping[str, Any]] = {
    "run": {"name": "campaign", "seed": SEED, "steps": STEPS},
    "pipeline": {"target": "campaign.trained:Small"},
    "data": {"shards": 6, "batch_size": 12},
    "cluster": {"step_timeout_s": STEP_TIMEOUT_S, "start_timeout_s": START_TIMEOUT_S},
    "optimizer": _SGD,
    "evaluation": {"every": 6},
    "trace": {"digest_every": 3},
    "checkpoint": {"every": 5, "keep": 2},
    "tracking": {"every_s": 5.0},
}


def settings(mode: Mode) -> dict[str, Any]:
    """As in a file of conf/."""
    found = {section: dict(values) for section, values in _COMMON.items()}
    for section, values in mode.settings.items():
        if section in found and isinstance(values, Mapping) and section in ("cluster", "data"):
            found[section] |= values
        else:
            found[section] = values
    return found


def layout(mode: Mode, dice: Random) -> tuple[str, ...]:
    """Settings that may vary and change no bit: topology, transport, loaders, spares."""
    topologies = [name for name in TOPOLOGIES if mode.served or name != "parameter_server"]
    chosen = [f"topology={dice.choice(topologies)}", f"cluster.workers={mode.workers}"]
    if dice.random() < 0.25 and mode.by_tcp:
        chosen.append("transport=tcp")
    if dice.random() < 0.25 and mode.stages == 1 and mode.loads:
        chosen.append("data.loaders=1")
    if dice.random() < 0.25:
        chosen.append("cluster.spares=1")
    if dice.random() < 0.5:
        chosen.append("cluster.deal=equal")
    return tuple(chosen)


def alone(mode: Mode) -> tuple[str, ...]:
    """The layout of the undisturbed run: as few processes as may be."""
    return (f"cluster.workers={mode.stages}", "topology=ring")


def hosts(stages: Sequence[int], rank: int) -> int:
    """How many workers host what this one does. stages: by rank."""
    return sum(stage == stages[rank] for stage in stages)
