"""Jobs: a launch that somebody else starts, and starts again when it was lost. Pure: what is to be run, and as what.

    entry.py        the command that a job runs
    kubernetes.py   a RayJob of KubeRay
    slurm.py        a batch script

Ray's own jobs are `orchestrator.cluster.ray_jobs`. It calls neither kubectl nor sbatch.
"""
