"""Calls of the driver to a member: verbs of `MemberActor`, which travel by the relay of its host, and their answers.

Calls are numbered. A relay keeps them until the member confirms them, and sends them again over a new connection. The member
carries out each once, in order. An answer is an entry of the member's event queue, so it comes once, behind the
entries before it.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from orchestrator.cluster.actors.event_queue import ANSWERS, Entry

# The thread that hears them carries them out, in no time.
AT_ONCE: Final = frozenset({"ask", "call_off", "flush", "suffer"})
# Each has a thread, since it takes long and does not wait for the compute thread.
BESIDE: Final = frozenset({"describe", "read_parameters"})


def packed(verb: str, arguments: tuple[Any, ...], *, wanted: bool = True) -> bytes:
    """The call as it travels. wanted: whether it is answered."""
    return pickle.dumps((verb, arguments, wanted), pickle.HIGHEST_PROTOCOL)


class Unconfirmed:
    """Calls of one member that it may not have received yet."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, bytes]] = deque()

    def put(self, number: int, call: bytes) -> None:
        """Keep a call, whose number is greater than those before it."""
        self._calls.append((number, call))

    def confirm(self, number: int) -> None:
        """The member has the calls before this number."""
        while self._calls and self._calls[0][0] < number:
            self._calls.popleft()

    def rest(self) -> list[tuple[int, bytes]]:
        """The calls that are kept, in order."""
        return list(self._calls)


class CallFailed(Exception):
    """The call raised an exception of the type `kind` in the member, which says this."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def answered(entry: Mapping[str, Any]) -> Any:
    """The answer in the entry. Raises CallFailed."""
    is_well, value = pickle.loads(entry["packed"])  # of a process of this user that knows the secret of the run
    if is_well:
        return value
    raise CallFailed(*value)


class CallHandler:
    """A member's side: the thread that hears a call puts it here, and the compute thread serves."""

    def __init__(self, actor: Any, answer: Callable[[Entry], None]) -> None:
        """actor: has the verbs; answer: takes the entries that answer."""
        self._actor = actor
        self._answer = answer
        self._waiting: deque[tuple[int, str, tuple[Any, ...], bool]] = deque()  # for the compute thread
        self._changed = threading.Condition()
        self.next = 0  # number of the next call: those before are here

    def hear(self, number: int, call: bytes) -> None:
        """Take a call, unless it is one that was heard before."""
        if number < self.next:
            return
        self.next = number + 1
        # from the driver, or from a relay that knows the secret of the run
        what = number, *pickle.loads(call)
        verb = what[1]
        if verb in AT_ONCE:
            self._carry_out(*what)
        elif verb in BESIDE:
            threading.Thread(target=self._carry_out, args=what, name=verb, daemon=True).start()
        else:
            with self._changed:
                self._waiting.append(what)
                self._changed.notify_all()

    def serve(self) -> None:
        """Carry out, in this thread and for ever, the calls that are not carried out elsewhere."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                call = self._waiting.popleft()
            self._carry_out(*call)

    def _carry_out(self, number: int, verb: str, arguments: tuple[Any, ...], wanted: bool) -> None:
        try:
            answer = pickle.dumps((True, getattr(self._actor, verb)(*arguments)), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # in words, since not every exception survives pickle
            answer = pickle.dumps((False, (type(error).__name__, str(error))), pickle.HIGHEST_PROTOCOL)
        if wanted:
            self._answer({ANSWERS: number, "packed": answer})
