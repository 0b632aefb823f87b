"""A recorded run's settings: what determines the result stays, the execution may change."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.config.settings import load, shown, to_yaml
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import ConfigurationError
from orchestrator.optim.privacy import secret
from orchestrator.provenance.code import checkout
from orchestrator.provenance.tracking import Past, names
from tests.products import thinned
from tests.refusals import refused

pytestmark = pytest.mark.slow

PAST = Past("0123abcd", "a run", "default", "FINISHED", 0, 3, {}, "4a4d")
RUN = {
    "run": {"steps": 3},
    "pipeline": {"target": "a:B"},
    "optimizer": {"name": "sgd", "lr": 0.1},
    "topology": {"name": "parameter_server", "servers": 2},
}


WHOLE = {
    "trace.jsonl": "".join(f'{{"step": {step}, "loss": "0x1p+0", "gradient": "00"}}\n' for step in range(3)),
    "data.json": '{"inputs": []}',
    "environment.json": '{"nodes": {"n": {"bits": {}}}}',
    "code.bundle": "",
}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    files = RunFolder(tmp_path, PAST.run_id)
    files.settings.write_text(to_yaml(load([RUN], [])))
    return Recorded(PAST, files)


def test_the_execution_may_change(recorded: Recorded) -> None:
    settings = recorded.settings(["cluster.workers=3", "cluster.spares=1"])
    assert (settings.cluster.workers.most, settings.topology.options) == (3, {"servers": 2})


@pytest.mark.parametrize("override", ["topology=tree", "topology.name=tree", "topology={name: tree, arity: 3}"])
def test_another_topology_leaves_the_options_of_the_recorded_one_behind(recorded: Recorded, override: str) -> None:
    settings = recorded.settings(["cluster.workers=3", override])
    assert (settings.topology.name, "servers" in settings.topology.options) == ("tree", False)
    assert recorded.settings(["topology=parameter_server", "topology.servers=1"]).topology.options == {"servers": 1}


@pytest.mark.parametrize("ask", [Recorded.require_readable, Recorded.require], ids=["a-resume", "a-rerun"])
def test_settings_that_were_changed_by_hand_are_named(tmp_path: Path, ask: Callable[[Recorded], None]) -> None:
    """The run went on with these, and its rerun was told to have diverged."""
    files = RunFolder(tmp_path, PAST.run_id)
    for name, content in WHOLE.items():
        (files.path / name).write_text(content)
    settings = load([RUN], ["pipeline.args={sizes: [1, 2], old: 3}", "cluster.workers=2", "run.note=first"])
    written = to_yaml(settings, public=True)
    files.settings.write_text(written)
    then = {key: names.parameter(value) for key, value in shown(settings).items()}
    past = replace(PAST, settings=then, settings_sha256=hashlib.sha256(written.encode()).hexdigest())
    recorded = Recorded(past, files)
    ask(recorded)
    files.settings.write_text(written.replace("workers: 2", "workers: 1").replace("note: first", "note: second"))
    ask(recorded)  # of the execution
    files.settings.write_text(written.replace("lr: 0.1", "lr: 0.2").replace("old: 3", "new: null"))
    changed = "optimizer.lr was 0.1 and is 0.2, pipeline.args.new was not there and is null, pipeline.args.old was 3"
    with refused("record.settings-changed", changed):
        ask(recorded)
    ask(Recorded(replace(past, settings_sha256=None), files))  # of an earlier version


@pytest.mark.parametrize("ask", [Recorded.require_readable, Recorded.require], ids=["a-resume", "a-rerun"])
def test_a_run_whose_files_are_elsewhere_is_not_told_to_have_ended_early(
    tmp_path: Path, ask: Callable[[Recorded], None]
) -> None:
    """Its driver was lost before MLflow had them. The advice to launch it again may cost thousands of steps."""
    past = replace(PAST, status="KILLED", metrics={"train/loss": 0.5})
    with refused("record.elsewhere", PAST.run_id):
        ask(Recorded(past, RunFolder(tmp_path, PAST.run_id)))
    with refused("record.still-running", PAST.run_id):
        ask(Recorded(replace(past, status="RUNNING"), RunFolder(tmp_path, PAST.run_id)))
    early = "record.no-settings" if ask is Recorded.require_readable else "record.incomplete"
    with refused(early, PAST.run_id):
        ask(Recorded(replace(past, metrics={}), RunFolder(tmp_path, PAST.run_id)))


def test_an_argument_that_is_not_a_number_stays_as_it_was(tmp_path: Path) -> None:
    files = RunFolder(tmp_path, PAST.run_id)
    files.settings.write_text(to_yaml(load([RUN], ["pipeline.args.missing=.nan"])))
    assert math.isnan(Recorded(PAST, files).settings(["cluster.workers=3"]).pipeline.args["missing"])
    with refused("record.determines-result", "pipeline.args.missing"):
        Recorded(PAST, files).settings(["pipeline.args.missing=0.5"])


def test_what_determines_the_result_may_not_and_all_of_it_is_named(recorded: Recorded) -> None:
    with refused("record.determines-result", "optimizer.lr"):
        recorded.settings(["run.threads=2", "optimizer.lr=1", "cluster.workers=2"])


def test_it_may_begin_with_a_checkpoint_of_another_run_but_with_no_other_state(recorded: Recorded) -> None:
    with refused("begin.not-begun"):
        recorded.settings(["begin=abc@2"])
    begun = {**RUN, "begin": {"name": "abc@2", "digest": "0" * 64}}
    recorded.files.settings.write_text(to_yaml(load([begun], [])))
    found = recorded.settings(["begin=def@2"]).begin
    assert (found.name, found.step, found.digest) == ("def@2", 2, "0" * 64)
    with refused("record.determines-result", "begin.digest"):
        recorded.settings([f"begin.digest={'1' * 64}"])


PRIVATE: dict[str, Any] = {
    **RUN,
    "topology": "tree",
    "data": {"partition": "iid"},
    "privacy": {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.1},
}


def test_a_record_without_the_path_of_its_secret_asks_for_it_and_takes_it(recorded: Recorded, tmp_path: Path) -> None:
    """Earlier versions wrote '***' in its place, at which everything that read the record ended."""
    path = tmp_path / "keys" / "secret"
    secret.read_or_create(path)
    first = secret.read(path)
    given = {**PRIVATE, "privacy": {**PRIVATE["privacy"], "secret": str(path)}}
    recorded.files.settings.write_text(to_yaml(load([given], []), public=True))
    recorded.files.privacy.write_text(json.dumps({"commitment": first.commitment}))
    assert recorded.secret() == first
    recorded.files.settings.write_text(recorded.files.settings.read_text().replace(str(path), "'***'"))
    with pytest.raises(ConfigurationError) as caught:
        recorded.settings(["cluster.workers=2"])
    assert caught.value.problems == ("privacy.secret: this record lacks the path",)
    assert "privacy.secret=PATH" in caught.value.remedy
    assert recorded.is_private
    assert recorded.held.run.steps == 3
    assert recorded.as_run()["determining"]
    assert recorded.secret([f"privacy.secret={path}", "cluster.workers=2"]) == first
    with refused("privacy.secret-missing"):
        recorded.secret(["privacy.secret=~nobody-of-this-name/s"])


def test_who_gives_a_credential_again_cannot_change_anything_beside_it(recorded: Recorded) -> None:
    args = {"password": "swordfish", "hidden": 3, "url": "https://me:sword@host"}
    recorded.files.settings.write_text(
        to_yaml(load([{**RUN, "pipeline": {"target": "a:B", "args": args}}], []), public=True)
    )
    for again in (
        ["pipeline.args.password=swordfish", "pipeline.args.url=https://me:sword@host"],
        ["pipeline.args={password: swordfish, url: 'https://me:sword@host'}"],
    ):
        assert recorded.settings(again).pipeline.args == args
    with refused("record.determines-result", "wrong"):
        recorded.settings(["pipeline.args={password: swordfish, hidden: 4}"])
    with refused("record.determines-result", "pipeline.args.url"):
        recorded.settings(["pipeline.args.password=x", "pipeline.args.url=https://me:sword@elsewhere"])


def test_everything_that_is_missing_for_a_rerun_is_named(recorded: Recorded) -> None:
    with refused("record.incomplete"):
        recorded.require()


def test_the_cause_for_which_there_is_no_code_is_named(recorded: Recorded) -> None:
    """A repository of another user: the remedy was a project in a git repository."""
    recorded.files.code.write_text(json.dumps({"unrecorded": "git does not trust it; git config X"}))
    with refused("record.incomplete", "git config X") as caught:
        recorded.require()
    assert caught.value.remedy == "launch it again"


@pytest.mark.parametrize("rubbish", thinned(["", "{", "[]", '{"other": 1}', "\udcff"], 3, 1))
@pytest.mark.parametrize("name", ["data.json", "environment.json", "trace.jsonl"])
def test_a_damaged_record_is_named_and_nothing_is_run(recorded: Recorded, name: str, rubbish: str) -> None:
    """If a record had lost its environment, a rerun would find no difference in it and call the runs exactly equal."""
    for other, text in WHOLE.items():
        (recorded.files.path / other).write_text(text)
    recorded.require()
    (recorded.files.path / name).write_text(f"{rubbish}\n", errors="surrogateescape")
    with refused("record.damaged"):
        recorded.require()


@pytest.mark.parametrize("name", ["environment.json", "code.json", "data.json", "reads.json", "identity.json"])
def test_a_damaged_record_is_named_before_it_is_gone_on_with(recorded: Recorded, name: str) -> None:
    """It ended a resume with a traceback, one of the identity after the last step."""
    recorded.require_readable()
    (recorded.files.path / name).write_text('{"nodes"')
    with refused("record.damaged", name):
        recorded.require_readable()


@pytest.mark.parametrize("read", [lambda it: it.code, lambda it: it.as_run()])
def test_a_damaged_record_is_named_in_a_comparison_too(recorded: Recorded, read: Callable[[Recorded], object]) -> None:
    recorded.files.code.write_text(json.dumps([]))
    with refused("record.damaged"):
        read(recorded)


def test_a_trace_is_compared_line_by_line(recorded: Recorded) -> None:
    """One of millions of steps is not held: what is behind is not read yet."""
    recorded.files.trace.write_text('{"step": 0}\n{"step": 1}\n{\n')
    trace = recorded.as_run()["trace"]
    for _ in range(2):
        steps = iter(trace)
        assert [next(steps), next(steps)] == [{"step": 0}, {"step": 1}]
        with refused("record.damaged"):
            next(steps)


def test_a_trace_that_was_cut_short_is_no_divergence(recorded: Recorded) -> None:
    for other, text in WHOLE.items():
        (recorded.files.path / other).write_text(text)
    recorded.files.trace.write_text(WHOLE["trace.jsonl"][:-1])
    with refused("record.damaged"):
        recorded.require()


def test_a_record_without_the_order_of_updates_is_not_rerun(tmp_path: Path) -> None:
    files = RunFolder(tmp_path, PAST.run_id)
    files.settings.write_text(to_yaml(load([RUN, {"sync": "bap"}], [])))
    recorded = Recorded(PAST, files)
    for other, text in WHOLE.items():
        (files.path / other).write_text(text)
    with refused("record.incomplete"):
        recorded.require()
    files.barriers.write_text("")
    with refused("record.damaged"):
        recorded.require()
    files.barriers.write_text('{"rest": 0}\n')
    with refused("record.damaged"):
        recorded.require()


SETTINGS = to_yaml(load([RUN], []))


class Uploads:
    """A store, of which the artifacts of one run are asked for."""

    def __init__(self) -> None:
        self.files = {"settings.yaml": SETTINGS, "trace.jsonl": "a"}
        self.fetched = 0

    def fetch(self, _: str, __: str, target: Path, *, anew: bool, only: str | None = None) -> list[str]:
        self.fetched += only is None
        wanted = {name: text for name, text in self.files.items() if only in (None, name)}
        new = {name: text for name, text in wanted.items() if anew or not (target / name).exists()}
        for name, text in new.items():
            (target / name).write_text(text)
        return [*new]


def test_copies_of_a_run_of_elsewhere_are_made_anew_once_it_has_gone_on(tmp_path: Path) -> None:
    store = Uploads()

    def seen(status: str, ended_ms: int | None) -> RunFolder:
        past = replace(PAST, status=status, ended_ms=ended_ms)
        return Recorded.of(cast("Any", store), tmp_path, past).files

    assert seen("RUNNING", None).trace.read_text() == "a"
    store.files |= dict.fromkeys(("trace.jsonl", "code.bundle", "data.json", "environment.json"), "ab")
    assert seen("RUNNING", None).trace.read_text() == "ab"
    store.files["trace.jsonl"] = "abc"
    assert seen("KILLED", 5).trace.read_text() == "abc"
    store.fetched = 0
    assert seen("KILLED", 5).trace.read_text() == "abc"
    assert store.fetched == 0
    store.files["trace.jsonl"] = "abcd"
    assert seen("FINISHED", 7).trace.read_text() == "abcd"


@pytest.mark.parametrize(
    ("there", "driver", "kept"),
    [
        ('{"a": 1}\n{"b": 2}\n{"c": 3}\n', "elsewhere", False),  # it has gone on there
        ('{"a": 1}\n{"x": 2}\n', "elsewhere", False),  # and both went on from there
        ('{"a": 1}\n{"b"', "elsewhere", True),  # sent from here while it was written
        ("", "elsewhere", True),
        ('{"a": 1}\n{"x": 2}\n', "here", True),  # nobody else had it
        ('{"a": 1}\n{"x": 2}\n', "", True),  # of a version that did not tell
    ],
)
def test_files_of_a_run_that_has_gone_on_elsewhere_are_left(
    tmp_path: Path, there: str, driver: str, kept: bool
) -> None:
    """The machine of a lost driver is back: `resume` went on from its last step there, and removed the later checkpoints."""
    files = RunFolder(tmp_path, PAST.run_id)
    with files.leased():
        files.release()
    pid, host = os.getpid(), socket.gethostname()
    for name in ("settings.yaml", "trace.jsonl", "code.bundle", "data.json", "environment.json"):
        (files.path / name).write_text(SETTINGS if name == "settings.yaml" else "own")
    files.journal.write_text('{"a": 1}\n{"b": 2}\n')
    store = Uploads()
    store.files |= {"journal.jsonl": there}
    drove = {"elsewhere": (str(pid), f"{host}-2"), "here": (str(pid), host), "": ("", "")}[driver]
    Recorded.of(cast("Any", store), tmp_path, replace(PAST, status="KILLED", driver=drove))
    assert files.trace.read_text() == ("own" if kept else "a")
    assert files.fetched.exists() != kept


def test_a_repetition_that_was_killed_with_its_command_is_told_by_its_own_files(tmp_path: Path) -> None:
    """MLflow has what it was by the last copy there."""
    home = tmp_path / ".orchestrator"
    runs = home / checkout.FOLDER / "0" / "code" / ".orchestrator"
    runs.mkdir(parents=True)
    left = RunFolder(runs, PAST.run_id)
    left.lease()
    left.settings.write_text(SETTINGS)
    left.trace.write_text("all")
    left.release()
    found = Recorded.of(cast("Any", Uploads()), home, replace(PAST, status="KILLED")).files
    assert (found.path.parent, found.trace.read_text()) == (home, "all")


def test_a_run_of_a_project_that_may_only_be_read_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / checkout.FOLDER).mkdir()
    (tmp_path / f"{checkout.FOLDER}.lock").mkdir()  # so nobody can take it
    found = Recorded.of(cast("Any", Uploads()), tmp_path, replace(PAST, status="KILLED")).files
    assert found.trace.read_text() == "a"


def test_a_copy_of_a_run_whose_driver_lives_here_is_for_who_takes_over_alone(tmp_path: Path) -> None:
    """A driver that is cut off from all others, on a machine of the same name, was waited for without end."""
    files = RunFolder(tmp_path, PAST.run_id)
    files.settings.write_text(SETTINGS)
    files.fetched.write_text("RUNNING None")
    recorded = Recorded(replace(PAST, status="RUNNING", is_driven_here=True), files)
    with refused("record.still-running"):
        recorded.require_readable()
    recorded.require_readable(takes_over=True)


def test_files_of_a_run_that_is_driven_here_are_its_own(tmp_path: Path) -> None:
    store, files = Uploads(), RunFolder(tmp_path, PAST.run_id)
    files.settings.write_text(SETTINGS)
    files.trace.write_text("own")
    for status in ("RUNNING", "KILLED"):
        Recorded.of(cast("Any", store), tmp_path, replace(PAST, status=status))
    assert (files.trace.read_text(), files.fetched.exists()) == ("own", False)
    files.fetched.write_text("RUNNING None")  # of a look before it was resumed here
    with files.leased():
        Recorded.of(cast("Any", store), tmp_path, replace(PAST, status="RUNNING"))
    assert files.trace.read_text() == "own"


def test_evaluations_are_those_of_the_journal_and_the_last_of_one_that_was_made_again(recorded: Recorded) -> None:
    assert recorded.evaluations() == {}
    told = [
        {"event": "evaluated", "step": step, "metrics": {"a": value}}
        for step, value in ((1, 0.1), (3, 0.3), (1, "nan"))
    ]
    lines = [json.dumps(each) + "\n" for each in [{"event": "run_ended", "why": "evaluated"}, *told]]
    recorded.files.journal.write_text("".join(lines))
    assert recorded.evaluations() == recorded.as_run()["evaluations"] == {1: {"a": "nan"}, 3: {"a": 0.3}}
    recorded.files.journal.write_text('{"event": "evaluated", "step": 1}\n')
    with refused("record.damaged", "journal.jsonl"):
        recorded.evaluations()
