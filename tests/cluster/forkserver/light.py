"""A fork server that imports little, as a process of its own: `python -m tests.cluster.forkserver.light PLACE IDLE_S FOLDER
MODULE...`

The modules are those of FOLDER. It ends with its standard input, and says on a line of its output that it is ready.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from orchestrator.cluster.forkserver import places, server


def main() -> None:
    place, idle_s, folder, *modules = sys.argv[1:]
    sys.path.insert(0, folder)
    server.ROLES = {"light": server.Role(modules)}
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    places._listen(listener, Path(place))
    light = server.Server("light", Path(place), listener, sys.stdin.fileno(), float(idle_s))
    light.load()
    print(json.dumps(light.about()), flush=True)
    request = light.serve()
    if request is not None:
        server.run(request)


if __name__ == "__main__":
    main()
