"""Before `trust=true` nothing of another's record is executed, imported or unpickled, and nothing is written elsewhere."""

from __future__ import annotations

import copy
import os
import pwd
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator import staleness
from orchestrator.cli.jobs.once import once
from orchestrator.cli.watch import watch
from orchestrator.config.settings import load
from orchestrator.config.settings.schema import TABLES, path_of
from orchestrator.driver.folders import project_folder
from orchestrator.driver.launch.dry_run import dry_run
from orchestrator.driver.launch.launch import launch
from orchestrator.driver.launch.resume import resume
from orchestrator.driver.preflight import begin
from orchestrator.driver.preflight.ownership import Untrusted, WouldOpen, is_own
from orchestrator.errors import from_dict
from orchestrator.experiments.compare import compare
from orchestrator.experiments.export import lightning_checkpoint
from orchestrator.experiments.export.crate import ExportRequest, export
from orchestrator.experiments.listing import runs
from orchestrator.experiments.rerun import run as rerun
from orchestrator.experiments.rerun.repeater import Repeater
from orchestrator.experiments.rerun.sweep import rerun_sweep
from orchestrator.experiments.sweep.sweep import resume_sweep
from orchestrator.experiments.tuning.choosing import tune
from orchestrator.provenance.tracking import KIND, PARENT, Past, Store
from orchestrator.provenance.tracking.store import HOST, USER
from tests.attacks import strangers
from tests.attacks.strangers import EXECUTED, NODE, SETTINGS, TARGET
from tests.attacks.test_bundles import bundle_of
from tests.products import thinned
from tests.provenance.code.repositories import create, git
from tests.refusals import refused

pytestmark = pytest.mark.slow

OF_MLFLOW = pytest.mark.filterwarnings(
    "ignore:The ..noload.. loader strategy is deprecated"
)  # its own use of SQLAlchemy
SWEEP = """
pipeline: {target: 'stranger_module:Net'}
run: {steps: 2}
optimizer: {name: sgd, lr: 0.1}
space: {topology.name: {choices: [ring, 'stranger_module:Ring']}}
search: {name: 'stranger_module:few', trials: 1}
"""
SEARCHED_BY_US = """
pipeline: {target: 'stranger_module:Net'}
run: {steps: 2}
optimizer: {name: sgd}
search: {name: grid, trials: null}
space:
  optimizer.lr: [0.1]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the victim types; its scratch folder is its own."""
    place = strangers.victim(tmp_path / "victim")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("USER", "victim")
    yield place
    assert not (place / EXECUTED).exists()
    assert "stranger_module" not in sys.modules


def crate_of(tmp_path: Path, **record: Any) -> str:
    return str(strangers.sent(tmp_path / "sent.zip", strangers.record(**record)))


def asked(name: str, seen_in: Path, wanted: rerun.RerunRequest | None = None) -> Untrusted:
    """The question that a rerun of this crate asks."""
    with strangers.watched() as seen, pytest.raises(Untrusted) as error:
        rerun.rerun(name, [], None, wanted or rerun.RerunRequest())
    assert seen.outside(seen_in / ".orchestrator", Path(tempfile.gettempdir())) == []
    assert (seen.started, seen.connected, seen.unpickled) == ([], [], [])
    assert list((seen_in / ".orchestrator" / "worktrees").iterdir()) == []
    return error.value


def test_a_crate_asks_and_nothing_of_it_is_executed(here: Path, tmp_path: Path) -> None:
    said = asked(crate_of(tmp_path), here)
    assert f"pipeline: {TARGET}" in said.message


@pytest.mark.parametrize("section", thinned([*TABLES, "optimizer", "tracking"], 4))
def test_variants_that_settings_name_are_told_and_not_imported(here: Path, tmp_path: Path, section: str) -> None:
    said = asked(crate_of(tmp_path, settings=naming_code(section)), here).message
    assert "other code named by settings: stranger_module:few" in said


