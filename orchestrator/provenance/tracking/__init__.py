"""MLflow, and nothing else imports mlflow: one client, in the driver, buffered."""

from orchestrator.provenance.tracking.addresses import (
    as_argument,
    default_uri,
    experiment_page,
    is_of_this_machine,
    is_server,
    run_page,
    server_command,
)
from orchestrator.provenance.tracking.store import (
    DIGEST_OF_BEST,
    EXECUTION,
    KIND,
    LABEL,
    PARENT,
    SETTINGS,
    TRACE,
    Driving,
    Past,
    Store,
    identity_of_process,
    is_there,
    orphaned,
)
from orchestrator.provenance.tracking.tracker import ERROR, STATUS, Tracker

__all__ = [
    "DIGEST_OF_BEST",
    "ERROR",
    "EXECUTION",
    "KIND",
    "LABEL",
    "PARENT",
    "SETTINGS",
    "STATUS",
    "TRACE",
    "Driving",
    "Past",
    "Store",
    "Tracker",
    "as_argument",
    "default_uri",
    "experiment_page",
    "identity_of_process",
    "is_of_this_machine",
    "is_server",
    "is_there",
    "orphaned",
    "run_page",
    "server_command",
]
