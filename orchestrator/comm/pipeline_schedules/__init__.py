"""Pipeline schedules as data: in which order the members of a model that is cut into stages take shards forward and backward.

    programs(hosts, "1f1b")[rank]        # the tasks of a rank in a step (flow)
    timeline(hosts, programs, costs)     # when they begin and end, and how much of that is waiting (timeline)

An order is a function and a line in the table `PIPELINING` (orders); the laws of `laws.py` hold it to the same properties as
the others.

`orchestrator.worker` cuts models and executes schedules.
"""

from orchestrator.comm.pipeline_schedules.flow import Hosts, Programs, Task, groups_of, next_task, programs
from orchestrator.comm.pipeline_schedules.orders import PIPELINING, Order, PipelinePosition
from orchestrator.comm.pipeline_schedules.timeline import Span, bubble, nominal, timeline

__all__ = [
    "PIPELINING",
    "Hosts",
    "Order",
    "PipelinePosition",
    "Programs",
    "Span",
    "Task",
    "bubble",
    "groups_of",
    "next_task",
    "nominal",
    "programs",
    "timeline",
]
