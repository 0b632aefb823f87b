"""The metrics that MLflow is told of a run, as gauges of Ray's own metrics, which Ray's agent on the driver's node shows to
Prometheus.

Only an agent with the packages of `ray[default]` shows any. A joined Ray has one where these are installed, at the port of
`ray start --metrics-export-port`; a private Ray gets one where `tracking.metrics_port` asks for it.
"""

from __future__ import annotations

import importlib.util
import re
import socket
import string
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

PREFIX = "orchestrator_"  # before which Ray puts ray_
_PACKAGES = ("aiohttp_cors", "grpc", "opencensus", "opentelemetry.exporter.prometheus", "prometheus_client")
_STEP_OF = "train/"  # is told of every step; what is told at the end of a checkpoint belongs to an earlier one


class Gauges:
    """The newest value of each metric of a run, with its id, name and experiment as labels. Called with (step, values). Ray
    takes ASCII alone, so other characters are told as in addresses: %C3%BC."""

    def __init__(self, run_id: str, name: str, experiment: str) -> None:
        self._labels = {"run": run_id, "name": _in_ascii(name), "experiment": _in_ascii(experiment)}
        self._gauges: dict[str, Any] = {}

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._set(name, value)
        if any(name.startswith(_STEP_OF) for name in values):
            self._set("steps", step + 1)

    def _set(self, name: str, value: float) -> None:
        if name not in self._gauges:
            from ray.util.metrics import Gauge

            told = f"{_in_ascii(name)} of a run of orchestrator"
            self._gauges[name] = Gauge(gauge_name(name), told, tuple(self._labels))
        self._gauges[name].set(value, self._labels)


def _in_ascii(text: str) -> str:
    return quote(text, safe=string.printable)


def gauge_name(metric: str) -> str:
    """validation/accuracy -> orchestrator_validation_accuracy"""
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", metric)


def lacking() -> str | None:
    """The obstacle to showing metrics by an agent that is started here."""
    missing = [package for package in _PACKAGES if not _is_installed(package)]
    if not missing:
        return None
    return (
        f"Ray's agent needs ray[default], of which {', '.join(missing)} is not installed; pip install 'ray[default]', or leave "
        "tracking.metrics_port out"
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def is_free(port: int) -> bool:
    """Whether nobody on this machine listens there: Ray's agent would only note in its log that it cannot."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the agent does, after one that has just ended
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
