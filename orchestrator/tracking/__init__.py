"""MLflow, and nothing else imports mlflow: one client, in the driver, buffered."""

from orchestrator.tracking.logged import ModelFiles
from orchestrator.tracking.store import KIND, PARENT, Past, Store, default_uri, is_server, server_command
from orchestrator.tracking.tracker import Tracker

__all__ = ["KIND", "PARENT", "ModelFiles", "Past", "Store", "Tracker", "default_uri", "is_server", "server_command"]
