"""The project for members that start later than the first ones: as it was recorded, also if its files were changed meanwhile.

People edit a project while a run trains, and a worker that takes the place of a lost one would import the new code and read the
new data. So a worker that has prepared is refused if an input of the run or an imported module has changed. The ones after it
work in a clean checkout, as a resumed run does (rule D6).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

from orchestrator.cluster.actors.members import ActorPlacement
from orchestrator.cluster.placement.project_transfer import Workspace
from orchestrator.driver.recording.project_files import ProjectFiles
from orchestrator.driver.recording.record import Record
from orchestrator.errors import OrchestratorError, few

_SHOWN: Final = 3
_SHARE: Final = 20  # an answer counts for so many times as long as it took,
_LONGEST_S: Final = 5.0  # and no longer than this


class LateProject:
    """One for a run. Its methods are called by the thread that drives it."""

    def __init__(
        self,
        opening: Future[Record],  # the run's record
        begun: Event,  # set when all first members were placed: what these write into an input is no change to them
        held: ExitStack,  # the checkout is gone when it is closed
        say: Callable[[str], None],  # told what is restored and why
        workspace: Callable[[Path], Workspace],  # where members work in that checkout; may raise ClusterUnavailable
    ) -> None:
        self._opening = opening
        self._begun = begun
        self._held = held
        self._say = say
        self._workspace = workspace
        self._some_are_late = False
        self._changed: list[str] = []
        self._good_until = 0.0
        self._restored: Workspace | None = None
        self._search_path: tuple[str, ...] = ()
        self._files: ProjectFiles | None = None  # of the checkout
        self._cannot: str | None = None  # why it could not be restored
        self._no_try_until = 0.0

    def place(self, place: ActorPlacement) -> ActorPlacement | None:
        """The same place in the checkout; None where the project's own folder will do."""
        self._some_are_late |= self._begun.is_set()
        if self._restored is None:
            return None
        runtime_env = {"runtime_env": dict(self._restored.runtime_env)} if self._restored.runtime_env else {}
        return replace(
            place,
            project=self._restored.project,
            options={**place.options, **runtime_env},
            search_path=self._search_path,
        )

    def check(self, *, in_copy: bool = False) -> str | None:
        """Why a member that has prepared cannot take part; None when it can. in_copy: it is not in the project's own folder."""
        if not self._some_are_late:
            return None
        if in_copy:
            return None if self._files is None else self._changed_outside(self._files)
        changed = self._look()
        if not changed:
            return None
        self._restore(changed)
        lacking = "" if self._cannot is None else f", and {self._cannot}; put back what the run began with"
        return f"{few(changed, _SHOWN)} changed since the run began{lacking}"

    def has_changed(self) -> bool:
        """Whether a copy that was made now is of other files than the run began with; then the next places are in the
        checkout."""
        self._good_until = 0.0
        changed = self._look() if self._some_are_late else []
        if changed:
            self._restore(changed)
        return bool(changed)

    def _changed_outside(self, files: ProjectFiles) -> str | None:
        """Files outside of the repository are the same for the checkout. files: of the checkout."""
        outside = few(files.changed_inputs(self._look()), _SHOWN)
        return f"{outside} changed since the run began, outside of the repository; put it back" if outside else None

    def _look(self) -> list[str]:
        began = time.monotonic()
        if began >= self._good_until:
            self._changed = self._opening.result().changed()
            ended = time.monotonic()
            self._good_until = ended + min(_SHARE * (ended - began), _LONGEST_S)
        return self._changed

    def _restore(self, changed: list[str]) -> None:
        began = time.monotonic()
        if self._restored is not None or began < self._no_try_until:
            return
        record = self._opening.result()
        try:
            with ExitStack() as held:
                there = held.enter_context(record.checked_out())
                self._restored = self._workspace(there)
                self._held.enter_context(held.pop_all())
        except OrchestratorError as error:
            self._cannot = error.message.replace("\n  - ", " ")
        except OSError as error:  # such as a disk that is full
            self._cannot = f"it cannot be restored: {error}"
        else:
            self._cannot, self._search_path, self._files = None, record.search_path(), record.files_in(there)
            what = few(changed, _SHOWN)
            self._say(
                f"note: {what} changed since the run began; workers that start from now on have what it began with"
            )
            return
        ended = time.monotonic()
        self._no_try_until = ended + _SHARE * (ended - began)
