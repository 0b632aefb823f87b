"""A private Ray on this machine, started for one run and gone with it.

`address="local"` is explicit, because a plain `ray.init()` joins whatever cluster RAY_ADDRESS or a left-over file names. Its
files lie in a folder of their own that is removed at the end; the folder of a driver that was killed is removed by the next
start. It listens to this machine alone, and actors are reached only with a token that exists in this process's environment, so
other users of the machine cannot run code here.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from orchestrator.cluster.forkserver.launch_server import LaunchServer
from orchestrator.cluster.ray_calls import shut_down
from orchestrator.cluster.sessions import agent, folders, listening, metrics, workers
from orchestrator.cluster.sessions.diagnosis import Diagnosis, diagnose, how, last_words
from orchestrator.cluster.sessions.environment import (
    enter,
    outliving,
    patient,
    prepare_environment,
    replaced,
    unmonitored,
    unsuspecting,
)
from orchestrator.cluster.sessions.isolation import isolated
from orchestrator.common import tested_versions
from orchestrator.common.control_groups import oom_kills
from orchestrator.errors import ClusterUnavailable, OrchestratorError

_new_folder, _remove_abandoned = folders.new, folders.remove_abandoned
_VITAL = {"raylet": "the raylet of the private Ray", "gcs_server": "the head (gcs_server) of the private Ray"}
_OBJECT_STORE_BYTES = 128 * 2**20  # only the trained weights travel through it; gradients have their own way
_AGENT_COMMAND = "_build_python_executable_command_memory_profileable"
_AGENT_PORTS = {  # of each kind of agent, the ports that the raylet waits for
    "dashboard_agent": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "runtime_env_agent": ("runtime_env_agent_port",),
}
# At which Ray's processes then listen, in place of all addresses; where metrics are shown, at these.
_LOOPBACK = "127.0.0.1"
_TRIES = 3  # of Ray's start
_ANSWER_S = 10.0  # of this machine to itself
_LOOK_S = 0.02


class Actors(NamedTuple):
    """The demands of a private Ray's actors. of_gpus: how many GPUs there are for all of them; None where Ray counts them, by
    calls of the driver in this process. product: of the first GPU; None where Ray asks for it likewise."""

    cpus: float = 1.0
    of_gpus: int | None = None
    product: str | None = None


_SMALL = Actors()


class LocalRay:
    """A private Ray, running within the block; implements RaySession."""

    def __init__(
        self,
        cpus: float,  # how many CPUs the actors will ask for, whether or not the machine has them
        # seconds that each of Ray's processes may take to start, and until when a start that failed is tried again
        start_timeout_s: float,
        check: Callable[[], None] = lambda: None,  # called while waiting, may raise
        *,
        # whether actors may ask for a runtime environment; where none does, its agent is left out
        runtime_envs: bool = True,
        metrics_port: int | None = None,  # where its agent shows metrics to Prometheus; None for no agent
        # whether actors go on when this process is gone, which end themselves then; otherwise Ray ends them within
        # seconds
        outlived: bool = False,
        actors: Actors = _SMALL,  # what each of them asks for
    ) -> None:
        self._cpus = cpus
        self._runtime_envs = runtime_envs
        self._metrics_port = metrics_port
        self._outlived = outlived
        self._start_timeout_s = start_timeout_s
        self._check = check
        self._folder: Path | None = None
        self._server: LaunchServer | None = None
        self._actors = actors
        self._kills_before = oom_kills()
        self._known_end: Diagnosis | None = None

    def __enter__(self) -> Self:
        _remove_abandoned()
        prepare_environment(None)
        if self._metrics_port is not None and not metrics.is_free(self._metrics_port):
            raise _taken(self._metrics_port)
        _require_loopback()
        began = time.monotonic()
        for tries in range(1, _TRIES + 1):
            try:
                self._start()
                return self
            except BaseException as error:
                logs = None if self._folder is None else folders.logs(self._folder)
                said = "" if logs is None else last_words(logs)
                self._end()
                if isinstance(error, UnicodeEncodeError):
                    raise _not_text(error) from None
                if isinstance(error, OrchestratorError) or not isinstance(error, Exception):
                    raise
                passed = time.monotonic() - began
                if tries == _TRIES or passed >= self._start_timeout_s:
                    raise _not_started(error, tries, passed, said) from error
        raise AssertionError("the last try returns or raises")

    def _start(self) -> None:
        self._folder = _new_folder()
        with contextlib.ExitStack() as stack:
            shown = self._metrics_port is not None
            stack.enter_context(_fewer_processes(agent=shown))
            stack.enter_context(_smaller_agents(self._runtime_envs, metrics=shown))
            stack.enter_context(_awaited_head(self._check))
            stack.enter_context(_awaited_raylet(self._start_timeout_s, self._check))
            stack.enter_context(patient(self._start_timeout_s))
            stack.enter_context(unsuspecting())
            stack.enter_context(unmonitored())
            stack.enter_context(_loopback_kept())
            stack.enter_context(_type_of_a_card_that_answers(self._actors.product))
            if self._outlived:
                stack.enter_context(outliving())
                self.lock.touch()
            self._server = stack.enter_context(workers.forked(self._actors.cpus))
            stack.enter_context(isolated(deaf=self._server is not None))
            known = listening.beyond_loopback()
            enter(
                "local",
                num_cpus=max(1, math.ceil(self._cpus)),
                num_gpus=self._actors.of_gpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(folders.of_ray(self._folder)),
                **({"_metrics_export_port": self._metrics_port} if shown else {"_node_ip_address": _LOOPBACK}),
            )
        if not shown:
            _refuse_strangers(known)

    @property
    def lock(self) -> Path:
        """A file for locks of actors that may outlive this process."""
        assert self._folder is not None
        return self._folder / folders.MEMBERS_LOCK

    def draining(self) -> Mapping[str, float | None]:
        """Its only node is this machine."""
        return {}

    def trouble(self) -> str | None:
        """Which of its two processes has ended by itself: the members do not outlive them for long, and no other can be
        started. An untested Ray is not asked; the members it takes along are lost then."""
        ended = self._ended()
        return None if ended is None else f"{ended[0]} has ended{_how(ended[1])}"

    def diagnosis(self) -> Diagnosis:
        """The facts that are known of its end, and of that of members."""
        if self._known_end is not None:
            return self._known_end
        ended, now = self._ended(), oom_kills()
        kills = None if now is None or self._kills_before is None else now - self._kills_before
        if ended is None or self._folder is None:
            return Diagnosis(oom_kills=kills)
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        self._known_end = diagnose(_status(ended[1]), kills, load, cores, folders.logs(self._folder))
        return self._known_end

    def _ended(self) -> tuple[str, Any] | None:
        """Name and process of the first of its processes that has ended; None while both live."""
        if not tested_versions.RAY.is_here:
            return None
        from ray._private import worker

        node = worker._global_node
        dead: dict[str, Any] = {} if node is None else dict(node.dead_processes())
        return next(((name, dead[kind]) for kind, name in _VITAL.items() if kind in dead), None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        shut_down()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._folder is not None:
            folders.remove(self._folder)


def _status(process: Any) -> int | None:
    code: int | None = getattr(process, "returncode", None)
    return code


def _how(process: Any) -> str:
    """How it ended, behind a comma; empty where that is not known."""
    code = _status(process)
    return "" if code is None else f", {how(code)}"


def _require_loopback() -> None:
    """Ray's processes would wait for each other for minutes, deaf to signals. Raises ClusterUnavailable."""
    try:
        with (
            socket.create_server((_LOOPBACK, 0)) as server,
            socket.create_connection(server.getsockname(), timeout=_ANSWER_S),
        ):
            pass
    except OSError as error:
        raise ClusterUnavailable(
            f"processes of this machine cannot reach each other at {_LOOPBACK}: {error}",
            "bring the loopback interface up (ip link set lo up), or let a firewall pass what goes over it",
            code="ray.no-loopback",
        ) from None


