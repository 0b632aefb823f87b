"""Settings into a plan: the one place that knows what several keys mean together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ConfigurationError
from orchestrator.plan import (
    Cadence,
    Checkpoints,
    Cluster,
    Compute,
    Data,
    Exchange,
    Initial,
    Local,
    Members,
    Plan,
    Privacy,
    Run,
    Scaling,
    Source,
    Timeouts,
    Update,
    Variant,
    Watching,
)
from orchestrator.settings import (
    CompressionSettings,
    ContributionSettings,
    PartitionSettings,
    SamplingSettings,
    Settings,
    SubsetSettings,
)
from orchestrator.settings.sections import BY_MEMORY
from orchestrator.topologies import TOPOLOGIES
from orchestrator.updates.schedules import SCHEDULES
from orchestrator.values import Span

INITIAL_FOLDER = ".orchestrator/initial"  # where a launch puts the weights that training begins with


def resolve(settings: Settings) -> Plan:
    """Raises ConfigurationError where something is still to be measured."""
    if settings.tuning.auto:
        keys = [key for key in settings.tuning.auto if key != BY_MEMORY]
        if not keys:
            raise ConfigurationError(
                [f"{BY_MEMORY}: auto is decided by the memory that is there when a run is launched"],
                "give a number here",
            )
        raise ConfigurationError(
            [f"{', '.join(keys)}: auto is decided by a measurement when a run is launched"],
            "give a value here; `python -m orchestrator tune conf=...` measures, and says which",
        )
    run, data = settings.run, settings.data
    return Plan(
        run=Run(
            pipeline=Source(settings.pipeline.target, dict(settings.pipeline.args)),
            compute=Compute(run.device, run.threads, run.precision, run.tf32, run.arithmetic),
            seed=run.seed,
            steps=run.steps,
            epochs=run.epochs,
            initial=_initial(settings),
        ),
        data=Data(
            data.shards,
            data.batch_size,
            data.loaders,
            partition=_variant(data.partition, but="shared"),
            sampling=_variant(data.sampling, but="uniform"),
            local=Span(steps=settings.local.steps, epochs=settings.local.epochs) if settings.has_local_steps else None,
            privacy=_privacy(settings),
            subset=_variant(data.subset, but="all"),
            seed=data.subset.options.get("shared_seed"),
        ),
        update=_update(settings),
        exchange=_exchange(settings),
        cluster=_cluster(settings),
        checkpoints=Checkpoints(settings.checkpoint.every, settings.checkpoint.keep, settings.checkpoint.uri),
        cadence=_cadence(settings),
        sync=Variant(settings.sync.name, settings.sync.options),
        pipelining=Variant(settings.cluster.pipeline.name, settings.cluster.pipeline.options),
        recompute=settings.run.recompute,
    )


def _initial(settings: Settings) -> Initial | None:
    name, digest = settings.initial.name, settings.initial.digest
    return None if name is None else Initial(name, digest, f"{INITIAL_FOLDER}/{digest}.safetensors")


def _cadence(settings: Settings) -> Cadence:
    trace = settings.trace
    return Cadence(settings.evaluation.every, trace.digest_every, trace.tensors_every, trace.timeline)


def _variant(
    chosen: PartitionSettings | SamplingSettings | SubsetSettings | ContributionSettings | CompressionSettings,
    *,
    but: str,
) -> Variant | None:
    """but: the name of the entry that stands for nothing."""
    return None if chosen.name == but else Variant(chosen.name, chosen.options)


def _update(settings: Settings) -> Update:
    optimizer, stopping, schedule = settings.optimizer, settings.early_stopping, settings.schedule
    return Update(
        optimizer=None if optimizer.name is None else Variant(optimizer.name, optimizer.options),
        clip=settings.gradient.clip,
        schedule=Variant(schedule.name, schedule.options),
        warmup=schedule.warmup,
        stopping=None
        if stopping.patience is None
        else Watching(stopping.metric, stopping.patience, stopping.mode, stopping.min_change),
        plateau=_plateau(schedule.options) if schedule.name == "plateau" else None,
        contribution=_variant(settings.contribution, but="gradient"),
        scaling=_scaling(settings),
        compression=_variant(settings.compression, but="none"),
        local=_local(settings),
    )


def _local(settings: Settings) -> Local | None:
    chosen = settings.local
    if chosen.optimizer.name is None:
        return None
    optimizer = Variant(chosen.optimizer.name, chosen.optimizer.options)
    return Local(optimizer, chosen.proximal_mu, chosen.clip, chosen.weight == "uniform")


def _privacy(settings: Settings) -> Privacy | None:
    chosen, shards = settings.privacy, settings.data.shards
    if chosen.clipping_norm is None:
        return None
    among = settings.data.partition.options.get("clients")
    clients = (chosen.clients or among or shards) if settings.is_private else shards
    return Privacy(chosen.clipping_norm, chosen.noise_multiplier, chosen.delta or 0.0, clients, shards)


def _scaling(settings: Settings) -> Scaling | None:
    scale, base = settings.schedule.scale, settings.schedule.base_batch
    return None if scale == "none" or base is None else Scaling(scale, base, settings.data.batch_size)


def _plateau(options: Mapping[str, Any]) -> Watching:
    found = SCHEDULES.resolve("plateau", options)
    return Watching(found["metric"], found["patience"], found["mode"])


def _exchange(settings: Settings) -> Exchange:
    by_tcp = settings.transport == "tcp"
    return Exchange(
        exact=settings.reduction == "exact",
        topology=Variant(settings.topology.name, settings.topology.options),
        by_tcp=by_tcp,
        masked=settings.secure_aggregation,
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
            least=max(least, cluster.stages),  # a stage needs a worker
            most=cluster.workers.most,
            spares=cluster.spares,
            servers=TOPOLOGIES.resolve(settings.topology.name, settings.topology.options).get("servers", 0),
            stages=cluster.stages,
        ),
        cpus=cluster.cpus_per_worker,
        gpus=cluster.gpus_per_worker,
        together=settings.transport == "shared_memory",
        timeouts=Timeouts(cluster.start_timeout_s, cluster.step_timeout_s, cluster.lease_s, cluster.unreachable_s),
    )
