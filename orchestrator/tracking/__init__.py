"""MLflow, and nothing else imports mlflow: one client, in the driver, buffered."""

from orchestrator.tracking.store import (
    KIND,
    PARENT,
    Past,
    Store,
    default_uri,
    is_of_this_machine,
    is_server,
    server_command,
)
from orchestrator.tracking.tracker import Tracker

__all__ = [
    "KIND",
    "PARENT",
    "Past",
    "Store",
    "Tracker",
    "default_uri",
    "is_of_this_machine",
    "is_server",
    "server_command",
]