def _refuse_strangers(known: Collection[str]) -> None:
    """Raises ClusterUnavailable where Ray listens to other machines. Its insides alone keep it to the loopback, and those of
    another version may not. known: what listened before it was started."""
    if open_to_all := [each for each in listening.beyond_loopback() if each not in known]:
        raise ClusterUnavailable(
            f"the private Ray listens to other machines, not at {_LOOPBACK} alone: {', '.join(open_to_all)}",
            f"install the Ray that this was tested with ({tested_versions.RAY.wanted}), or join one of your own: "
            "cluster.address=HOST:PORT",
            code="ray.open-to-others",
        )


def _taken(port: int) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"tracking.metrics_port: something on this machine listens at port {port} already",
        "take another one, or end what listens there",
        code="ray.metrics-port",
    )


def _not_text(error: UnicodeEncodeError) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"Ray could not be started: it takes no name with bytes that are not UTF-8, as in {error.object!a}",
        "rename that, or launch from elsewhere",
        code="ray.not-text",
    )


def _not_started(error: Exception, tries: int, seconds: float, said: str) -> ClusterUnavailable:
    """said: the last words of its logs."""
    why = (str(error).splitlines() or [repr(error)])[0]
    busy = _busy(os.getloadavg()[0], len(os.sched_getaffinity(0)))
    return ClusterUnavailable(
        f"Ray could not be started ({tries} {'try' if tries == 1 else 'tries'} in {seconds:.0f} s): {why}",
        f"{busy}raise cluster.start_timeout_s; look at memory, disk and open files of this machine"
        + ("; error.txt of the run has the last lines of the logs of Ray" if said else ""),
        "\n\n".join(filter(None, [str(error), said])),
        code="ray.not-started",
    )


