"""A batch script for Slurm: the job's own Ray over the nodes of the allocation, and the job on the first of them
(`orchestrator.cluster.slurm`).

Slurm puts a job whose node is lost back into the queue (`--requeue`); the same command then goes on with the run.
"""

from __future__ import annotations

import math
import shlex

from orchestrator.cli.jobs.templates.entry import Submission

_CHECKPOINT_S = 60  # before the time limit or a preemption: the time for a last checkpoint


def script(submission: Submission, nodes: int, python: str) -> str:
    """For `sbatch`. nodes: among which the members are divided; python: the interpreter's folder, first on the PATH there."""
    members = math.ceil(submission.members / nodes)
    cpus = max(1, math.ceil(members * submission.cpus))
    gpus = math.ceil(members * submission.gpus)
    job = ["python", "-m", "orchestrator.cluster.slurm", str(cpus), f"{submission.start_timeout_s:g}"]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={submission.id}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={cpus}",
        *([f"#SBATCH --gpus-per-node={gpus}"] if gpus else []),
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{_CHECKPOINT_S}",
        f"#SBATCH --output={_log(submission)}",
        "set -euo pipefail",
        f'export PATH={shlex.quote(python)}:"$PATH" RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0',
        "RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN",
        f"cd {shlex.quote(submission.project)}",
        f"exec {shlex.join([*job, *submission.words()])}",
    ]
    return "\n".join(lines) + "\n"


def _log(submission: Submission) -> str:
    """Not among the project's code, of which it would be a part that changes all the time. Quoted for sbatch, in whose names of
    files % begins a variable."""
    folder = f"{submission.project}/.orchestrator".replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{folder}/{submission.id}-%j.log"'
