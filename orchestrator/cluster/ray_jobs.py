"""Ray's own jobs: a command that runs on the head of a Ray, submitted to its dashboard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.errors import ClusterUnavailable, UsageError

_AGENT_S, _AGAIN_S = 60.0, 0.5
_LATER = "try again later"
Status = Literal["pending", "running", "succeeded", "failed", "stopped"]
_NO_AGENT = (
    "the head has just started, or its agent could not: submit it again; if that does not help, dashboard_agent.log in the "
    "head's session_latest/logs says why"
)
_REMEDY = "give the address of the head's dashboard, such as to=http://127.0.0.1:8265; it needs ray[default] there"


@dataclass(frozen=True)
class Jobs:
    """The jobs of one Ray. url: of its dashboard."""

    url: str

    def submit(self, name: str, command: str) -> bool:
        """Start a job; returns whether one was started. A job of this name that is pending, running or has succeeded is left
        alone; one that failed or was stopped is run again. Raises ClusterUnavailable."""
        with self._client() as client:
            known = self._status(client, name)
            if known in ("pending", "running", "succeeded"):
                return False
            if known is not None:
                client.delete_job(name)
            deadline = time.monotonic() + _AGENT_S
            while True:
                try:
                    client.submit_job(entrypoint=command, submission_id=name, metadata={"made_by": "orchestrator"})
                except RuntimeError as error:
                    if _LATER not in str(error):
                        raise
                    if time.monotonic() > deadline:
                        raise ClusterUnavailable(
                            f"the Ray at {self.url} has had no agent that starts jobs for {_AGENT_S:g} s",
                            _NO_AGENT,
                            str(error),
                            code="ray.no-agent",
                        ) from error
                    time.sleep(_AGAIN_S)  # a head that has just started has no agent yet
                else:
                    return True

    def status(self, name: str) -> tuple[Status, str]:
        """(status, what Ray says of it). Raises ClusterUnavailable, UsageError for a job that it does not know."""
        with self._client() as client:
            found = self._known(client, name)
            return found, str(client.get_job_info(name).message or "")

    def logs(self, name: str) -> str:
        """The output of the job so far. Raises ClusterUnavailable, UsageError."""
        with self._client() as client:
            self._known(client, name)
            return str(client.get_job_logs(name))

    def stop(self, name: str) -> bool:
        """Ask it to end in order; False where it had ended. Raises ClusterUnavailable, UsageError."""
        with self._client() as client:
            if self._known(client, name) not in ("pending", "running"):
                return False
            return bool(client.stop_job(name))

    def _known(self, client: Any, name: str) -> Status:
        found = self._status(client, name)
        if found is None:
            raise UsageError(
                f"the Ray at {self.url} knows no job {name}",
                "a head that was started again forgets its jobs: submit it again, and its run goes on",
                code="ray.no-such-job",
            )
        return found

    @staticmethod
    def _status(client: Any, name: str) -> Status | None:
        jobs = {job.submission_id: job for job in client.list_jobs()}
        status: Status | None = jobs[name].status.value.lower() if name in jobs else None
        return status

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """Raises ClusterUnavailable for whatever goes wrong between here and there."""
        import requests
        from ray.job_submission import JobSubmissionClient

        try:
            yield JobSubmissionClient(self.url)
        except (ConnectionError, requests.exceptions.RequestException, RuntimeError) as error:
            reason = (str(error).splitlines() or [repr(error)])[0]
            raise ClusterUnavailable(
                f"the Ray at {self.url} does not take jobs: {reason}", _REMEDY, str(error), code="ray.takes-no-jobs"
            ) from error
