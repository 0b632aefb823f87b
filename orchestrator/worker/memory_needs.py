"""How much memory the members of a run need, by the run manifest, on which its workers agree: for a person, and for where they
are placed. The footprints that it adds up are those of each way to synchronise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.comm.topologies.schedule import Schedule
from orchestrator.config.plan import Plan
from orchestrator.numerics.layout import Layout
from orchestrator.worker import footprint
from orchestrator.worker.asynchronous import footprint as free_footprint
from orchestrator.worker.footprint import Needed, sums_of
from orchestrator.worker.model import construction
from orchestrator.worker.pipeline_parallel import footprint as stage_footprint
from orchestrator.worker.step.carriers import bytes_beside


def sentence(run_manifest: Mapping[str, Any], plan: Plan) -> str | None:
    """How much memory a worker needs, in words; None where the workers have not told their parameters."""
    if "parameters" not in run_manifest:
        return None
    parameters = run_manifest["parameters"]
    if "stages" in run_manifest:
        return stage_footprint.sentence(run_manifest["stages"], parameters, plan)
    return footprint.sentence(parameters, by_stage(run_manifest, plan)[0], plan)


def by_stage(run_manifest: Mapping[str, Any], plan: Plan) -> list[Needed]:
    """How much memory the worker of each stage needs; the model may be one stage, whole."""
    if "stages" in run_manifest:
        return stage_footprint.by_stage(run_manifest["stages"], plan)
    return [_needs_of(run_manifest, plan, footprint.first_schedule(plan))()]


def at_once(run_manifest: Mapping[str, Any], plan: Plan, schedule: Schedule, stages: Sequence[int]) -> list[int]:
    """By worker's rank, the bytes of its GPU that it needs while others need theirs, beside activations. stages: by rank, the
    stage it hosts; empty where every worker has the whole model."""
    if stages:
        needs_by_stage = stage_footprint.by_stage(run_manifest["stages"], plan)
        return [needs_by_stage[stage].card for stage in stages]
    given = 0 if plan.lockstep else free_footprint.given_to_passes(Layout.from_dict(run_manifest["layout"]))
    needs = _needs_of(run_manifest, plan, schedule)
    return [max(0, needs(ranks=(rank,)).card - given) for rank in range(schedule.workers)]


def _needs_of(run_manifest: Mapping[str, Any], plan: Plan, schedule: Schedule) -> partial[Needed]:
    """A function of `ranks` that finds the memory for a whole model."""
    layout, parameters = Layout.from_dict(run_manifest["layout"]), run_manifest["parameters"]
    if not plan.lockstep:
        return partial(free_footprint.worker_needs, layout, schedule, plan, parameters=parameters)
    feedback, beside = run_manifest["shard_state"], _sums_beside(run_manifest, plan, layout)
    needs = partial(footprint.worker_needs, layout, schedule, plan, parameters=parameters)
    return partial(needs, feedback=feedback, beside=beside)


def _sums_beside(run_manifest: Mapping[str, Any], plan: Plan, layout: Layout) -> int:
    """The bytes of its GPU in which a worker adds up what a compression makes of its shards' contributions."""
    codec = construction.make_codec(plan, layout, run_manifest["trained"]) if plan.encodes_on_device else None
    return 0 if codec is None else bytes_beside(codec)


def of_servers(run_manifest: Mapping[str, Any], plan: Plan, schedule: Schedule) -> list[int]:
    """By server, the bytes of its GPU that its sums and their results take; where it adds up in host memory, it takes none."""
    layout, sums = Layout.from_dict(run_manifest["layout"]), sums_of(plan)
    servers = range(schedule.workers, schedule.members)
    on_card = plan.sums_stay_on_device
    return [footprint.region_bytes(layout, schedule, rank, sums) if on_card else 0 for rank in servers]


def of_a_spare(run_manifest: Mapping[str, Any], plan: Plan) -> int:
    """The bytes of its GPU that a worker holds that is ready and waits for a place. It keeps no stage, and gets an optimizer's
    state with its place."""
    if plan.run.compute.device == "cpu" or "stages" in run_manifest:
        return 0
    layout, parameters = Layout.from_dict(run_manifest["layout"]), run_manifest["parameters"]
    waiting = 0 if plan.lockstep else free_footprint.waiting_bytes(layout, plan)
    return footprint.waiting_bytes(layout, plan, parameters) + waiting + _sums_beside(run_manifest, plan, layout)
