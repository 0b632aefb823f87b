"""Before `trust=true` nothing of another's record is executed, imported or unpickled, and nothing is written elsewhere."""

from __future__ import annotations

import os
import pwd
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.jobs.once import once
from orchestrator.commands.launch.resume import resume
from orchestrator.commands.rerun import run as rerun
from orchestrator.commands.rerun.sweep import rerun_sweep
from orchestrator.commands.sweep.sweep import resume_sweep
from orchestrator.driver.folders import project_folder
from orchestrator.driver.recording.trust import Untrusted, is_own
from orchestrator.errors import NotRerunnable, UsageError
from orchestrator.settings import load
from orchestrator.settings.schema import TABLES, path_of
from orchestrator.tracking import KIND, PARENT, Past, Store
from orchestrator.tracking.store import HOST, USER
from tests.attacks import strangers
from tests.attacks.strangers import EXECUTED, NODE, SETTINGS, TARGET
from tests.attacks.test_bundles import bundle_of
from tests.provenance.code.repositories import create, git

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


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the victim types; its scratch folder is its own."""
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


def asked(name: str, seen_in: Path, wanted: rerun.Wanted | None = None) -> Untrusted:
    """The question that a rerun of this crate asks."""
    with strangers.watched() as seen, pytest.raises(Untrusted) as error:
        rerun.rerun(name, [], None, wanted or rerun.Wanted())
    assert seen.outside(seen_in / ".orchestrator", Path(tempfile.gettempdir())) == []
    assert (seen.started, seen.connected, seen.unpickled) == ([], [], [])
    assert list((seen_in / ".orchestrator" / "worktrees").iterdir()) == []
    return error.value


def test_a_crate_asks_and_nothing_of_it_is_executed(here: Path, tmp_path: Path) -> None:
    said = asked(crate_of(tmp_path), here)
    assert f"pipeline: {TARGET}" in said.message


@pytest.mark.parametrize("section", TABLES)
def test_variants_that_settings_name_are_told_and_not_imported(here: Path, tmp_path: Path, section: str) -> None:
    settings: dict[str, Any] = {**SETTINGS}
    place = settings
    for part in path_of(section):
        place[part] = dict(place.get(part, {}))
        place = place[part]
    place["name"] = "stranger_module:few"
    assert (
        "other code named by settings: stranger_module:few"
        in asked(crate_of(tmp_path, settings=settings), here).message
    )


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


@pytest.mark.slow
@OF_MLFLOW
def test_what_others_launched_in_a_shared_store_asks_whatever_the_verb(here: Path) -> None:
    shared = Shared(here)
    finished, killed = shared.launched("FINISHED"), shared.launched("KILLED")
    swept, left = shared.sweep("FINISHED"), shared.sweep("KILLED")
    verbs: dict[str, Callable[[], object]] = {
        "rerun=RUN": lambda: rerun.rerun(finished.run_id, [], None, rerun.Wanted()),
        "resume=RUN": lambda: resume(killed.run_id, [], None),
        "rerun=SWEEP": lambda: rerun_sweep(swept, [], None, check_environment=True),
        "resume=SWEEP": lambda: resume_sweep(left, [], None),
    }
    for verb, call in verbs.items():
        with pytest.raises(Untrusted) as error:
            call()
        assert f"was launched by mallory, and a {verb.partition('=')[0]} executes its code" in error.value.message, verb
        assert f"pipeline: {TARGET}" in error.value.message
        if "SWEEP" in verb:
            assert "stranger_module:Ring" in error.value.message
            assert "stranger_module:few" in error.value.message
    with pytest.raises(UsageError, match="of job nightly was launched by mallory"):
        once("nightly", load([SETTINGS], ["run.submission=nightly"]), {}, [])


@pytest.mark.slow
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


def sent_with_code(here: Path, tmp_path: Path, tree: str | None = None) -> str:
    """A crate with a stage of DVC, whose configuration names places outside."""
    outside = tmp_path / "outside"
    text = {"executed": str(here / EXECUTED), "outside": str(outside)}
    files = {"dvc.yaml": STAGES.format(**text), "dvc.lock": LOCKED, ".dvc/config": CONFIG.format(**text)}
    root = create(tmp_path / "stranger", {**files, "stranger_module.py": (here / "stranger_module.py").read_text()})
    bundle = bundle_of(root, 'Project: "."\n', tmp_path / "sent.bundle")
    out = {"path": "points.csv", "md5": "0" * 32, "hash": "md5", "file": "dvc.lock", "stage": "make"}
    inputs = [{"path": "points.csv", "md5": "0" * 32, "size": 1, "files": 1, "place": "points.csv", "outs": [out]}]
    code = {"tree": tree or git(root, "rev-parse", "HEAD^{tree}")}
    return crate_of(tmp_path, bundle=bundle.read_bytes(), code=code, data={"inputs": inputs})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC reads its configuration with
def test_stages_of_dvc_are_told_and_its_configuration_leads_nowhere(here: Path, tmp_path: Path) -> None:
    name = sent_with_code(here, tmp_path)
    with strangers.watched() as seen, pytest.raises(Untrusted) as error:
        rerun.rerun(name, [], None, rerun.Wanted(preparing=True))
    assert f"stages of DVC: make: touch {here / EXECUTED}" in error.value.message
    assert seen.outside(here / ".orchestrator", Path(tempfile.gettempdir())) == []
    assert (seen.connected, seen.unpickled) == ([], [])
    assert not (tmp_path / "outside").exists()
    assert all(started.startswith("['git',") for started in seen.started), seen.started


@pytest.mark.slow
@OF_MLFLOW
def test_code_that_was_exchanged_in_a_record_is_not_executed(here: Path, tmp_path: Path) -> None:
    """Also of one that is trusted: another snapshot than the one that was recorded."""
    name = sent_with_code(here, tmp_path, tree="t" * 40)
    with pytest.raises(NotRerunnable, match=f"and the run was recorded with {'t' * 40}: one of them was changed"):
        rerun.rerun(name, [], None, rerun.Wanted(trusted=True, check_environment=False))
