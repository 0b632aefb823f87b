"""Says at the launch of a run what others lack to repeat it, each with the command that gives it to them.

Others have the store too, unless it lies in a file of this machine, and they have a clone, where the repository has a remote.
Commits and data are pushed; a record and the weights that a run began with are reached where the store and its artifacts are.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.driver.preflight.checks import Provenance
from orchestrator.provenance.tracking import Store, Tracker, is_of_this_machine, models
from orchestrator.records import redaction

_SERVES = "start the server with --artifacts-destination, which has it keep them itself"


@dataclass(frozen=True)
class Places:
    """The places where others would look for the parts of a run. store: its address; artifacts: where those of the run lie;
    weights: where those lie that it began with, None where the store does not know them; has_remote: whether the repository of
    the code has one."""

    store: str
    artifacts: str
    weights: str | None
    has_remote: bool


def of(provenance: Provenance, store: Store, tracker: Tracker, begins: str | None) -> list[str]:
    """A sentence for each. begins: the model that the run begins with, by its pinned name."""
    is_shared = not is_of_this_machine(store.uri)
    weights = models.location(store, begins) if begins is not None and is_shared else None
    places = Places(store.uri, tracker.artifacts, weights, provenance.has_remote)
    return [
        *(provenance.unpushed if is_shared else []),
        *(redaction.text(sentence) for sentence in out_of_reach(tracker.run_id, begins, places)),
    ]


def out_of_reach(run_id: str, begins: str | None, places: Places) -> list[str]:
    """A sentence for all that lies where only this machine has it. Pure; begins: as of `of`."""
    carried = f"export={run_id} to=PATH takes them along once the run has ended"
    if is_of_this_machine(places.store):
        if begins is None or not places.has_remote:  # nobody else is known
            return []
        return [
            f"the weights of {begins} lie in {places.store}, and only this machine has that; {carried}, and runs whose "
            "tracking.uri is a server are had by all who use it"
        ]
    found = []
    if is_of_this_machine(places.artifacts):
        found.append(
            f"the files of this run lie in {places.artifacts}, and only this machine has that; {carried}, or {_SERVES}"
        )
    if begins is not None and places.weights is None:
        found.append(f"{places.store} has no {begins} with whose weights this run begins; {carried}")
    elif begins is not None and is_of_this_machine(str(places.weights)):
        found.append(
            f"the weights of {begins} lie in {places.weights}, and only this machine has that; {carried}, or {_SERVES}"
        )
    return found