def _busy(load: float, cores: int) -> str:
    """The remedy if more processes want to compute than there are cores; empty if that is not so."""
    if load <= cores:
        return ""
    return f"this machine is busy (load {load:.0f} on {cores} cores): end what else runs on it; "


def _awaited_head(check: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Within this a Ray that is started waits for its head as long as it would, but no longer than that lives, and can be
    interrupted. Ray's own wait is deaf to signals. A Ray that was not tested waits by itself."""
    if not tested_versions.RAY.is_here:
        return contextlib.nullcontext()
    from ray import _raylet
    from ray._private import node

    ports: Any = _raylet
    usual: Any = node.Node.start_gcs_server

    def start(ours: Any) -> None:
        def wait(folder: str, node_id: str, name: str, timeout_ms: int) -> Any:
            written = Path(folder, ports.get_port_filename(node_id, name))
            _await("gcs_server", ours, written.exists, timeout_ms / 1000, check)
            return ports.wait_for_persisted_port(folder, node_id, name, timeout_ms=timeout_ms)

        with replaced(node, "wait_for_persisted_port", wait):
            usual(ours)

    return replaced(node.Node, "start_gcs_server", start)


def _awaited_raylet(timeout_s: float, check: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Within this a Ray that is started gives its raylet `timeout_s` to register with the head; Ray gives it 30 s, which a
    busy machine needs for less. A Ray that was not tested has its own patience."""
    if not tested_versions.RAY.is_here:
        return contextlib.nullcontext()
    from ray._private import node

    usual: Any = node.Node.start_ray_processes

    def start(ours: Any) -> None:
        usual(ours)
        _await("raylet", ours, lambda: _is_registered(ours), timeout_s, check)

    return replaced(node.Node, "start_ray_processes", start)


def _await(kind: str, node: Any, is_up: Callable[[], bool], timeout_s: float, check: Callable[[], None]) -> None:
    """kind: which of the node's processes. Raises RuntimeError when a process of the node has ended, TimeoutError when none has
    and this one is not there."""
    deadline = time.monotonic() + timeout_s
    while True:
        why: Exception | None = None
        try:
            if is_up():
                return
        except Exception as error:  # the head is too busy to say
            why = error
        for each, process in node.dead_processes():
            if each in _VITAL:
                raise RuntimeError(f"{_VITAL[each]} ended while it started{_how(process)}") from why
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_VITAL[kind]} was not up after {timeout_s:g} s") from why
        time.sleep(_LOOK_S)


def _is_registered(node: Any) -> bool:
    """It reads the table of all nodes, which Ray gives at once. Asked for one that is not there, Ray sleeps for a second,
    which makes up half of its start. Raises what Ray raises."""
    from ray._private import services, state

    known: Any = state.GlobalState()  # type: ignore[no-untyped-call]
    options: Any = services._get_gcs_client_options(node.gcs_address)  # type: ignore[no-untyped-call]
    known._initialize_global_state(options)
    return any(each["NodeID"] == node._node_id and each["Alive"] for each in known.node_table())


def _loopback_kept() -> contextlib.AbstractContextManager[None]:
    """Within this a Ray that is given 127.0.0.1 as its address stays at it; Ray takes another one of the machine instead, and
    listens to all of them. Tried with any version, since `_refuse_strangers` looks at what has come of it."""
    from ray._private import services

    return replaced(services, "resolve_ip_for_localhost", lambda host: host)


def _type_of_a_card_that_answers(product: str | None) -> contextlib.AbstractContextManager[None]:
    """Within this a Ray that is started tells the type of this product, or of the first card that answers. Ray by itself asks
    the first of all cards, and does not start where that one is lost. Does nothing with a Ray that was not tested."""
    if not tested_versions.RAY.is_here:
        return contextlib.nullcontext()
    from ray._private.accelerators import nvidia_gpu
    from ray._private.thirdparty import pynvml

    manager: Any = nvidia_gpu.NvidiaGPUAcceleratorManager
    nvml: Any = pynvml

    def kind() -> str | None:
        found: str | None
        if product is not None:
            found = manager._gpu_name_to_accelerator_type(product)
            return found
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        try:
            for number in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):
                    name = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(number))
                    found = manager._gpu_name_to_accelerator_type(name)
                    return found
            return None
        finally:
            nvml.nvmlShutdown()

    return replaced(manager, "get_current_node_accelerator_type", kind)


@contextlib.contextmanager
def _fewer_processes(*, agent: bool = False) -> Iterator[None]:
    """Within this a Ray starts without the autoscaler's monitor, the monitor of logs and the dashboard's server, and takes
    the dashboard for not installed, without trying to import it. It has one node, logs that nobody follows and no dashboard,
    and these cost seconds of a processor at the start of each run. Ray has no public way to leave them out; one of another
    version than `common.tested_versions.RAY` starts them. agent: whether there is to be an agent with all it can do, which
    does not start without the packages of a dashboard."""
    from ray._private import node, services, utils

    helpers: list[tuple[Any, str, object]] = [
        (node.Node, "start_monitor", None),
        (node.Node, "start_log_monitor", None),
        (services, "start_api_server", (None, None)),
    ]
    if not agent:
        helpers.append((utils, "get_dashboard_dependency_error", ImportError("no dashboard is wanted")))
    if not tested_versions.RAY.is_here:
        helpers.clear()
    with contextlib.ExitStack() as stack:
        for place, name, answer in helpers:
            start = lambda *_arguments, _answer=answer, **_options: _answer  # noqa: E731
            stack.enter_context(replaced(place, name, start))
        yield


def _smaller_agents(runtime_envs: bool, *, metrics: bool = False) -> contextlib.AbstractContextManager[None]:
    """Within this the raylet of a Ray that is started gets agent.py for Ray's agent of metrics, unless somebody collects
    them, and without runtime_envs for that of runtime environments too. It does not start without agents."""
    from ray._private import services

    usual = getattr(services, _AGENT_COMMAND, None)
    wanted = {"runtime_env_agent": runtime_envs, "dashboard_agent": metrics}
    ports = {kind: names for kind, names in _AGENT_PORTS.items() if tested_versions.RAY.is_here and not wanted[kind]}

    def command(kind: str, *arguments: Any, **options: Any) -> list[str]:
        assert usual is not None
        if kind in ports:  # what follows in the command, Ray's program and its options, are arguments
            return [sys.executable, "-I", "-S", agent.__file__, str(os.getpid()), *ports[kind]]
        return list(usual(kind, *arguments, **options))

    return replaced(services, _AGENT_COMMAND, command)
