"""The one place where faults enter a run under test: named moments at which the program calls `at`.

    at(moment, step, subject)   the subject; where an injector is installed, what it returns in place of the subject
    install(injector)           from now on, in this process

An injector acts in the thread that reaches the moment. It may kill the process, wait, raise, or return another subject.

The program never installs one: no setting and no variable of the environment does. Tests and the campaign call `install` from
code of their own. Faults that a user asks for (`run.chaos`) are another matter (`controller.fault_injection`).
Source: `EventInjector` in torchft's tests, which is called in the training loop, too.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

Moment = Literal[
    # A member begins an activity (`records.progress.Activity`). Subject: its heartbeat.
    "prepare",
    "admission",
    "compute",
    "exchange",
    "update",
    "evaluate",
    "checkpoint",
    "state_transfer",
    # Others of a member.
    "idle",  # it is about to rest until its next generation; subject: its heartbeat, still in the activity before
    "initial parameters",  # their digest is about to be told in the run manifest; subject: the digest
    "send",  # before a message goes out; subject: its tag, whose phase tells a vote from a sum
    "receive",  # before it waits for a message; subject: the tag
    # A shard of a whole model is computed, unless a step is one recording; subject: what it contributes, None of an empty one
    "contribution",
    "parameters",  # the optimizer has written them; subject: the parameters
    "commit",  # before so many steps count as done; subject: the run state before them
    "running",  # the first step of a generation counts; subject: the generation and this member's rank
    "checkpoint write",  # in the thread that is about to write a part
    # Moments of the driver.
    "drive",  # its loop begins
    "lost",  # it has heard of a lost member; subject: role, member and reason
    "manifest",  # of a checkpoint is written, and older parts are not removed yet
]


class Injector(Protocol):
    def __call__(self, moment: Moment, step: int | None, subject: Any) -> Any:
        """The object that takes the place of the subject. May raise, and may not return."""


_injector: Injector | None = None


def at(moment: Moment, step: int | None = None, subject: Any = None) -> Any:
    """The program is at this moment."""
    return subject if _injector is None else _injector(moment, step, subject)


def install(injector: Injector | None) -> None:
    """For tests and the campaign. None: no moment has any effect."""
    global _injector
    _injector = injector
