"""A client goes on alone if the server does not answer."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from orchestrator.cluster.forkserver import client

RAYS = ["python", "/ray/setup_worker.py", "/ray/default_worker.py", "--node-ip=1.2.3.4", "--language=PYTHON"]


def test_a_process_that_is_there_is_told_to_go_on() -> None:
    ours, theirs = socket.socketpair()
    told: list[bool] = []

    def serve() -> None:
        message, descriptors = client.receive(theirs, 4)
        for descriptor in descriptors:
            os.close(descriptor)
        client.send(theirs, {"forked": 1, "argv": (message or {})["argv"]})
        told.append(client.is_told_to_go_on(theirs))

    with ours, theirs:
        thread = threading.Thread(target=serve)
        thread.start()
        assert client.ask(ours, {"argv": ["a"]}) == {"forked": 1, "argv": ["a"]}
        thread.join()
    assert told == [True]


def test_who_waits_for_too_long_or_in_vain_goes_on_alone(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            assert client.ask(ours, {"argv": []}, 0.01) is None
        assert client.ask(ours, {"argv": []}) is None
    assert client.connected(str(tmp_path / "none")) is None
    assert not client.forked(str(tmp_path / "none"), ["python", "worker.py"])


def test_a_server_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen()
        found = client.connected(place)
        assert found is not None
        found.close()
        monkeypatch.setattr(client, "peer", lambda _connection: (1, os.getuid() + 1))
        assert client.connected(place) is None


def test_rays_setup_of_a_worker_is_left_out_as_ray_does() -> None:
    assert client.without_setup(RAYS) == ["python", "/ray/default_worker.py", "--node-ip=1.2.3.4"]
    asked_for = [*RAYS, "--serialized-runtime-env-context={}"]
    assert client.without_setup(asked_for) == asked_for
    assert not client.forked("/nowhere", asked_for)


def test_a_server_is_asked_for_the_program_and_not_for_the_options_of_the_interpreter() -> None:
    # as Ray hands on those of `python -s -m orchestrator`
    command = client.without_setup([*RAYS[:2], "-S", "-s", *RAYS[2:]])
    assert client.program_of(command) == ["/ray/default_worker.py", "--node-ip=1.2.3.4"]


def test_a_worker_is_what_ray_meant_where_no_server_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    become: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: become.append((path, command)))
    client.main(["/nowhere/s.sock", *RAYS])
    assert become == [("python", client.without_setup(RAYS))]
    monkeypatch.setattr(client, "forked", lambda _place, _command: True)
    client.main(["/nowhere/s.sock", *RAYS])
    assert len(become) == 1