def test_variables_that_a_rerun_sets_are_told_all_of_them(here: Path, tmp_path: Path) -> None:
    """Behind many harmless ones, and among those that the code has read, too."""
    many = {f"MKL_{number}": "1" for number in range(40)} | {"LD_PRELOAD": "/tmp/evil.so"}
    reads = {"variables": {"PYTHONPATH": ["/tmp/evil"], "PATH": [None]}}
    said = asked(crate_of(tmp_path, node={**NODE, "bits": {"variables": many}}, reads=reads), here).message
    for told in ("LD_PRELOAD=/tmp/evil.so", "PYTHONPATH=/tmp/evil", "PATH=(removed)"):
        assert told in said


def test_the_question_cannot_be_overwritten_on_the_terminal(here: Path, tmp_path: Path) -> None:
    """Escape sequences, line ends and marks that turn the direction of writing are shown as such."""
    tricks = "\x1b[2J\x1b[1;1H", "\r\n  pipeline: mine:Harmless", "\u202e", "\x9b2J"
    node = {**NODE, "bits": {"variables": {f"MKL_{number}": trick for number, trick in enumerate(tricks)}}}
    said = asked(crate_of(tmp_path, node=node, code={"modules": {tricks[0]: {"kind": "snapshot"}}}), here).message
    assert all(each.isprintable() for each in said.replace("\n", ""))
    assert not any(line.startswith("  pipeline: mine") for line in said.splitlines())


def test_a_variable_that_a_record_names_is_not_read_before_trust(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "a_secret:of_mine")
    pipeline = {"target": TARGET, "args": {"a": "***DB_PASSWORD***", "b": "stranger_module:few"}}
    said = asked(crate_of(tmp_path, settings={**SETTINGS, "pipeline": pipeline}), here)
    assert "a_secret" not in f"{said.message}{said.more}"
    assert "other code named by settings: stranger_module:few" in said.message


class Shared:
    """A store that others write to, with what they have launched."""

    def __init__(self, project: Path) -> None:
        self.folder = project_folder(project)
        self.store = Store(None, self.folder)
        self.experiment = self.store.experiment("default")

    def launched(self, status: str, kind: str = "run", parent: str | None = None, name: str = "mallory") -> Past:
        """By somebody of that name; older sweeps do not tell of theirs."""
        own = {} if (status, kind) == ("FINISHED", "sweep") else {USER: name}
        tags = {**own, HOST: "h", KIND: kind, "steps": "2", **({PARENT: parent} if parent else {})}
        run_id = self.store.client.create_run(self.experiment, tags=tags).info.run_id
        if (status, kind) == ("KILLED", "run"):
            self.store.client.log_param(run_id, "run.submission", "nightly")
        self.store.client.set_terminated(run_id, status)
        self.put(run_id, strangers.record())
        return self.store.find(run_id)

    def put(self, run_id: str, files: dict[str, bytes]) -> None:
        (self.folder / run_id).mkdir(exist_ok=True)
        for name, content in files.items():
            (self.folder / run_id / name).write_bytes(content)

    def sweep(self, status: str) -> Past:
        """With one trial."""
        past = self.launched(status, "sweep")
        trial = self.launched("FINISHED", parent=past.run_id)
        begun = f'{{"event": "begun", "trial": 0, "rung": 0, "run_id": "{trial.run_id}"}}\n'
        self.put(past.run_id, {"sweep.yaml": SWEEP.encode(), "sweep.jsonl": begun.encode()})
        return past


