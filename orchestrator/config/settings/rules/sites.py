"""Rules for data pinned to sites: each refusal with its remedy."""

from __future__ import annotations

from typing import Any

from orchestrator.common.values import Sites, Workers
from orchestrator.config.settings.rules.rule import Case, Rule

_SITES = Case(("data.sites",), bool)


def _requires(code: str, key: str, fit: Any, sentence: str) -> Rule:
    return _SITES.requires(code, key, fit, f"{key}: {sentence}, or leave data.sites out")


def _too_few(sites: Sites, workers: Workers) -> str:
    if workers.start != workers.most:
        return "cluster.workers: with data.sites each has its place, so give a number and no range"
    few = f"{workers.most} for {len(sites.by_name)} sites"
    return f"cluster.workers: {few}, each of which needs one; set cluster.workers={len(sites.by_name)} or more"


RULES: tuple[Rule, ...] = (
    _requires(
        "site.private-ray",
        "cluster.address",
        lambda address: address is not None,
        "a private Ray is this machine alone, and data.sites names nodes of a joined one; set cluster.address, or "
        "data.sites={{}} where all files are on this machine",
    ),
    _requires("site.sync", "sync.name", "bsp", "with data.sites all shards go in lockstep; set sync=bsp"),
    _requires(
        "site.stages", "cluster.stages", 1, "with data.sites every worker has the whole model; set cluster.stages=1"
    ),
    _requires(
        "site.fast",
        "reduction",
        "exact",
        "who hosts a shard would change its sums where sites come and go; set reduction=exact",
    ),
    _requires(
        "site.spares",
        "cluster.spares",
        0,
        "a spare would be at one site only; set cluster.spares=0, and more cluster.workers",
    ),
    _requires(
        "site.speeds",
        "cluster.speeds",
        (),
        "with data.sites shards stay at their site, however fast it is; leave cluster.speeds out",
    ),
    _requires(
        "site.shared-memory",
        "transport.name",
        lambda name: name != "shared_memory",
        "sites are nodes, which share no memory; set transport=auto",
    ),
    _requires(
        "site.tuning",
        "tuning.auto",
        (),
        "no layout is chosen by measuring where data.sites fixes it; give numbers in place of auto",
    ),
    _requires(
        "site.partition",
        "data.partition.name",
        lambda name: name != "shared",
        "without one every shard reads all files; set data.partition=natural, or another one that goes by files",
    ),
    _requires(
        "site.noise",
        "privacy.noise_multiplier",
        0,
        "with noise it is secret who plays, and data.sites says where; leave it out",
    ),
    Rule(
        "site.workers",
        ("data.sites", "cluster.workers"),
        lambda sites, workers: sites and not len(sites.by_name) <= workers.start == workers.most,
        _too_few,
    ),
    Rule(
        "site.no-such-shard",
        ("data.sites", "data.shards"),
        lambda sites, shards: any(shard >= shards for own in sites.by_name.values() for shard in own),
        "data.sites: there are shards 0 to data.shards - 1, with data.shards={1}; name only these",
    ),
)
