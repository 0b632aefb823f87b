"""Errors of MLflow name the store and what to do, and never a password."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException, RestException
from mlflow.utils.rest_utils import MlflowHostCreds
from requests import HTTPError, Response
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from orchestrator.experiments.listing import runs
from orchestrator.provenance.tracking import Store, store_errors
from orchestrator.provenance.tracking.addresses import problems
from tests.refusals import refused

_SERVER = "http://me:hush@mlflow.example:5000"
_OF_A_READER = RestException({"error_code": "PERMISSION_DENIED", "message": "Permission denied"})  # type: ignore[no-untyped-call]
_URL = "http://mlflow.example/api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/run/card%20a.md"
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


_VERIFY = "SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {} (_ssl.c:1006)')"


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (_VERIFY.format("unable to get local issuer certificate"), "unable to get local issuer certificate"),
        (
            'SSLError(136, "[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found (_ssl.c:4154)")',
            "or crl found",
        ),
        ('SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")', "TLS: wrong version number"),
    ],
)
def test_a_server_whose_certificate_is_not_trusted_is_told_apart_in_a_line(cause: str, told: str) -> None:
    error = _of_retries(f"SSLError({cause})")

    def fail() -> None:
        raise error

    with refused("mlflow.tls", told) as caught, store_errors.usable(_SERVER):
        fail()
    assert "Caused by" not in str(caught.value)
    assert "MLFLOW_TRACKING_SERVER_CERT_PATH" in caught.value.remedy
    assert not store_errors.has_answered(error)


def test_variables_that_mlflow_takes_one_of_are_named_with_the_one_to_unset() -> None:
    """The remedy was to start the server."""
    with (
        refused("mlflow.two-variables", "MLFLOW_TRACKING_SERVER_CERT_PATH are both set") as caught,
        store_errors.usable(_SERVER),
    ):
        MlflowHostCreds(_SERVER, ignore_tls_verification=True, server_cert_path="/ca.pem")  # type: ignore[no-untyped-call]
    assert caught.value.codes == ("mlflow.two-variables",)


def test_a_database_whose_driver_is_not_installed_is_told_with_the_package_that_brings_it() -> None:
    """It was a traceback, when workers had been started."""
    uri = "mysql+asyncmy://me:hush@h/db"
    with refused("mlflow.no-driver", "mysql+asyncmy://h/db is opened with asyncmy") as caught, store_errors.usable(uri):
        create_engine(uri)
    assert caught.value.remedy.startswith("pip install asyncmy, ")


def test_an_address_that_mlflow_repeats_has_no_password_in_its_reason(tmp_path: Path) -> None:
    with refused("mlflow.unusable", "oracle://h/db") as caught:
        Store("oracle://me:hush@h/db", tmp_path)
    assert "hush" not in str(caught.value)


def test_a_certificate_that_nobody_checks_is_warned_of_once(tmp_path: Path) -> None:
    """urllib3 warns with each request, of which a run makes hundreds."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Store(None, tmp_path)
        for _ in range(3):
            warnings.warn("Unverified HTTPS request is being made to host 'of-this-test'", stacklevel=1)
    assert len(seen) == 1


def test_a_file_of_certificates_that_is_not_there_is_named() -> None:
    error = MlflowException(
        "API request to https://h failed with exception "
        "Could not find a suitable TLS CA certificate bundle, invalid path: /a/b.pem"
    )
    assert store_errors.reason(error) == "there is no file with certificates at /a/b.pem"


@pytest.mark.parametrize(("status", "code"), [(401, "mlflow.denied"), (403, "mlflow.forbidden")])
def test_what_a_known_user_may_not_use_is_named(status: int, code: str) -> None:
    error = MlflowException(f"{_ENDPOINT} {status} != 200. Response body: 'Permission denied'")

    def fail() -> None:
        raise error

    with refused(code, "http://mlflow.example:5000") as caught, store_errors.usable(_SERVER, "experiment shared"):
        fail()
    assert "hush" not in str(caught.value)
    assert ("experiment shared" in str(caught.value)) == (status == 403)
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.remedy


