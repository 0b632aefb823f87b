"""A web server that fails is told from a file that is not there: waiting helps against one of them alone."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.data.files.places import place_of

pytestmark = pytest.mark.slow


class Answering(http.server.BaseHTTPRequestHandler):
    """The status is the path."""

    def do_HEAD(self) -> None:
        self.send_error(int(self.path[1:]))

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, FileNotFoundError),
        (410, FileNotFoundError),
        (401, PermissionError),
        (403, PermissionError),
        (503, OSError),
    ],
)
def test_an_answer_of_a_web_server_is_no_missing_file_unless_it_says_so(
    status: int, kind: type[OSError], port: int
) -> None:
    place = place_of(f"http://me:hush@127.0.0.1:{port}")
    with pytest.raises(OSError, match=str(status)) as caught:
        list(place.chunks(str(status)))
    assert type(caught.value) is kind
    assert "hush" not in f"{caught.value}{place.describe('a')}"


def test_a_web_server_that_is_away_has_lost_no_file() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as gone:
        place = place_of(f"http://127.0.0.1:{gone.server_port}")
    with pytest.raises(OSError, match="Cannot connect") as caught:
        list(place.chunks("a"))
    assert type(caught.value) is OSError
