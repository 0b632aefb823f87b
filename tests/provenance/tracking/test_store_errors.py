"""Errors of MLflow name the store and what to do, and never a password."""

from __future__ import annotations

import pytest
from mlflow.exceptions import MlflowException, RestException

from orchestrator.provenance.tracking import store_errors
from tests.refusals import refused

_SERVER = "http://me:hush@mlflow.example:5000"
_OF_A_READER = RestException({"error_code": "PERMISSION_DENIED", "message": "Permission denied"})  # type: ignore[no-untyped-call]
_ENDPOINT = "API request to endpoint /api/2.0/mlflow/experiments/search failed with error code"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MlflowException(f"{_ENDPOINT} 401 != 200. Response body: 'You are not authenticated.'"), "mlflow.denied"),
        (MlflowException(f"{_ENDPOINT} 403 != 200. Response body: 'Permission denied'"), "mlflow.denied"),
        (_OF_A_READER, "mlflow.denied"),
        (MlflowException(f"{_ENDPOINT} 404 != 200. Response body: 'error code 403 '"), "mlflow.unusable"),
        (ConnectionError("refused"), "mlflow.unusable"),
    ],
    ids=str,
)
def test_a_user_whom_a_server_does_not_let_in_is_told_apart(error: Exception, code: str) -> None:
    def fail() -> None:
        raise error

    with refused(code, "http://mlflow.example:5000") as caught, store_errors.usable(_SERVER):
        fail()
    assert "hush" not in str(caught.value)
    assert ("MLFLOW_TRACKING_PASSWORD" in caught.value.remedy) == (code == "mlflow.denied")
