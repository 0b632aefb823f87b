"""Asks a fork server for a process; where Ray starts a worker, in place of the worker's own program.

    python -I -S client.py PLACE python setup_worker.py default_worker.py --option=...

It takes some milliseconds, where a worker's program takes a second or two to import what the server has imported already. If
the server does not give a process, this one becomes the worker as Ray meant it. It is run by its path and imports nothing of
orchestrator. Ray knows a worker by the token in its arguments and by the process that registers with it, so it may be another
one than Ray has started; tried with Ray 2.60 (see `cluster.sessions.workers`).

    request     {"argv", "environ", "interpreter"}, with the descriptors of its standard streams and of the working directory;
                of a child also {"program", "path"} and {"since"}: variables that its parent has set since it was
                forked itself, null where it has removed them
    answer      {"forked"}: a process, which begins when it is told to go on; {"refused"}
    later       {"status"}: how a child has ended

A process that is not told to go on ends, so there are never two where who asks has waited for too long and begun by itself.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")
_MOST_BYTES = 2**24
_ANSWER_S = 60.0  # a server may still import, on a busy machine
_GO = b"g"
_UNHEARD_BY_RAY = (signal.SIGTERM, signal.SIGHUP)  # see `cluster.sessions.isolation`
_SETUP, _CONTEXT, _LANGUAGE = "setup_worker.py", "--serialized-runtime-env-context", "--language="

Message = dict[str, Any]
# The address of the server from which this process was forked, and what was asked of it.
came_from: tuple[str, Message] | None = None


def connected(place: str) -> socket.socket | None:
    """None where no server of this user listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(place)
        if peer(connection)[1] == os.getuid():
            return connection
    except OSError:
        pass
    connection.close()
    return None


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process on the other side, and its user, as the kernel knows them."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return process, user


def ask(
    connection: socket.socket,
    request: Message,
    patience_s: float = _ANSWER_S,
    streams: tuple[int, int, int] = (0, 1, 2),
) -> Message | None:
    """The first answer; None where the server is gone, or says nothing for so long. streams: the descriptors that will be the
    process's standard input, output and error."""
    folder = -1
    try:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        connection.settimeout(patience_s)
        send(connection, request, [*streams, folder])
        answer, _ = receive(connection)
        if answer is not None and "forked" in answer:
            connection.sendall(_GO)
        connection.settimeout(None)
        return answer
    except (OSError, ValueError):
        return None
    finally:
        if folder >= 0:
            os.close(folder)


def is_told_to_go_on(connection: socket.socket) -> bool:
    """In the process that was forked, once it has answered. Raises OSError."""
    connection.settimeout(_ANSWER_S)
    return connection.recv(len(_GO)) == _GO


def send(connection: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    data = json.dumps(message).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(data))], list(descriptors))
    connection.sendall(data)


def receive(connection: socket.socket, most: int = 0) -> tuple[Message | None, list[int]]:
    """The message, None where the other side has closed; and at most so many descriptors. Raises OSError, ValueError."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, most)
    try:
        return _message(connection, head), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _message(connection: socket.socket, head: bytes) -> Message | None:
    if len(head) < _LENGTH.size:
        return None
    left = _LENGTH.unpack(head)[0]
    if left > _MOST_BYTES:
        raise ValueError("a message is too long")
    data = b""
    while left and (piece := connection.recv(left)):
        data += piece
        left -= len(piece)
    found = None if left else json.loads(data)
    if not isinstance(found, dict | None):
        raise ValueError("a message is no object")
    return found


def without_setup(command: Sequence[str]) -> list[str]:
    """The command without the setup of a runtime environment that nobody asked for. Ray leaves it out itself if it recognises
    its own program first."""
    if any(argument.startswith(_CONTEXT) for argument in command):
        return list(command)
    own = {os.path.basename(each): each for each in command}.get(_SETUP)  # noqa: PTH119 (in a hurry)
    return [each for each in command if each != own and not each.startswith(_LANGUAGE)]


def program_of(command: Sequence[str]) -> list[str]:
    """The program with its arguments, without the interpreter and its options (`-s`). The server has those already: both are
    started by the same interpreter."""
    return list(itertools.dropwhile(lambda each: each.startswith("-"), command[1:]))


def forked(place: str, command: Sequence[str]) -> bool:
    """Whether the server has made a worker of this command."""
    if os.path.basename(command[1]) == _SETUP:  # noqa: PTH119
        return False  # with a runtime environment of its own
    program = program_of(command)
    connection = connected(place)
    if connection is None:
        return False
    with connection:
        answer = ask(connection, {"argv": program, "environ": dict(os.environ), "interpreter": command[0]})
    return answer is not None and "forked" in answer


def main(arguments: Sequence[str]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _UNHEARD_BY_RAY)  # a worker and what it starts hear them
    place, command = arguments[0], without_setup(arguments[1:])
    if not forked(place, command):
        os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
