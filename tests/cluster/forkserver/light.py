"""A fork server that imports little, as a process of its own: `python -m tests.cluster.forkserver.light PLACE FOLDER MODULE...`

The modules are those of FOLDER; one named `of_ray` stands for those with Ray. It ends with its standard input, and says on a
line of its output that it is ready.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from orchestrator.cluster.forkserver import launch_server, server

OF_RAY = "of_ray"


def main() -> None:
    place, folder, *modules = sys.argv[1:]
    sys.path.insert(0, folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    launch_server._listen(listener, Path(place))
    with_ray = [module for module in modules if module == OF_RAY]
    light = server.Server(Path(place), listener, sys.stdin.fileno(), with_ray=with_ray)
    light.load([module for module in modules if module != OF_RAY])
    print("ready", flush=True)
    request = light.serve()
    if request is not None:
        server.run(request)


if __name__ == "__main__":
    main()
