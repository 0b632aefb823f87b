"""The runs that a run goes back to. It began with the state of the first, that one with the state of the second, and so
on."""

from __future__ import annotations

from orchestrator.config.settings import BeginSettings
from orchestrator.provenance.tracking import Store

_MOST = 100  # of a record that somebody has made go round


def chain(store: Store, begin: BeginSettings) -> list[str]:
    """RUN@STEP of each, the nearest first, as far as the store knows them."""
    found: list[str] = []
    name = begin.name
    while name is not None and len(found) < _MOST:
        found.append(name)
        name = _began_with(store, name.partition("@")[0])
    return found


def sentence(chain: list[str]) -> str | None:
    """The chain in words, for a person; None if it is empty."""
    sources = [f"step {step} of run {run}" for run, _, step in (name.partition("@") for name in chain)]
    return ", which began with ".join(sources) or None


def _began_with(store: Store, run_id: str) -> str | None:
    try:
        name = store.client.get_run(run_id).data.params.get("begin.name")
    except Exception:  # MLflow's, requests': the run is another store's, or this one is out of reach
        return None
    return name if name and "@" in name else None
