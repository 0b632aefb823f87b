"""A real MLflow server in a process group of its own, in its light form, on a free port of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.projects import PATIENCE_S


class Server:
    """`start` and `stop` as often as wanted; the store, in `folder`, and the address stay. before: what starts it, and asks it,
    elsewhere, such as `ip netns exec NAME`; host: its address there."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", before: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._host, self._before = host, before
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.uri = f"http://{host}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        options = {
            "--backend-store-uri": f"sqlite:///{self._folder / 'server.db'}",
            "--artifacts-destination": str(self._folder / "artifacts"),
            "--host": self._host,
            "--port": str(self._port),
            "--workers": "1",
        }
        light = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._before,
                    sys.executable,
                    "-m",
                    "mlflow",
                    "server",
                    *(part for pair in options.items() for part in pair),
                ],
                cwd=self._folder,
                env={**os.environ, **light},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < deadline, (self._folder / "server.log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        return self.get("/health") is not None

    def get(self, path: str) -> bytes | None:
        """The server's answer; None if there is none."""
        if self._before:
            command = [*self._before, "curl", "--silent", "--fail", "--max-time", "2", f"{self.uri}{path}"]
            asked = subprocess.run(command, check=False, capture_output=True)
            return None if asked.returncode else asked.stdout
        try:
            with urllib.request.urlopen(f"{self.uri}{path}", timeout=2) as answer:
                return bytes(answer.read())
        except OSError:
            return None
