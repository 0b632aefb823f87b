"""Several raylets on this machine, as a process of their own: `python -m tests.cluster.raylets SIZE...`, one node each, by
CPUS[:GPUS][@SITE], the last a resource of its own.

Prints the address when all nodes are there. A line "remove" on stdin kills the last node, "add SIZE" starts another one; its
end ends them all.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from ray.cluster_utils import Cluster

QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
STORE_BYTES = 80 * 2**20


def size(argument: str) -> dict[str, Any]:
    """GPUs are only said to be there; none that is there counts."""
    sizes, _, site = argument.partition("@")
    cpus, _, gpus = sizes.partition(":")
    resources = {"resources": {site: 1}} if site else {}
    return {"num_cpus": int(cpus), "num_gpus": int(gpus or 0), "object_store_memory": STORE_BYTES, **resources}


def main() -> None:
    logging.disable(logging.INFO)
    first, *others = (size(argument) for argument in sys.argv[1:])
    head = {**first, "include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [cluster.add_node(**other) for other in others]
        cluster.wait_for_nodes()
        print(f"address {cluster.address}", flush=True)
        for line in sys.stdin:
            if line.strip() == "remove":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            elif line.startswith("add "):
                nodes.append(cluster.add_node(**size(line.split()[1])))
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
