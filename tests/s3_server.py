"""A server of S3 as a process of its own: `python -m tests.s3_server [PORT FOLDER]` prints its URL.

On a port that is free, unless one is given. The files of the folder are in its `bucket` when it begins to answer. It ends with
its input, and needs what `make s3` installs.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(port: str = "0", folder: str | None = None) -> int:
    from moto.server import ThreadedMotoServer

    if folder is not None:
        _fill(Path(folder))
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(port), verbose=False)
    server.start()
    host, bound = server.get_host_and_port()
    print(f"url http://{host}:{bound}", flush=True)
    sys.stdin.read()
    server.stop()
    return 0


def _fill(folder: Path) -> None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket("bucket", "us-east-1")
    for path in folder.rglob("*"):
        if path.is_file():
            backend.put_object("bucket", path.relative_to(folder).as_posix(), path.read_bytes())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
