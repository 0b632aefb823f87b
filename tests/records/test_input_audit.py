"""The inputs that were read, as a value: put together, judged, set again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import input_audit
from orchestrator.records.input_audit import File, InputAudit

NAMES = st.sampled_from(["a", "b", "data/c", "/d/e"])
VALUES = st.sampled_from([None, "1", "2"])
FILES = st.dictionaries(NAMES, st.just(None)).map(lambda names: {name: File(name, name, size=1) for name in names})
VARIABLES = st.dictionaries(st.sampled_from(["SCALE", "MODE", "API_TOKEN"]), VALUES.map(lambda value: (value,)))
READS = st.builds(InputAudit, FILES, st.lists(NAMES).map(lambda found: tuple(sorted(set(found)))), VARIABLES)
TOKEN = "abcdef0123456789abcdef"


@given(READS, READS, READS)
def test_it_does_not_matter_in_which_order_processes_tell(one: InputAudit, two: InputAudit, three: InputAudit) -> None:
    assert one | two == two | one
    assert (one | two) | three == one | (two | three)
    assert one | one == one | InputAudit()


@given(READS, READS)
def test_they_come_back_from_plain_data(one: InputAudit, two: InputAudit) -> None:
    both = one | two
    assert input_audit.from_dict(both.as_dict()) == both


@given(READS, st.sets(st.sampled_from(["SCALE", "MODE", "API_TOKEN"])))
def test_declared_variables_are_no_obstacle_and_no_note(one: InputAudit, declared: set[str]) -> None:
    left = input_audit.undeclared(one, declared)
    assert not set(left.variables) & declared
    told = " ".join([*input_audit.obstacles(left), *input_audit.notes(left)])
    assert not any(name in told for name in declared)
    assert all(name in told for name in left.variables)


@given(READS)
def test_a_rerun_in_the_environment_that_it_sets_differs_in_nothing(one: InputAudit) -> None:
    present = {name: value for name, value in input_audit.settable(one).items() if value is not None}
    assert input_audit.differing(one, present) == ([], [])


def test_a_rerun_says_which_variables_are_others_here() -> None:
    found = InputAudit(variables={"SCALE": ("2",), "SERVICE_TOKEN": (input_audit.recorded("SERVICE_TOKEN", TOKEN),)})
    assert input_audit.settable(found) == {"SCALE": "2"}
    set_again, other = input_audit.differing(found, {"SCALE": "3", "SERVICE_TOKEN": TOKEN})
    assert set_again == ["SCALE is set to 2 as recorded; here it is 3"]
    assert other == []
    set_again, other = input_audit.differing(found, {"SCALE": "2", "SERVICE_TOKEN": TOKEN[::-1]})
    assert set_again == []
    assert other == ["SERVICE_TOKEN has another value here, and its recorded one was masked; set it as it was"]


def test_a_resume_says_which_variables_are_set_again_and_which_differ() -> None:
    found = InputAudit(variables={"SCALE": ("2",), "PLACE": ("/a",), "MODE": (None,)})
    assert input_audit.variables_apart(found, {"SCALE": "3", "PLACE": "/b"}, ["SCALE"]) == [
        "SCALE is set to 2 as recorded; here it is 3",
        "PLACE was /a when the run began, and the pipeline read it; here it is /b",
    ]


def test_values_that_differ_between_workers_are_an_obstacle_and_not_set() -> None:
    both = InputAudit(variables={"SCALE": ("1",)}) | InputAudit(variables={"SCALE": ("2",)})
    assert input_audit.settable(both) == {}
    assert any("not the same at all workers" in each for each in input_audit.obstacles(both))


def test_a_file_that_changes_while_a_run_goes_on_is_an_obstacle() -> None:
    """As at a resume: what was read before is in the record."""

    def read(size: int, sha256: str | None) -> InputAudit:
        return InputAudit({"a.csv": File("/a.csv", "a.csv", None, folder=False, size=size, sha256=sha256)})

    for other in (read(4, "2"), read(5, None)):
        both = input_audit.from_dict((read(4, "1") | other).as_dict())
        assert both.changed == ("a.csv",)
        assert any("a.csv: changed since the run began" in each for each in input_audit.obstacles(both))
        assert both.identity() != other.identity()
        assert (both | other).changed == ("a.csv",)
    assert (read(4, "1") | read(4, None) | read(4, "1")).changed == ()
    assert input_audit.elsewhere(read(4, "1") | read(4, "2"), lambda _: True).changed == ()


def test_files_of_the_snapshot_are_code() -> None:
    is_code = input_audit.code_of([b"app/labels.json", b"shared/x.json"], "/repo", "app")
    assert is_code(File("/repo/app/labels.json", "labels.json"))
    assert is_code(File("/repo/shared/x.json"))
    assert is_code(File("/repo/shared", folder=True))
    assert is_code(File("/repo/app", ".", folder=True))
    assert not is_code(File("/repo/app/ignored.json", "ignored.json"))
    assert not is_code(File("/elsewhere/labels.json"))
    assert is_code(File("/link/labels.json", also="labels.json"))
    assert not is_code(File("/repo/app/labels.json", "labels.json", also="/elsewhere/labels.json"))


def test_files_are_told_by_the_folder_that_was_listed() -> None:
    files = [File("/d", folder=True), File("/d/1.png", size=3), File("/d/2.png", size=3)]
    (told,) = input_audit.obstacles(InputAudit({file.name: file for file in files}))
    assert told.startswith("/d: read by the pipeline")
