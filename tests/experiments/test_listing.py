"""A table of runs has settings and labels as they were."""

from __future__ import annotations

from orchestrator.experiments import listing
from orchestrator.provenance.tracking import Past
from tests.refusals import refused


def test_a_number_is_read_where_python_writes_it_so_and_else_it_is_text() -> None:
    settings = {
        "optimizer.lr": "1e-05",
        "run.steps": "70",
        "run.seed": "-1",
        "run.compile": "True",
        "run.note": "None",
        "run.epochs": "null",
    }
    labels = {"month": "2024_01", "agent": "007", "size": "1e5", "group": "3"}
    past = Past("a" * 32, "n", "e", "FINISHED", 0, 70, {}, None, settings=settings, labels=labels)
    table = listing.frame([past], [*settings, *(f"tag.{name}" for name in labels)])
    assert table.iloc[0].tolist() == [1e-05, 70, -1, True, None, None, "2024_01", "007", "1e5", 3]


def test_a_long_name_makes_no_column_wide() -> None:
    found = [Past("a" * 32, name, "e", "FINISHED", 0, 70, {}, None) for name in ("n" * 61, "m" * 60)]
    lines = listing.table(found, ["name", "steps"]).splitlines()
    assert [line.split() for line in lines] == [["name", "steps"], ["n" * 59 + "…", "70"], ["m" * 60, "70"]]
    assert listing.frame(found, ["name"]).iloc[0].tolist() == ["n" * 61]


def test_a_run_whose_setting_has_no_value_is_no_match_of_a_number() -> None:
    """As of runs that are as long as so many epochs, among others that are as long as so many steps."""
    found = [
        Past("a" * 32, "n", "e", "FINISHED", 0, 70, {}, None, settings={"run.steps": steps, "run.epochs": epochs})
        for steps, epochs in (("70", "null"), ("null", "3"))
    ]
    assert listing.selected(found, "run.steps>=70") == found[:1]
    assert listing.selected(found, "run.epochs<10") == found[1:]
    assert listing.selected(found, "run.steps=null") == found[1:]
    with refused("record.not-comparable"):
        listing.selected(found, "run.steps>many")


def test_a_run_is_found_by_its_id_its_digest_and_its_name_as_they_are_told() -> None:
    """The table shows the beginnings of the first two, and the kind behind the third."""
    found = [
        Past(run_id * 4, "n", "e", "FINISHED", 0, 70, {}, digest, kind=kind)
        for run_id, digest, kind in (
            ("12345e67", "7e" * 32, "run"),
            ("98765e43", None, "sweep"),
            ("9" * 8, "7" * 64, "run"),
        )
    ]
    for given in (found[0].run_id, found[0].run_id[:8], "12"):
        assert listing.selected(found, f"run={given}") == found[:1]
    for given in ("7e" * 32, "7e" * 6):
        assert listing.selected(found, f"digest={given}") == found[:1]
        assert listing.selected(found, f"digest!={given}") == found[2:]
    assert listing.selected(found, "name=n") == found
