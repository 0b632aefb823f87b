"""Settings into a plan: the one place that knows what several keys mean together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from orchestrator.comm.topologies import TOPOLOGIES
from orchestrator.common.values import Span, speeds_of
from orchestrator.config.plan import (
    Begin,
    Cadence,
    Chaos,
    Checkpoints,
    Cluster,
    Compute,
    Data,
    Declared,
    Exchange,
    Initial,
    Local,
    Members,
    MonitoredMetric,
    Plan,
    Privacy,
    Run,
    Scaling,
    Timeouts,
    Update,
    Variant,
)
from orchestrator.config.settings import Settings
from orchestrator.config.settings.sections import BY_MEMORY, KINDS, OptimizerSettings, RunSettings
from orchestrator.errors import ConfigurationError
from orchestrator.optim.ranking import Best
from orchestrator.optim.schedules import SCHEDULES

INITIAL_FOLDER = ".orchestrator/initial"  # where a launch puts the weights that training begins with

BEGIN_FOLDER = ".orchestrator/begin"  # likewise the checkpoints of other runs


def resolve(settings: Settings) -> Plan:
    """Raises ConfigurationError where something is still to be measured."""
    if settings.tuning.auto:
        keys = [key for key in settings.tuning.auto if key != BY_MEMORY]
        if not keys:
            raise ConfigurationError(
                [f"{BY_MEMORY}: auto is decided by the memory that is there when a run is launched"],
                "give a number here",
                code="settings.auto-by-memory",
            )
        raise ConfigurationError(
            [f"{', '.join(keys)}: auto is decided by a measurement when a run is launched"],
            "give a value here; `python -m orchestrator tune conf=...` measures, and says which",
            code="settings.auto-by-measuring",
        )
    run, data = settings.run, settings.data
    return Plan(
        run=Run(
            pipeline=settings.pipeline.source,
            compute=_compute(settings.run),
            seed=run.seed,
            steps=run.steps,
            epochs=run.epochs,
            initial=_initial(settings),
            begin=_begin(settings),
        ),
        data=Data(
            data.shards,
            data.batch_size,
            data.loaders,
            partition=_unless("shared", data.partition),
            sampling=_unless("uniform", data.sampling),
            local=Span(steps=settings.local.steps, epochs=settings.local.epochs) if settings.has_local_steps else None,
            privacy=_privacy(settings),
            subset=_unless("all", data.subset),
            seed=data.subset.options.get("shared_seed"),
            order=data.order,
            mixture=data.mixture,
            cache_bytes=round(data.cache_gb * 1e9),
            cache_folder=data.cache_folder,
            store_timeout_s=data.store_timeout_s,
            sites=data.sites.by_name,
            sits_out=bool(data.sites) and _sits_out(settings),
        ),
        update=_update(settings),
        exchange=_exchange(settings),
        cluster=_cluster(settings),
        checkpoints=_checkpoints(settings),
        cadence=_cadence(settings),
        sync=settings.sync,
        pipelining=settings.cluster.pipeline,
        recompute=settings.run.recompute,
        declared=Declared(data.inputs, settings.environment.variables),
        chaos=_chaos(settings),
    )


def _compute(run: RunSettings) -> Compute:
    return Compute(
        run.device,
        run.threads,
        run.precision,
        run.tf32,
        run.arithmetic,
        graphs=run.device == "cuda" and run.graphs == "auto",
        compiled=run.compile,
    )


def _chaos(settings: Settings) -> Chaos | None:
    chosen = settings.chaos
    if chosen.every is None or chosen.every.seconds is None:
        return None
    kinds = tuple(kind for kind in KINDS if kind in chosen.kinds)
    return Chaos(chosen.every.seconds, kinds, chosen.seed)


def _initial(settings: Settings) -> Initial | None:
    name, digest = settings.initial.name, settings.initial.digest
    return None if name is None else Initial(name, digest, f"{INITIAL_FOLDER}/{digest}.safetensors")


def _begin(settings: Settings) -> Begin | None:
    """None also where no launch has looked the run up yet."""
    begin = settings.begin
    if begin.name is None or begin.digest is None:
        return None
    return Begin(begin.name, begin.step, begin.digest, f"{BEGIN_FOLDER}/{begin.digest}")


def _checkpoints(settings: Settings) -> Checkpoints:
    chosen, best = settings.checkpoint, settings.checkpoint.best
    ranked = None if best.metric is None else Best(best.metric, best.mode, best.keep)
    return Checkpoints(chosen.every, chosen.keep, chosen.uri, ranked, chosen.archive, chosen.model == "best")


def _cadence(settings: Settings) -> Cadence:
    trace, checks = settings.trace, settings.check.every or 0
    return Cadence(settings.evaluation.every, trace.digest_every, trace.tensors_every, trace.timeline, checks)


def _sits_out(settings: Settings) -> bool:
    absent = settings.data.absent
    return settings.has_local_steps if absent is None else absent == "sit_out"


def _unless(nothing: str, chosen: Variant) -> Variant | None:
    """nothing: the name of the entry that stands for it."""
    return None if chosen.name == nothing else chosen


def _optimizer(chosen: OptimizerSettings) -> Variant | None:
    return None if chosen.name is None else Variant(chosen.name, chosen.options)


def _update(settings: Settings) -> Update:
    stopping, schedule = settings.early_stopping, settings.schedule
    return Update(
        optimizer=_optimizer(settings.optimizer),
        clip=settings.gradient.clip,
        schedule=Variant(schedule.name, schedule.options),
        warmup=schedule.warmup,
        stopping=None
        if stopping.patience is None
        else MonitoredMetric(stopping.metric, stopping.patience, stopping.mode, stopping.min_change),
        plateau=_plateau(schedule.options) if schedule.name == "plateau" else None,
        contribution=_unless("gradient", settings.contribution),
        scaling=_scaling(settings),
        compression=_unless("none", settings.compression),
        local=_local(settings),
        sharded=settings.update.sharded,
    )


def _local(settings: Settings) -> Local | None:
    chosen, optimizer = settings.local, _optimizer(settings.local.optimizer)
    return None if optimizer is None else Local(optimizer, chosen.proximal_mu, chosen.clip, chosen.weight == "uniform")


def _privacy(settings: Settings) -> Privacy | None:
    chosen, shards = settings.privacy, settings.data.shards
    if chosen.clipping_norm is None:
        return None
    among = settings.data.partition.options.get("clients")
    among = among if isinstance(among, int) else None  # a partition of the user's own may mean anything by it
    clients = (chosen.clients or among or shards) if settings.is_private else shards
    return Privacy(chosen.clipping_norm, chosen.noise_multiplier, chosen.delta or 0.0, clients, shards)


def _scaling(settings: Settings) -> Scaling | None:
    scale, base = settings.schedule.scale, settings.schedule.base_batch
    return None if scale == "none" or base is None else Scaling(scale, base, settings.data.batch_size)


def _plateau(options: Mapping[str, Any]) -> MonitoredMetric:
    found = SCHEDULES.resolve("plateau", options)
    of_metric = {each.name: found[each.name] for each in fields(MonitoredMetric)}
    return MonitoredMetric(**of_metric)


def _exchange(settings: Settings) -> Exchange:
    transport = settings.transport
    by_tcp = transport.name == "tcp"
    return Exchange(
        exact=settings.reduction == "exact",
        topology=settings.topology,
        by_tcp=by_tcp,
        masked=settings.secure_aggregation,
        between_nodes=by_tcp or (settings.cluster.address is not None and transport.name == "auto"),
        tls=transport.tls,
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
        together=settings.transport.name == "shared_memory",
        timeouts=Timeouts(_start_s(settings), cluster.step_timeout_s, cluster.lease_s, cluster.unreachable_s),
        by_speed=cluster.deal == "measured",
        speeds=speeds_of(cluster.speeds),
        claims=cluster.workers.most > 1 and cluster.claims is not False and _can_claim(settings),
        claims_required=cluster.claims is True,
        card_type=cluster.accelerator_type,
        card_bytes=None if cluster.gpu_gb is None else round(cluster.gpu_gb * 1e9),
    )


def _start_s(settings: Settings) -> float:
    """A worker computes its first micro-batches before it has started, and where it compiles, that takes minutes."""
    cluster = settings.cluster
    return max(cluster.start_timeout_s, cluster.step_timeout_s) if settings.run.compile else cluster.start_timeout_s


def _can_claim(settings: Settings) -> bool:
    """Unless shards keep a state, which is known with the model."""
    return (
        settings.sync.name == "bsp"
        and settings.cluster.stages == 1
        and settings.reduction == "exact"
        and settings.privacy.clipping_norm is None
        and settings.transport.name != "tcp"
    )
