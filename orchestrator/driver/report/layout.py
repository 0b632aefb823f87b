"""The layout of a run in words. No Ray is imported, since commands that only check a configuration need it, too."""

from __future__ import annotations

from orchestrator.config.plan import Plan


def layout(plan: Plan) -> str:
    """Members and topology of a run in words, such as "3 workers and 1 server, topology parameter_server"."""
    of = plan.cluster.members
    number = str(of.most) if of.start == of.most else f"{of.start} to {of.most}"
    counts = [(number, "worker"), (str(of.spares), "spare"), (str(of.servers), "server")]
    members = [f"{count} {role}{'s' * (count != '1')}" for count, role in counts if count != "0"]
    stages = f"{of.stages} stages, pipeline {plan.pipelining.name}, " if of.stages > 1 else ""
    return f"{' and '.join(members)}, {stages}topology {plan.exchange.topology.name}{', TLS between hosts' * plan.exchange.tls}"