@OF_MLFLOW
def test_what_others_launched_in_a_shared_store_asks_whatever_the_verb(here: Path) -> None:
    shared = Shared(here)
    finished, killed = shared.launched("FINISHED"), shared.launched("KILLED")
    swept, left = shared.sweep("FINISHED"), shared.sweep("KILLED")
    commands: dict[str, Callable[[], object]] = {
        "rerun=RUN": lambda: rerun.rerun(finished.run_id, [], None, rerun.RerunRequest()),
        "resume=RUN": lambda: resume(killed.run_id, [], None),
        "rerun=SWEEP": lambda: rerun_sweep(swept, [], None, check_environment=True),
        "resume=SWEEP": lambda: resume_sweep(left, [], None),
    }
    for command, call in commands.items():
        with pytest.raises(Untrusted) as error:
            call()
        assert f"was launched by mallory, and a {command.partition('=')[0]} executes its code" in error.value.message, (
            command
        )
        assert f"pipeline: {TARGET}" in error.value.message
        if "SWEEP" in command:
            assert "stranger_module:Ring" in error.value.message
            assert "stranger_module:few" in error.value.message
    with refused("job.not-yours"):
        once("nightly", load([SETTINGS], ["run.submission=nightly"]), {}, [])


@OF_MLFLOW
def test_a_checkpoint_of_lightning_which_the_code_of_others_makes_asks_for_trust(here: Path, tmp_path: Path) -> None:
    shared = Shared(here)
    past = shared.launched("FINISHED")
    shared.put(past.run_id, strangers.record(node={**NODE, "packages": {"lightning": "2"}}))
    with pytest.raises(Untrusted, match="was launched by mallory"):
        lightning_checkpoint.export(past.run_id, tmp_path / "a.ckpt", None, trusted=False)


@OF_MLFLOW
@pytest.mark.parametrize(
    "begun", ["", "  initial.name: ['models:/a/1']", "initial: {name: 'models:/a/1'}", "begin: {name: 'there@1'}"]
)
def test_trust_reaches_the_trials_of_a_sweep_that_begin_with_what_somebody_has_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    """Their own process asks whose that is. An older version, which may be recorded, has no such word, and no question."""
    shared, passed = Shared(here), list[str]()
    swept = shared.sweep("FINISHED")
    file = shared.folder / swept.run_id / "sweep.yaml"
    file.write_text(f"{SEARCHED_BY_US}{begun}")

    def repeat(self: Repeater, *_: object) -> dict[str, object]:
        passed.extend(self.overrides)
        raise Untrusted("the model was made by mallory", "initial=", WouldOpen({}))

    monkeypatch.setattr(Repeater, "repeat_sweep", repeat)
    with pytest.raises(Untrusted):
        rerun_sweep(swept, [], None, check_environment=True, trusted=True)
    assert ("trust=true" in passed) == bool(begun)


def test_a_question_of_another_process_is_told_as_it_asked() -> None:
    asked = Untrusted("the model was made by mallory", "initial=", WouldOpen({"its weights": "there"}))
    told = from_dict(asked.as_dict())
    assert (told.message, told.remedy, told.code) == (asked.message, asked.remedy, asked.code)
    assert told.exit_code == asked.exit_code


ELSEWHERE = "http://host.invalid/theirs"


@OF_MLFLOW
def test_places_that_the_run_of_another_names_are_named_and_not_opened(here: Path, tmp_path: Path) -> None:
    shared = Shared(here)
    past = shared.launched("FINISHED")
    imported = {"url": f"{ELSEWHERE}.git", "rev": "main", "path": "points"}
    out = {"path": "points.csv", "md5": "0" * 32, "hash": "md5", "file": "points.dvc", "imported": imported}
    inputs = [{"path": "points.csv", "md5": "0" * 32, "size": 1, "files": 1, "outs": [out], "as_recorded": True}]
    begun = {"name": f"runs:/{past.run_id}/trained", "digest": "d" * 64}
    settings = {**SETTINGS, "checkpoint": {"uri": ELSEWHERE}, "initial": begun}
    shared.put(past.run_id, strangers.record(settings, data={"inputs": inputs}))
    mine = {**SETTINGS, "pipeline": {"target": "a:B"}, "run": {"steps": 4}}
    beginning, weights = (load([mine], [f"{key}{past.run_id}"]) for key in ("begin=", "initial=runs:/"))
    checkpoints = f"its checkpoints: {ELSEWHERE}/{past.run_id}"
    to = tmp_path / "crate.zip"
    doors: list[tuple[Callable[[], object], str]] = [
        (lambda: launch(beginning, {}), checkpoints),
        (lambda: dry_run(beginning), checkpoints),
        (lambda: tune(beginning), checkpoints),
        (lambda: once("nightly", beginning, {}, []), checkpoints),
        (lambda: launch(weights, {}), f"its weights: {(here / '.orchestrator').as_uri()}"),
        (lambda: export(past.run_id, ExportRequest(to, False, None, None, with_checkpoints=True), None), checkpoints),
        (
            lambda: export(past.run_id, ExportRequest(to, True, None, None), None),
            f"its data points.csv: where it was, {ELSEWHERE}.git (points)",
        ),
        (lambda: export(past.run_id, ExportRequest(to, False, None, None), None), f"began with: {begun['name']}"),
    ]
    for call, place in doors:
        with strangers.watched() as seen, pytest.raises(Untrusted) as error:
            call()
        assert "mallory" in error.value.message
        assert place in error.value.message
        assert "add trust=true; nothing was opened" in error.value.remedy
        assert (seen.connected, seen.unpickled) == ([], [])
        assert list(error.value.more) == ["would_open"]
    with refused("begin.checkpoint-unusable"):
        launch(beginning, {}, trusted=True)
    assert not to.exists()


