"""The hint for seeing a run in MLflow: a command for a store in a file, the address for a server."""

from __future__ import annotations

import pytest

from orchestrator.driver.report import summary
from orchestrator.driver.report.outcome import RunOutcome

OWN = "sqlite:////project/.orchestrator/mlflow.db"


def shown(uri: str) -> str:
    outcome = RunOutcome(steps=3, loss=0.5, digest="d")
    return summary.text(outcome, "digits", "1 worker", "r1", summary.where_to_look("r1", "7", uri, OWN)).splitlines()[
        -1
    ]


@pytest.mark.parametrize("uri", ["http://me:hush@mlflow.example:5000", "postgresql://me:hush@db.example/mlflow"])
def test_a_password_in_an_address_is_not_shown(uri: str) -> None:
    assert "hush" not in shown(uri)
    assert uri.rpartition("@")[2] in shown(uri)


@pytest.mark.parametrize(
    ("rate", "samples", "told"),
    [
        (0.01234, None, "0.0123 steps/s"),
        (66.24, 64, "66.2 steps/s (4,240 samples/s)"),
        (99.96, None, "100 steps/s"),
        (1434.0, 8, "1,430 steps/s (11,500 samples/s)"),
    ],
)
def test_rates_have_three_digits_and_no_exponent(rate: float, samples: int | None, told: str) -> None:
    outcome = RunOutcome(steps=3, loss=0.5, digest="d", steps_per_s=rate, step_samples=samples)
    first = summary.text(outcome, "digits", "1 worker", "r1", "look").splitlines()[0]
    assert first == f"digits: finished 3 steps, 1 worker, {told}"


@pytest.mark.parametrize(
    ("cards", "told"),
    [
        ({}, None),
        (
            {"a": "NVIDIA H100 80GB HBM3"},
            "100 TFLOP/s on 1 x NVIDIA H100 80GB HBM3, 10.1% of their peak in bfloat16 (MFU)",
        ),
        ({"a": "NVIDIA L4", "b": "NVIDIA L4"}, "100 TFLOP/s on 2 x NVIDIA L4, 41.3% of their peak in bfloat16 (MFU)"),
        ({"a": "NVIDIA L40S"}, "100 TFLOP/s on 1 x NVIDIA L40S"),
        ({"a": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}, "100 TFLOP/s on 1 x NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ],
)
def test_what_cards_compute_is_told_with_their_peak(cards: dict[str, str], told: str | None) -> None:
    known = None if told is None else 1e12
    outcome = RunOutcome(
        steps=3, loss=0.5, digest="d", steps_per_s=10.0, step_samples=10, flops_per_sample=known, cards=cards
    )
    rows = summary.text(outcome, "digits", "1 worker", "r1", "look").splitlines()
    assert [row.removeprefix("  compute  ") for row in rows if row.startswith("  compute")] == ([told] if told else [])
    report = outcome.as_dict("r", 0.0)
    assert ("flops_per_s" in report, "mfu" in report) == (told is not None, told is not None and "MFU" in told)


def test_memory_of_gpus_is_told_of_the_worker_that_took_most() -> None:
    told = {"peak": 12_300_000_000, "reserved": 14_000_000_000, "largest_free": 900_000_000}
    less = {"peak": 11_000_000_000, "reserved": 20_000_000_000, "largest_free": 0}
    outcome = RunOutcome(steps=3, loss=0.5, digest="d", gpu_memory={"worker 0": less, "worker 1": told})
    rows = summary.text(outcome, "digits", "2 workers", "r1", "look").splitlines()
    assert (
        "  memory   tensors took at most 12.3 GB of a GPU (worker 1); 14 GB reserved at the end, largest free block 900 MB"
        in rows
    )
    assert outcome.as_dict("r", 0.0)["gpu_memory"] == {"worker 0": less, "worker 1": told}


def test_memory_beside_activations_is_told_by_what_it_is_for() -> None:
    held = {"parameters": 4_000_000, "optimizer": 8_000_000, "gradients": 4_000_000, "sums": 12_000_000}
    told = {"peak": 30e6, "reserved": 40e6, "largest_free": 0, "graphs": 9e6, **held, "per_parameter": 28.0}
    outcome = RunOutcome(steps=3, loss=0.5, digest="d", gpu_memory={"worker 0": told})
    assert (
        "40 MB reserved at the end, 9 MB of it for graphs, largest free block 0 bytes; beside activations 28 bytes a "
        "parameter: parameters 4 MB, optimizer's state 8 MB, gradients 4 MB, sums 12 MB\n"
    ) in summary.text(outcome, "digits", "1 worker", "r1", "look")
    told |= {"contributions": 6e6, "per_parameter": 6_310.4}
    assert "beside activations 6,310 bytes a parameter: " in summary.text(outcome, "digits", "1 worker", "r1", "look")
    assert "sums 12 MB, contributions that are held 6 MB\n" in summary.text(outcome, "digits", "1 worker", "r1", "look")


def test_a_store_of_ones_own_is_shown_by_a_command() -> None:
    assert shown(OWN) == "  look     python -m orchestrator ui"


def test_another_store_is_named() -> None:
    other = "sqlite:////somewhere else/mlflow.db"
    assert shown(other) == f"  look     python -m orchestrator ui tracking.uri='{other}'"


def test_a_run_at_a_server_has_the_address_of_its_charts() -> None:
    page = "https://mlflow.example:8080/#/experiments/7/runs/r1/model-metrics?workflowType=machine_learning"
    assert shown("https://mlflow.example:8080/") == f"  look     {page}"


def test_what_mlflow_lacks_can_be_sent_later() -> None:
    told = summary.not_recorded("no answer", "r1", "http://host:1")
    assert told.startswith("warning: MLflow has not got all of this run: no answer\n")
    assert told.endswith("by `python -m orchestrator resume=r1 tracking.uri=http://host:1`")
    assert summary.not_recorded("full", "r1", None, "sweep").endswith("resume=r1`")
