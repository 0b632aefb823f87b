"""A server of S3 as a process of its own, on a port that is free: `python -m tests.s3_server` prints its URL.

It ends with its input, and needs what `make s3` installs.
"""

from __future__ import annotations

import sys


def main() -> int:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"url http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