@OF_MLFLOW
def test_a_record_that_names_no_place_is_exported_whoever_made_it(here: Path, tmp_path: Path) -> None:
    past = Shared(here).launched("FINISHED")
    node = {**NODE, "packages": {"orchestrator": "0"}}
    Shared(here).put(past.run_id, strangers.record(node=node))
    assert export(past.run_id, ExportRequest(tmp_path / "crate.zip", False, None, None), None).run_id == past.run_id


def naming_code(*sections: str) -> dict[str, Any]:
    """Settings in which these sections name code."""
    settings: dict[str, Any] = copy.deepcopy(SETTINGS)
    for section in sections:
        place = settings
        for part in path_of(section):
            place = place.setdefault(part, {})
        place |= {"also": ["stranger_module:few"]} if section == "tracking" else {"name": "stranger_module:few"}
    return settings


@OF_MLFLOW
def test_what_only_looks_at_a_record_imports_nothing_of_it(here: Path, tmp_path: Path) -> None:
    """For each key that can name code, also in a run of one's own: `here` sees whether it was imported."""
    shared = Shared(here)
    found = [shared.launched("FINISHED", name="victim") for _ in range(2)]
    first, second = (past.run_id for past in found)
    others = (section for section in (*TABLES, "optimizer", "tracking") if section != "data.order")
    shared.put(first, strangers.record(settings=naming_code(*others)))
    shared.put(second, strangers.record(settings=naming_code("data.order")))  # goes with few others
    compare(f"{first},{second}", None)
    export(first, ExportRequest(to=tmp_path / "crate", with_data=False, key=None, license=None), None)
    assert watch(here, first, None).status == "finished"
    assert len(runs(here)) == len(found)
    assert staleness(first) == []
    with refused("begin.none-left"):
        begin.pinned(load([SETTINGS], [f"begin={first}"]), here)


@OF_MLFLOW
def test_ones_own_is_known_also_where_no_variable_says_who_one_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cron sets no USER; a run that was launched from the terminal is one's own there, too."""
    own = Shared(here).launched("FINISHED", name=pwd.getpwuid(os.getuid()).pw_name)
    monkeypatch.delenv("USER")
    assert is_own(own)
    assert not is_own(Shared(here).launched("FINISHED", name="mallory"))


STAGES = "stages:\n  make:\n    cmd: touch {executed}\n    outs: [points.csv]\n"
LOCKED = """
schema: '2.0'
stages:
  make: {cmd: c, outs: [{path: points.csv, hash: md5, md5: 0cc175b9c0f1b6a831c399e269772661}]}
"""
CONFIG = """
[core]
    remote = far
    site_cache_dir = {outside}/site
    hardlink_lock = true
[cache]
    dir = {outside}/cache
    shared = group
['remote "far"']
    url = ssh://host.invalid/data
    ask_password = true
    keyfile = {outside}/key
"""


