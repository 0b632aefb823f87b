"""A RayJob of KubeRay: a Ray cluster that is made for the job, and the job itself.

When the head is lost, KubeRay makes another cluster and runs the same command again (`backoffLimit`), which goes on with the
run. `authOptions` has it make a token for each cluster, a Secret, which it gives to every pod and uses itself: one that we made
would be unknown to it, and it could not ask how the job is. Source: KubeRay 1.7, `ray.io/v1`; its CRD holds this to its schema
in the tests.
"""

from __future__ import annotations

from typing import Any

import yaml

from orchestrator.cli.jobs.templates.entry import Submission

_RETRIES = 6
_KEPT_S = 3600


def manifest(submission: Submission, image: str, claim: str, ray_version: str) -> str:
    """YAML for `kubectl apply -f -`. image: with Python, this package and its dependencies; claim: the PersistentVolumeClaim
    with the project, mounted at its folder, in which the run's files and checkpoints outlive the pods."""
    cpus = max(1, round(submission.cpus))
    resources: dict[str, Any] = {"cpu": str(cpus), "memory": "4Gi"}
    if submission.gpus:
        resources["nvidia.com/gpu"] = str(max(1, round(submission.gpus)))
    found = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": submission.id},
        "spec": {
            "entrypoint": submission.joining(),
            "submissionMode": "K8sJobMode",
            "backoffLimit": _RETRIES,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEPT_S,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    # Its own processes need a CPU, and no member runs there: the driver does.
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _pod("ray-head", image, {"cpu": "2", "memory": "4Gi"}, submission.project, claim),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "members",
                        "replicas": submission.members,
                        "minReplicas": submission.members,
                        "maxReplicas": submission.members,
                        "rayStartParams": {"num-cpus": str(cpus)},
                        "template": _pod("ray-worker", image, resources, submission.project, claim),
                    }
                ],
            },
        },
    }
    return yaml.safe_dump(found, sort_keys=False, width=10_000)


def _environment() -> list[dict[str, str]]:
    """The mode here too: a KubeRay that does not know authOptions drops it, and a Ray without a token then does not start."""
    values = {"RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return [{"name": name, "value": value} for name, value in values.items()]


def _pod(name: str, image: str, resources: dict[str, Any], project: str, claim: str) -> dict[str, Any]:
    container = {
        "name": name,
        "image": image,
        "env": _environment(),
        "resources": {"requests": {**resources}, "limits": {**resources}},  # apart, or YAML names one and refers to it
        "volumeMounts": [{"name": "project", "mountPath": project}],
    }
    volume = {"name": "project", "persistentVolumeClaim": {"claimName": claim}}
    return {"spec": {"containers": [container], "volumes": [volume]}}
