"""A fork server that imports little, as a process of its own: `python -m tests.cluster.forkserver.light PLACE FOLDER MODULE...`

The modules are those of FOLDER. It ends with its standard input, and says on a line of its output that it is ready.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from orchestrator.cluster.forkserver import places, server


def main() -> None:
    place, folder, *modules = sys.argv[1:]
    sys.path.insert(0, folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    places._listen(listener, Path(place))
    light = server.Server(Path(place), listener, sys.stdin.fileno())
    light.load(modules)
    print("ready", flush=True)
    request = light.serve()
    if request is not None:
        server.run(request)


if __name__ == "__main__":
    main()
