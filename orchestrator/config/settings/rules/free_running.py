"""Rules for replicas that run free (`sync` other than bsp): each refusal with its remedy.

A mode of the user's own is known once it is imported; then `driver.preflight` holds the settings to the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.comm.synchronization import SYNCHRONY, build_mode
from orchestrator.config.settings.rules.rule import Case, Rule


def rules_of(execution: Callable[[str], str]) -> tuple[Rule, ...]:
    """The rules for modes in which replicas run free. execution: of the mode with this name."""

    def is_free(name: str) -> bool:
        return execution(name) != "lockstep"

    free = Case(("sync.name",), is_free)

    def require(code: str, key: str, fit: Any, because: str) -> Rule:
        return free.requires(code, key, fit, f"{key.removesuffix('.name')}: with sync={{1}} {because}, or set sync=bsp")

    return (
        require(
            "sync.fast",
            "reduction",
            "exact",
            "updates that come in any order have to be added exactly; set reduction=exact",
        ),
        require(
            "sync.contribution",
            "contribution.name",
            "gradient",
            "each shard has an optimizer of its own and contributes its updates; leave contribution out",
        ),
        require(
            "sync.compression",
            "compression.name",
            "none",
            "updates travel as integers of their own, to be added in any order; leave compression out",
        ),
        Rule(
            "sync.local-steps",
            ("local.steps", "local.epochs", "sync.name"),
            lambda steps, epochs, name: is_free(name) and (steps is not None or epochs is not None),
            "local: with sync={2} each shard takes steps of its own already; leave local out, or set sync=bsp",
        ),
        require(
            "sync.clipping",
            "privacy.clipping_norm",
            None,
            "there is no sum of a step whose parts could be bounded; leave privacy and secure_aggregation out",
        ),
        Rule(
            "sync.more-clients",
            ("data.partition.clients", "data.shards", "sync.name"),
            lambda clients, shards, name: is_free(name) and (clients or 0) > shards,
            "data.partition.clients: with sync={2} there are no steps in which shards play other clients; set "
            "data.partition.clients={1}, or set sync=bsp",
        ),
        Rule(
            "sync.gossip-servers",
            ("topology.name", "sync.name"),
            lambda topology, name: topology == "parameter_server" and execution(name) == "gossip",
            "topology: with sync={1} models are mixed by workers, and servers have nothing to do; set topology=peer_to_peer, "
            "or set sync=bsp",
        ),
    )


def _known_execution(name: str) -> str:
    return build_mode(name, {}).execution if name in SYNCHRONY else "lockstep"


RULES: tuple[Rule, ...] = rules_of(_known_execution)
