"""python -m orchestrator.cluster.slurm CPUS START_TIMEOUT_S COMMAND...: CPUS of each node; the command gets the address."""

from __future__ import annotations

import sys

from orchestrator.cluster.slurm import batch

if __name__ == "__main__":
    sys.exit(batch.run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
