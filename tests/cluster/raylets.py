"""Several raylets on this machine, as a process of their own: `python -m tests.cluster.raylets CPUS...`, one node per number.

Prints the address when all nodes are there. A line "remove" on stdin kills the last node; the end of stdin ends them all.
"""

from __future__ import annotations

import logging
import sys

from ray.cluster_utils import Cluster

QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
STORE_BYTES = 80 * 2**20


def main() -> None:
    logging.disable(logging.INFO)
    cpus = [int(argument) for argument in sys.argv[1:]]
    options = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    head = {**options, "num_cpus": cpus[0], "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [cluster.add_node(num_cpus=number, object_store_memory=STORE_BYTES) for number in cpus[1:]]
        cluster.wait_for_nodes()
        print(f"address {cluster.address}", flush=True)
        for line in sys.stdin:
            if line.strip() == "remove":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