def sent_with_code(
    here: Path,
    tmp_path: Path,
    tree: str | None = None,
    links: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> str:
    """A crate with a stage of DVC, whose configuration names places outside. links: that its code has; more: files of it."""
    outside = tmp_path / "outside"
    text = {"executed": str(here / EXECUTED), "outside": str(outside)}
    files = {"dvc.yaml": STAGES.format(**text), "dvc.lock": LOCKED, ".dvc/config": CONFIG.format(**text)}
    files |= {"stranger_module.py": (here / "stranger_module.py").read_text(), **(more or {})}
    root = create(tmp_path / "stranger", files)
    for link, leads_to in (links or {}).items():
        (root / link).parent.mkdir(exist_ok=True)
        (root / link).symlink_to(leads_to)
    if links:
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", "links")
    bundle = bundle_of(root, 'Project: "."\n', tmp_path / "sent.bundle")
    out = {"path": "points.csv", "md5": "0" * 32, "hash": "md5", "file": "dvc.lock", "stage": "make"}
    inputs = [{"path": "points.csv", "md5": "0" * 32, "size": 1, "files": 1, "place": "points.csv", "outs": [out]}]
    code = {"tree": tree or git(root, "rev-parse", "HEAD^{tree}")}
    return crate_of(tmp_path, bundle=bundle.read_bytes(), code=code, data={"inputs": inputs})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC reads its configuration with
def test_stages_of_dvc_are_told_and_its_configuration_leads_nowhere(here: Path, tmp_path: Path) -> None:
    name = sent_with_code(here, tmp_path)
    with strangers.watched() as seen, pytest.raises(Untrusted) as error:
        rerun.rerun(name, [], None, rerun.RerunRequest(preparing=True))
    assert f"stages of DVC: make: touch {here / EXECUTED}" in error.value.message
    assert seen.outside(here / ".orchestrator", Path(tempfile.gettempdir())) == []
    assert (seen.connected, seen.unpickled) == ([], [])
    assert not (tmp_path / "outside").exists()
    assert all(started.startswith("['git',") for started in seen.started), seen.started


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("link", "leads_to"),
    [(".dvcignore", "/dev/zero"), ("params.yaml", "../../../../../mine"), ("deep/link", "../../.."), (".dvc/tmp", "/")],
)
def test_a_link_that_leads_out_of_the_code_is_refused_before_it_is_read(
    here: Path, tmp_path: Path, link: str, leads_to: str
) -> None:
    name = sent_with_code(here, tmp_path, links={link: leads_to})
    with refused("git.link-leads-out", f"'{link}'"):
        rerun.rerun(name, [], None, rerun.RerunRequest(preparing=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("place", ["/dev/zero", "../../../../mine.yaml", "huge.yaml"])
def test_what_dvc_is_told_to_read_elsewhere_is_not_read_before_trust(here: Path, tmp_path: Path, place: str) -> None:
    (here / "mine.yaml").write_text("token: a-secret-of-mine\n")
    stages = f"vars: [{place}]\nstages:\n  make:\n    cmd: echo ${{token}}\n    outs: [points.csv]\n"
    more = {"dvc.yaml": stages, **({"huge.yaml": "#" * (17 << 20)} if place == "huge.yaml" else {})}
    name = sent_with_code(here, tmp_path, more=more)
    with refused("dvc.stages-unreadable") as error:
        rerun.rerun(name, [], None, rerun.RerunRequest(preparing=True))
    assert "a-secret-of-mine" not in str(error.value)


@OF_MLFLOW
def test_code_that_was_exchanged_in_a_record_is_not_executed(here: Path, tmp_path: Path) -> None:
    """Also of one that is trusted: another snapshot than the one that was recorded."""
    name = sent_with_code(here, tmp_path, tree="t" * 40)
    with refused("git.other-tree"):
        rerun.rerun(name, [], None, rerun.RerunRequest(trusted=True, check_environment=False))
