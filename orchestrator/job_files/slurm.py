"""A batch script for Slurm: one Ray over the nodes of the allocation, and the job on its head, by `ray symmetric-run`.

Slurm puts a job whose node is lost back into the queue (`--requeue`); the same command then goes on with the run.
"""

from __future__ import annotations

import math
import shlex

from orchestrator.job_files.entry import Submission

_PORT = 6379


def script(submission: Submission, nodes: int, python: str) -> str:
    """For `sbatch`. nodes: among which the members are divided; python: the interpreter's folder, first on the PATH there."""
    members = math.ceil(submission.members / nodes)
    cpus = max(1, math.ceil(members * submission.cpus))
    gpus = math.ceil(members * submission.gpus)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={submission.id}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={cpus}",
        *([f"#SBATCH --gpus-per-node={gpus}"] if gpus else []),
        "#SBATCH --requeue",
        f"#SBATCH --output={submission.id}-%j.log",
        "set -euo pipefail",
        f'export PATH="{python}:$PATH" RAY_USAGE_STATS_ENABLED=0',
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f'address=$(getent ahostsv4 "$head" | head -n 1 | cut -d " " -f 1):{_PORT}',
        f'export COMMAND={shlex.quote(submission.command("$ADDRESS"))} ADDRESS="$address"',
        f'srun ray symmetric-run --address "$address" --min-nodes {nodes} --num-cpus={cpus} -- bash -c "$COMMAND"',
    ]
    return "\n".join(lines) + "\n"
