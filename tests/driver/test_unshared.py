"""If others lack something to repeat a run, it is said at that place, with the command that gives it to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.driver.preflight.checks import Provenance
from orchestrator.driver.preflight.unshared import Places, out_of_reach
from orchestrator.provenance.data import remote_state

SERVER, SERVED = "http://there:5000", "mlflow-artifacts:/1/a/artifacts"
MODEL = "models:/points/1"
EXPORT = "export=RUN to=PATH takes them along once the run has ended"


@pytest.mark.parametrize("store", ["sqlite:////home/ann/.orchestrator/mlflow.db", "/home/ann/mlruns", "file:///mlruns"])
def test_weights_in_a_store_of_this_machine_are_said_where_the_code_is_shared(store: str) -> None:
    """Without weights the store is the person's own affair, and without a remote there is nobody to lack them."""
    (said,) = out_of_reach("RUN", MODEL, Places(store, "file:///a", None, has_remote=True))
    assert said.startswith(f"the weights of {MODEL} lie in {store}, and only this machine has that; {EXPORT}")
    assert "tracking.uri is a server" in said
    assert out_of_reach("RUN", MODEL, Places(store, "file:///a", None, has_remote=False)) == []
    assert out_of_reach("RUN", None, Places(store, "file:///a", None, has_remote=True)) == []


@pytest.mark.parametrize("has_remote", [False, True])
@pytest.mark.parametrize("store", [SERVER, "postgresql://there/mlflow"])
def test_weights_that_a_server_keeps_are_there_for_all(store: str, has_remote: bool) -> None:
    for weights in (SERVED, "s3://bucket/models/m-1/artifacts"):
        assert out_of_reach("RUN", MODEL, Places(store, SERVED, weights, has_remote)) == []
    assert out_of_reach("RUN", None, Places(store, SERVED, None, has_remote)) == []


def test_a_server_whose_artifacts_lie_with_who_launches_is_told_of() -> None:
    """One without --artifacts-destination and with a folder for its artifacts has each client write into its own."""
    places = Places(SERVER, "file:///srv/mlruns/1/a/artifacts", "/srv/mlruns/1/models/m-1/artifacts", has_remote=False)
    files, weights = out_of_reach("RUN", MODEL, places)
    assert files.startswith(
        f"the files of this run lie in {places.artifacts}, and only this machine has that; {EXPORT}"
    )
    assert weights.startswith(
        f"the weights of {MODEL} lie in {places.weights}, and only this machine has that; {EXPORT}"
    )
    for sentence in (files, weights):
        assert sentence.endswith("or start the server with --artifacts-destination, which has it keep them itself")


def test_weights_that_a_server_does_not_know_are_told_of() -> None:
    """As of a run that came in a crate, and is repeated into a store that never had the model."""
    (said,) = out_of_reach("RUN", MODEL, Places(SERVER, SERVED, None, has_remote=False))
    assert said == f"{SERVER} has no {MODEL} with whose weights this run begins; {EXPORT}"


@pytest.mark.parametrize("is_restored", [False, True])
def test_the_checkout_of_a_rerun_is_not_asked_what_others_lack(
    is_restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no credentials of DVC's remote, from which its data may just have come."""
    monkeypatch.setattr(remote_state, "unpushed", lambda *_: ["DVC's remote cannot be asked"])
    work: Any = SimpleNamespace(is_restored=is_restored, head=None)
    provenance = Provenance(Path(), work, {}, [], [], [])
    vars(provenance)["inputs"] = []
    assert bool(provenance.unpushed) != is_restored