def test_a_database_that_lets_nobody_in_is_told_with_what_it_asks_for() -> None:
    def fail() -> None:
        raise MlflowException('(psycopg2.OperationalError) FATAL:  password authentication failed for user "me"')

    with (
        refused("mlflow.unusable", "of-this-test") as caught,
        store_errors.usable("postgresql://me:hush@of-this-test/x"),
    ):
        fail()
    assert "password" in caught.value.remedy
    assert "hush" not in str(caught.value)


def test_who_may_not_write_to_an_experiment_is_told_to_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MlflowException(f"{_ENDPOINT} 403 != 200. Response body: 'Permission denied'")

    monkeypatch.setattr("orchestrator.provenance.tracking.store.client_of", lambda _: None)
    with refused("mlflow.forbidden", "shared") as caught, Store(_SERVER, tmp_path).usable_experiment("shared"):
        fail()
    assert "run.experiment=NAME" in caught.value.remedy


def test_a_run_that_this_user_may_not_see_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server leaves it out where runs are listed."""

    class Hiding:
        def get_run(self, _: str) -> Any:
            raise MlflowException(
                "API request to endpoint /x failed with error code 403 != 200. Response body: 'Denied'"
            )

    monkeypatch.setattr("orchestrator.provenance.tracking.store.client_of", lambda _: Hiding())
    store = Store(_SERVER, tmp_path)
    monkeypatch.setattr(store, "past", list)
    monkeypatch.setattr(store, "_search", lambda *_, **__: [])
    with refused("mlflow.forbidden", f"run {'0123abcd' * 4}, if there is one"):
        store.find("0123abcd" * 4)
    for name in ("last", "0123abcd"):  # a server with users answers 403 for whatever is no run
        with refused("mlflow.no-such-run"):
            store.find(name)


def _of_upload(status: int) -> HTTPError:
    """As MLflow raises it for an artifact."""
    response = Response()
    response.status_code, response.url = status, _URL
    return HTTPError(f"{status} for url: {_URL}. Response text: <html>\n</html>", response=response)


def _of_retries(cause: str) -> MlflowException:
    """As MLflow raises it where urllib3 gives up."""
    return MlflowException(
        f"API request failed with exception x: Max retries exceeded with url: /api (Caused by {cause})"
    )


@pytest.mark.parametrize(
    ("error", "answered", "passing", "told"),
    [
        (_of_upload(413), True, False, "the server answers 413 (Request Entity Too Large) to card a.md"),
        (_of_upload(403), True, False, "the server answers 403 (Forbidden) to card a.md"),
        (_of_upload(401), False, False, "the server answers 401 (Unauthorized) to card a.md"),
        (
            MlflowException(f"{_ENDPOINT} 401 != 200. Response body: 'You are not authenticated.'"),
            False,
            False,
            "the server answers 401 (Unauthorized): You are not authenticated.",
        ),
        (
            MlflowException(f"{_ENDPOINT} 404 != 200. Response body: '<html><body>nothing here</body></html>'"),
            True,
            False,
            "the server answers 404 (Not Found)",
        ),
        (
            MlflowException(
                "API request to endpoint /api/2.0/mlflow/logged-models/search failed with error code 404 != 200. "
                "Response body: '<html>\n</html>'"
            ),
            True,
            False,
            "the server is older than MLflow 3 and keeps no logged models",
        ),
        (
            _of_retries("ResponseError('too many 429 error responses')"),
            False,
            True,
            "the server answers 429 (Too Many Requests)",
        ),
        (
            _of_retries("ResponseError('too many 500 error responses')"),
            True,
            True,
            "the server answers 500 (Internal Server Error)",
        ),
        (
            _of_retries("ProtocolError('Connection aborted.', RemoteDisconnected('Remote end closed connection'))"),
            False,
            True,
            "no answer from the server: it closed the connection",
        ),
        (
            MlflowException("API request failed with exception ('Connection broken: IncompleteRead(1 bytes read)')"),
            False,
            True,
            "no answer from the server: it broke off",
        ),
        (
            MlflowException(
                "API request to endpoint was successful but the response body was not in a valid JSON format. "
                "Response body: '<!DOCTYPE html><html><body>Sign in</body></html>'"
            ),
            False,
            False,
            "no answer from the server: there is something else at its address, such as a page to log in",
        ),
        (
            _of_retries("ProxyError('Cannot connect to proxy.', NewConnectionError('[Errno 111] Connection refused'))"),
            False,
            False,
            "no answer from the proxy that HTTP_PROXY or HTTPS_PROXY names; NO_PROXY names hosts that need none",
        ),
        (
            _of_retries("NewConnectionError('[Errno 111] Connection refused')"),
            False,
            False,
            "no answer from the server: Connection refused",
        ),
    ],
    ids=str,
)
def test_what_a_server_or_a_gateway_answers_is_judged_and_told(
    error: Exception, answered: bool, passing: bool, told: str
) -> None:
    found = store_errors.has_answered(error), store_errors.is_passing(error), store_errors.reason(error)
    assert found == (answered, passing, told)
    assert store_errors.is_refusal(error) == ("older than" in told), "whatever is refused is never sent again"


def test_a_store_that_another_user_keeps_to_themselves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared project, of users whose umask is 077. Root may read all, so the refusal is the system's in part."""

    def denied(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", denied)
    with refused("mlflow.not-yours", "mlflow.db"):
        Store.with_run(None, tmp_path, "last")
    with refused("mlflow.not-yours", "mlflow.db"):
        runs(tmp_path, None, print)


@pytest.mark.parametrize(
    ("uri", "code", "told"),
    [
        ("sqlite:///:memory:", "mlflow.in-memory", "name a file"),
        ("sqlite://", "mlflow.in-memory", "name a file"),
        ("sqlite:///file::memory:?cache=shared&uri=true", "mlflow.in-memory", "name a file"),
        ("sqlite:///file:x?mode=memory&uri=true", "mlflow.in-memory", "name a file"),
        ("127.0.0.1:5000", "mlflow.no-scheme", "such as http://127.0.0.1:5000"),
        ("me:hush@mlflow.example:5000/team", "mlflow.no-scheme", "such as http://mlflow.example:5000/team"),
    ],
)
def test_an_address_at_which_nothing_would_be_recorded_is_refused(
    uri: str, code: str, told: str, tmp_path: Path
) -> None:
    """A run went on to its end and was recorded nowhere; an address without http:// was told about MLflow's file store."""
    with refused(code, told) as caught:
        Store(uri, tmp_path)
    assert "hush" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "uri", [None, "mlruns", "./a:5000", "sqlite:///memory.db", "sqlite:////m?timeout=5", "http://h:5000", "file:///a"]
)
def test_an_address_of_a_file_or_a_server_is_none_of_those(uri: str | None) -> None:
    assert problems(uri) == []


def test_a_file_that_can_hold_no_database_is_told() -> None:
    """MLflow lets the errors of SQLAlchemy out where it makes its tables."""
    error = OperationalError("CREATE TABLE experiments", {}, sqlite3.OperationalError("disk I/O error"))

    def fail() -> None:
        raise error

    with refused("mlflow.unusable", "disk I/O error") as caught, store_errors.usable("sqlite:////dev/null"):
        fail()
    assert "CREATE" not in str(caught.value)
    assert "the project's own" not in caught.value.remedy  # which it may be


def test_a_server_that_is_away_again_as_runs_are_asked_for_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had answered a moment before."""

    class Away:
        def experiments(self) -> list[Any]:
            raise MlflowException(f"{_ENDPOINT} 503 != 200. Response body: ''")

    monkeypatch.setattr(Store, "_of_mlflow", lambda _: Away())
    store = Store("http://server:5000", tmp_path)
    for ask in (lambda: store.find("0" * 32), store.past):
        with refused("mlflow.unusable", "http://server:5000 cannot be used: the server answers 503"):
            ask()
    assert store.of_identity("1") == []
