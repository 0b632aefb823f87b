"""Settings into a plan: the one place that knows what several keys mean together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.plan import (
    Cadence,
    Checkpoints,
    Cluster,
    Compute,
    Data,
    Exchange,
    Members,
    Plan,
    Run,
    Source,
    Timeouts,
    Update,
    Variant,
    Watching,
)
from orchestrator.settings import Settings
from orchestrator.table import is_reference
from orchestrator.topologies import TOPOLOGIES
from orchestrator.updates.compressions import COMPRESSIONS
from orchestrator.updates.schedules import SCHEDULES


def resolve(settings: Settings) -> Plan:
    run, data = settings.run, settings.data
    return Plan(
        run=Run(
            pipeline=Source(settings.pipeline.target, dict(settings.pipeline.args)),
            compute=Compute(run.device, run.threads, run.precision, run.tf32),
            seed=run.seed,
            steps=run.steps,
            epochs=run.epochs,
        ),
        data=Data(data.shards, data.batch_size, data.loaders),
        update=_update(settings),
        exchange=_exchange(settings),
        cluster=_cluster(settings),
        checkpoints=Checkpoints(settings.checkpoint.every, settings.checkpoint.keep, settings.checkpoint.uri),
        cadence=Cadence(settings.evaluation.every, settings.trace.digest_every, settings.trace.tensors_every),
    )


def _update(settings: Settings) -> Update:
    optimizer, stopping, schedule = settings.optimizer, settings.early_stopping, settings.schedule
    contribution = settings.contribution
    return Update(
        optimizer=None if optimizer.name is None else Variant(optimizer.name, optimizer.options),
        clip=settings.gradient.clip,
        schedule=Variant(schedule.name, schedule.options),
        warmup=schedule.warmup,
        stopping=None
        if stopping.patience is None
        else Watching(stopping.metric, stopping.patience, stopping.mode, stopping.min_change),
        plateau=_plateau(schedule.options) if schedule.name == "plateau" else None,
        contribution=None if contribution.name == "gradient" else Variant(contribution.name, contribution.options),
        compression=_compression(settings.compression.name, settings.compression.options),
    )


def _compression(name: str, options: Mapping[str, Any]) -> Variant | None:
    """With the defaults of its options, of which one says whether shards keep state."""
    if name == "none":
        return None
    return Variant(name, options if is_reference(name) else COMPRESSIONS.resolve(name, options))


def _plateau(options: Mapping[str, Any]) -> Watching:
    found = SCHEDULES.resolve("plateau", options)
    return Watching(found["metric"], found["patience"], found["mode"])


def _exchange(settings: Settings) -> Exchange:
    by_tcp = settings.transport == "tcp"
    return Exchange(
        exact=settings.reduction == "exact",
        topology=Variant(settings.topology.name, settings.topology.options),
        by_tcp=by_tcp,
        between_nodes=by_tcp or (settings.cluster.address is not None and settings.transport == "auto"),
    )


def _cluster(settings: Settings) -> Cluster:
    cluster = settings.cluster
    # Under `fast` the sums follow the layout, so a smaller one would change bits: it waits until it is complete again.
    least = cluster.workers.least if settings.reduction == "exact" else cluster.workers.start
    return Cluster(
        address=cluster.address,
        members=Members(
            start=cluster.workers.start,
            least=least,
            most=cluster.workers.most,
            spares=cluster.spares,
            servers=TOPOLOGIES.resolve(settings.topology.name, settings.topology.options).get("servers", 0),
        ),
        cpus=cluster.cpus_per_worker,
        gpus=cluster.gpus_per_worker,
        together=settings.transport == "shared_memory",
        timeouts=Timeouts(cluster.start_timeout_s, cluster.step_timeout_s, cluster.lease_s),
    )
