"""The errors of MLflow's store: as one of ours that names the store, as one line, and whether another try may succeed."""

from __future__ import annotations

import re
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from orchestrator.errors import ConfigurationError
from orchestrator.provenance.tracking.addresses import is_server
from orchestrator.records import redaction

_FROM_SYSTEM = re.compile(r"\[Errno -?\d+\] ([^\"')]+)")  # what the operating system said of a connection
_DENIED = re.compile(r"failed with error code 40[13] ")  # so MLflow tells an answer that it does not read
_OF_TLS = re.compile(r"SSLError\(|suitable TLS CA certificate bundle")
_TWO_VARIABLES = re.compile(r"'(MLFLOW_\w+_INSECURE_TLS)' and '(MLFLOW_\w+)' environment variables are both set")
_TLS_SAID = re.compile(r"\[[^\]']+\] ([^']+?) \(_ssl\.c")  # OpenSSL, by way of Python
_NO_CERTIFICATES = re.compile(r"TLS CA certificate bundle, invalid path: (\S+)")
_STATUS = re.compile(r"failed with error code (\d{3}) |too many (\d{3}) error responses")  # likewise
_BODY = re.compile(r"Response body: '([^<\s][^\n]{0,80})'$")  # of an answer that is no page
_NO_MODELS = re.compile(r"endpoint \S*/logged-models\S* failed with error code 404 ")
_NOT_OF_MLFLOW = "the response body was not in a valid JSON format"
# Each other request gets the same answer: nobody is logged in, there is too much to do, or nobody is behind the gateway.
_OF_ANY_REQUEST = frozenset({401, 407, 408, 425, 429, 502, 503, 504})
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that may be others in a moment
_ANOTHER_USER = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of a user who may"
_DATABASES = ("postgresql", "mysql", "mssql")  # with servers of their own, as SQLAlchemy names them
# The modules by which it talks with these, where the package that brings one has another name.
_PACKAGES = {"psycopg": "'psycopg[binary]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
_BROKEN = ("RemoteDisconnected", "Connection reset by peer", "IncompleteRead")


def experiment_deleted(uri: str, name: str, experiment_id: str) -> ConfigurationError:
    """The refusal to record a run in an experiment that was deleted."""
    command = restoring(uri, f"experiments restore --experiment-id {experiment_id}")
    return ConfigurationError(
        [f"run.experiment: {name} is deleted in {redaction.text(uri)}"],
        f"take another name, or bring it back: {command}",
        code="mlflow.experiment-deleted",
    )


def restoring(uri: str, command: str) -> str:
    """The command of MLflow's own program for this store: without the variable it opens one of the present folder."""
    return f"MLFLOW_TRACKING_URI={shlex.quote(redaction.text(uri))} mlflow {command}"


@contextmanager
def usable(uri: str, wanted: str | None = None, instead: str = "") -> Iterator[None]:
    """Turns what MLflow raises inside the block into a ConfigurationError that names the store and the remedy. wanted: what is
    used there, if not all users of a server may; instead: what such a user may do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_database(uri):
            raise ConfigurationError(
                [f"tracking.uri: {redaction.text(uri)} is opened with {error.name}, which is not installed"],
                f"pip install {_PACKAGES.get(str(error.name), error.name)}, or name another driver, as in postgresql+psycopg2://",
                code="mlflow.no-driver",
            ) from error
        foreseen = (
            isinstance(error, (sqlite3.Error, OSError, ValueError)) or is_of_mlflow(error) or _is_of_sqlalchemy(error)
        )
        if not foreseen:
            raise
        named = redaction.text(uri)
        if wanted is not None and is_forbidden(error):
            raise ConfigurationError(
                [f"tracking.uri: this user may not use {wanted} of the MLflow server {named}: {reason(error)}"],
                f"ask who manages it for the right to, {instead}or {_ANOTHER_USER}",
                code="mlflow.forbidden",
            ) from error
        if is_denial(error):
            raise ConfigurationError(
                [f"tracking.uri: the MLflow server {named} refuses this user: {reason(error)}"],
                _ANOTHER_USER,
                code="mlflow.denied",
            ) from error
        if found := _TWO_VARIABLES.search(str(error)):
            raise ConfigurationError(
                [f"tracking.uri: {found[1]} and {found[2]} are both set, and MLflow takes one of them"],
                f"unset {found[1]}: then the server's certificate is looked at",
                code="mlflow.two-variables",
            ) from error
        if _OF_TLS.search(str(error)):
            raise ConfigurationError(
                [f"tracking.uri: the MLflow server {named} cannot be used: {reason(error)}"],
                "name a file with the certificate of its authority with MLFLOW_TRACKING_SERVER_CERT_PATH, or mend its address",
                code="mlflow.tls",
            ) from error
        if is_server(uri):
            what = f"the MLflow server {named} cannot be used"
            remedy = "start it, mend its address, or leave tracking.uri out for the project's own store"
        else:  # which may be the project's own
            what = f"the MLflow store {named} cannot be used"
            needed = "server, and its name, user and password" if _is_database(uri) else "place and the room there"
            remedy = f"see to its {needed}, or name another one with tracking.uri"
        raise ConfigurationError([f"tracking.uri: {what}: {reason(error)}"], remedy, code="mlflow.unusable") from error


def _is_database(uri: str) -> bool:
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def is_of_mlflow(error: BaseException) -> bool:
    if "mlflow" not in sys.modules:
        return False
    from mlflow.exceptions import MlflowException

    return isinstance(error, MlflowException)


def _is_of_sqlalchemy(error: BaseException) -> bool:
    """MLflow makes its tables by statements whose errors it does not turn into its own."""
    return any(each.__module__ == "sqlalchemy.exc" for each in type(error).__mro__)


def is_denial(error: BaseException) -> bool:
    """Whether a server does not let this user in, or do what was asked."""
    return _code(error) in ("PERMISSION_DENIED", "UNAUTHENTICATED") or _DENIED.search(str(error)) is not None


def is_forbidden(error: BaseException) -> bool:
    """Whether a server knows this user, who may not do what was asked."""
    return _code(error) == "PERMISSION_DENIED" or status_of(error) == HTTPStatus.FORBIDDEN


def is_refusal(error: Exception) -> bool:
    """Whether the store takes this never, whenever it is told."""
    if isinstance(error, OSError):
        return False
    if _NO_MODELS.search(str(error)):
        return True
    return isinstance(error, ValueError | TypeError) or _code(error) == "INVALID_PARAMETER_VALUE"


def has_answered(error: Exception) -> bool:
    """Whether there is a store that may take something else."""
    status = status_of(error)
    if status is not None:
        return status not in _OF_ANY_REQUEST
    if isinstance(error, OSError):  # of a file; those of requests have no number
        return error.errno is not None and not isinstance(error, ConnectionError | TimeoutError)
    return is_refusal(error) or _code(error) == "BAD_REQUEST" or type(error).__name__ == "RestException"


def is_passing(error: Exception) -> bool:
    """Whether the next try may succeed a moment later: there is a server, or something in front of it."""
    return status_of(error) in _PASSING or any(each in str(error) for each in _BROKEN)


def status_of(error: BaseException) -> int | None:
    """The status of HTTP that a server has answered with, where MLflow tells no more than that."""
    response = getattr(error, "response", None)  # requests'
    if response is not None:
        return int(response.status_code)
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1] or found[2])


def _code(error: BaseException) -> str | None:
    return str(getattr(error, "error_code", None)) if is_of_mlflow(error) else None


def reason(error: BaseException) -> str:
    """On one line. SQLAlchemy begins some of its messages with an advice to programmers; urllib3 tells of its objects."""
    lines = [line.strip() for line in str(error).splitlines() if not line.startswith("(raised as a result of")]
    if not lines:
        return type(error).__name__
    if _NO_MODELS.search(lines[0]):
        return "the server is older than MLflow 3 and keeps no logged models"
    status = status_of(error)
    if status is not None:
        return _of_status(status, error)
    if _NOT_OF_MLFLOW in lines[0]:
        return "no answer from the server: there is something else at its address, such as a page to log in"
    if "IncompleteRead" in lines[0]:
        return "no answer from the server: it broke off"
    if found := _NO_CERTIFICATES.search(lines[0]):
        return f"there is no file with certificates at {found[1]}"
    if "Max retries exceeded with url" not in lines[0]:
        return redaction.text(lines[0])
    if _OF_TLS.search(lines[0]) and (found := _TLS_SAID.search(lines[0])):
        return f"no answer from the server: TLS: {found[1]}"
    if "RemoteDisconnected" in lines[0]:
        return "no answer from the server: it closed the connection"
    if "ProxyError" in lines[0]:
        return "no answer from the proxy that HTTP_PROXY or HTTPS_PROXY names; NO_PROXY names hosts that need none"
    found = _FROM_SYSTEM.search(lines[0])
    why = found[1] if found else "not in time" if "timed out" in lines[0] else lines[0]
    return f"no answer from the server: {why}"


def _of_status(status: int, error: BaseException) -> str:
    """With the name of a file that it was sent, and with what else the answer says, if that is for people."""
    named = f" ({HTTPStatus(status).phrase})" if status in HTTPStatus.__members__.values() else ""
    url = getattr(getattr(error, "response", None), "url", None)
    file = unquote(urlsplit(url).path).rpartition("/")[2] if url else ""
    body = _BODY.search(str(error))
    return f"the server answers {status}{named}{f' to {file}' if file else ''}{f': {body[1]}' if body else ''}"
