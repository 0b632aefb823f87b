"""A run is given to others: as a file that needs neither clone nor store, and by way of a server; and no secret goes along."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.provenance.code import checkout
from tests.cli.test_rerun import CONF, elsewhere, points, shell, write
from tests.projects import REPOSITORY, Done, Project
from tests.provenance.tracking.server import Server

pytestmark = pytest.mark.ray

PAGE = (REPOSITORY / "docs" / "sharing.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]
OURS = "python -m orchestrator "
STEPS = 20


@dataclass(frozen=True)
class Sent:
    """A run and the files that were made of it. run_id: of the run."""

    project: Project
    run_id: str
    digest: str


def make(path: Path, remote: Path) -> Project:
    project = Project(path)
    study = (Path(__file__).with_name("study.py")).read_text()
    write(project, {"study.py": study, "helper.py": "SCALE = 2.0\n", "conf/study.yaml": CONF})
    write(project, {"data/points.csv": points(1)})
    shell(
        project,
        f"git init -q && dvc init -q && dvc config core.analytics false && dvc remote add -q -d far {remote}",
        "dvc add -q data/points.csv && dvc push -q",
    )
    project.commit()
    return project


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    place = tmp_path_factory.mktemp("sent")
    project = make(place / "project", place / "remote")
    write(project, {"helper.py": "SCALE = 3.0\n"})
    done = project.run("conf=study", "output=json")
    assert done.code == 0, done.err
    yield Sent(project, done.report["run_id"], done.report["digest"])
    assert project.leftovers() == []


def ours(command: str) -> list[str]:
    """A command of the page, as arguments."""
    assert command in [each.removeprefix(OURS) for each in COMMANDS], command
    return shlex.split(command)


@pytest.mark.long
def test_the_commands_of_the_page_about_a_file(sent: Sent, tmp_path: Path) -> None:
    """Word for word. If the tests' user is root, the repetition runs without any network but its own loopback."""
    for each in ("openssl genpkey -algorithm ed25519 -out key.pem", "openssl pkey -in key.pem -pubout -out key.pub"):
        assert each in COMMANDS
        shell(sent.project, each)
    made = sent.project.run(*ours("export=last to=signed.zip data=true key=key.pem"), "output=json")
    assert made.code == 0, made.err
    there = elsewhere(tmp_path / "there")
    for name in ("signed.zip", "key.pub"):
        shutil.move(sent.project.path / name, there.path)
    if os.geteuid() == 0:
        there.before = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
    done = there.run(*ours("rerun=signed.zip key=key.pub trust=true"), "output=json")
    assert done.code == 0, done.err
    assert done.report["verdict"] == "exact"
    assert f"signed by {made.report['signed_by']}, as key= asks for" in done.err
    assert there.leftovers() == []


@pytest.mark.long
def test_data_that_stay_behind_come_from_the_remote_that_the_code_names(sent: Sent, tmp_path: Path) -> None:
    made = sent.project.run(f"export={sent.run_id}", f"to={tmp_path / 'crate'}", "output=json")
    assert made.report["data"] == {"data/points.csv": "referenced"}
    assert "data/points.csv is named and not included: its bytes are kept in DVC's remote far (" in made.err
    there = elsewhere(tmp_path / "there")
    done = there.run(f"rerun={tmp_path / 'crate'}", "trust=true", "output=json")
    assert done.code == 0, done.err
    assert "data/points.csv: from the remote" in done.err
    assert done.report["verdict"] == "exact"


@pytest.mark.long
def test_a_run_of_one_is_repeated_by_another_with_nothing_sent_by_hand(tmp_path: Path) -> None:
    """One server, one remote, two clones; then both go on from the same commit."""
    server = Server(tmp_path / "server")
    (tmp_path / "server").mkdir()
    server.start()
    try:
        _collaborate(tmp_path, f"tracking.uri={server.uri}")
    finally:
        server.stop()


def _collaborate(place: Path, uri: str) -> None:
    origin = make(place / "origin", place / "remote")
    people = []
    for name in ("ann", "bob"):
        origin.git("clone", "--quiet", ".", str(place / name))
        people.append(Project(place / name, variables={"USER": name}))
    ann, bob = people
    shell(ann, "dvc pull -q")
    # Ann has new data and a new commit, and pushes neither.
    write(ann, {"data/points.csv": points(2), "helper.py": "SCALE = 2.5\n"})
    shell(ann, "dvc add -q data/points.csv")
    ann.commit()
    first = ann.run("conf=study", uri, "tracking.register=study", "output=json")
    assert first.code == 0, first.err
    assert "note: for others who rerun this: commit " in first.err
    assert "is on no branch of a remote; git push" in first.err
    assert "data/points.csv: DVC's remote far lacks 1 of its 1 objects; dvc push data/points.csv" in first.err
    run_id = first.report["run_id"]
    without = bob.run("conf=study", uri, "output=json")
    assert "there is no data/points.csv" in without.report["error"]["message"]
    assert "fetch it with: dvc pull data/points.csv" in without.report["error"]["message"]
    lacking = bob.run(f"rerun={run_id}", "trust=true", uri, "output=json")
    assert lacking.code == 4
    assert "data/points.csv" in lacking.report["error"]["message"]
    shell(ann, "dvc push -q data/points.csv", "git push -q origin HEAD:refs/heads/ann")
    command = "rerun=RUN_ID trust=true tracking.uri=URI"
    assert OURS + command in COMMANDS
    asked = bob.run(f"rerun={run_id}", uri, "output=json")
    assert (asked.code, asked.report["error"]["kind"]) == (2, "Untrusted")
    assert f"run {run_id} was launched by ann" in asked.err
    assert asked.report["would_execute"]["names"] == ["study:Study"]
    done = bob.run(f"rerun={run_id}", "trust=true", uri, "output=json")
    assert done.code == 0, done.err
    assert (done.report["verdict"], done.report["differences"]) == ("exact", [])
    assert "data/points.csv: from the remote" in done.err
    # Bob goes on from the commit that Ann had begun with, changes the same line, and begins with her weights.
    shell(bob, "dvc pull -q")
    write(bob, {"helper.py": "SCALE = 4.0\n"})
    from_ann = ("initial=models:/study@newest", "trust=true")
    other = bob.run("conf=study", *from_ann, "tracking.register=study", uri, "output=json")
    assert other.code == 0, other.err
    assert "for others who rerun this" not in other.err
    repeated = ann.run(f"rerun={other.report['run_id']}", "trust=true", "cluster.workers=1", uri, "output=json")
    assert repeated.code == 0, repeated.err
    assert (repeated.report["verdict"], repeated.report["differences"]) == ("exact", [])
    assert [file.stem for file in (ann.path / ".orchestrator" / "initial").iterdir()] == [first.report["digest"]]
    shell(bob, "git fetch -q")
    assert f"{OURS}compare=RUN_A,RUN_B tracking.uri=URI" in COMMANDS
    both = f"compare={run_id},{other.report['run_id']}"
    ancestor = bob.run(both, uri, "output=json").report["ancestor"]
    assert ancestor["commit"] == bob.shell("git rev-parse HEAD").out.strip()
    assert [each["path"] for each in ancestor["a"]] == ["data/points.csv.dvc", "helper.py"]
    assert [each["path"] for each in ancestor["b"]] == ["helper.py"]
    assert (ancestor["both"], ancestor["conflicts"]) == (["helper.py"], ["helper.py"])
    assert "both changed the same lines of helper.py" in bob.run(both, uri).out
    assert ann.processes() + bob.processes() == []


# The planted secrets, by the place where they are; each is a value that stands nowhere else.
IN_SETTINGS = {
    "token": "0123456789abcdefTOKEN",
    "password": "swordfish-in-settings",
    "api_key": "plain-api-key-value",
    "client_secret": "client-secret-value",
    "harmless": "ghp_" + "Aa1" * 12,
    "listed": "hf_" + "Bb2" * 11,
    "web_token": "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4",
    "address": "password-of-an-address",
    "parameter": "signature-of-an-address",
    "aws": "AKIAIOSFODNN7EXAMPLE",
}
IN_VARIABLES = {
    "HF_TOKEN": "hub-token-0123456789-variable",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/variable",
    "TORCH_MIRROR": "password-of-a-mirror",
    "NCCL_AUTH_TOKEN": "nccl-auth-0123456789-variable",
}
IN_FILES = {
    ".env": "secret-of-a-dotenv",
    "server.pem": "secret-of-a-pem",
    "deploy/id_ed25519": "secret-of-a-key",
    "credentials.json": "secret-of-credentials",
}
IN_ADDRESSES = {
    "git": "password-of-the-git-remote",
    "dvc": "password-of-the-dvc-remote",
    "mlflow": "password-of-mlflow",
    "package": "password-of-a-package",
}
SECRETS = {**IN_SETTINGS, **IN_VARIABLES, **IN_FILES, **IN_ADDRESSES}
LEAKY = """\
import os

from study import Study


class Leaky(Study):
    def __init__(self, fails=False, **secrets):
        super().__init__()
        self.fails, self.secrets = fails, secrets

    def loss(self, model, batch):
        if self.fails:
            raise RuntimeError(f"refused: {self.secrets}, {os.environ['HF_TOKEN']}")
        return super().loss(model, batch)
"""


@pytest.mark.long
def test_no_secret_enters_a_record(tmp_path: Path) -> None:
    """Twenty and more are planted; the store, the run folder, the crate and the snapshot in it are searched for them."""
    assert len(SECRETS) >= 20
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server")
    server.start()
    try:
        project = make(tmp_path / "project", tmp_path / "remote")
        _plant(project)
        address = server.uri.replace("://", f"://me:{IN_ADDRESSES['mlflow']}@")
        given = [*_given(), "pipeline.target=leaky:Leaky", f"tracking.uri={address}", "output=json"]
        done = project.run("conf=study", *given)
        assert done.code == 0, done.err
        _check_notes(done)
        failed = project.run("conf=study", "pipeline.args.fails=true", *given)
        assert failed.code == 1
        assert "refused" in failed.err
        run_id, uri = done.report["run_id"], f"tracking.uri={server.uri}"
        asked = project.run(f"rerun={run_id}", uri, "output=json")
        assert asked.code == 2
        assert "pipeline.args.password: it was a credential, which no record holds" in asked.report["error"]["message"]
        made = project.run(f"export={run_id}", f"to={tmp_path / 'crate'}", "data=true", uri, "output=json")
        assert made.code == 0, made.err
    finally:
        server.stop()
    checkout.restore(tmp_path / "crate" / "record" / "code.bundle", tmp_path / "snapshot")
    places = [tmp_path / "server", project.path / ".orchestrator", tmp_path / "crate", tmp_path / "snapshot"]
    assert _found(places) == []
    assert _found([project.path]) != []  # the search finds what is there


def _plant(project: Project) -> None:
    write(project, {"leaky.py": LEAKY})
    write(project, {name: f"KEY={secret}\n" for name, secret in IN_FILES.items()})
    project.git("remote", "add", "origin", f"https://me:{IN_ADDRESSES['git']}@host.invalid/repository")
    shell(project, f"dvc remote add -q --local web https://me:{IN_ADDRESSES['dvc']}@host.invalid/data")
    metadata = project.path.parent / "site" / "planted-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: planted\nVersion: 1\n")
    address = f"https://me:{IN_ADDRESSES['package']}@host.invalid/planted"
    (metadata / "direct_url.json").write_text(
        json.dumps({"url": address, "vcs_info": {"vcs": "git", "commit_id": "0" * 40}})
    )
    project.variables["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{metadata.parent}"
    mirror = f"https://me:{IN_VARIABLES['TORCH_MIRROR']}@host.invalid"
    project.variables |= {**IN_VARIABLES, "TORCH_MIRROR": mirror}


def _given() -> list[str]:
    values = dict(IN_SETTINGS)
    values["listed"] = f"[{values['listed']}]"
    values["address"] = f"https://me:{values['address']}@host.invalid/x"
    values["parameter"] = f"https://host.invalid/x?sig={values['parameter']}"
    through = ["run.note=of ${oc.env:HF_TOKEN}", "pipeline.args.login=${oc.env:HF_TOKEN}@db"]
    return [*through, *(f"pipeline.args.{key}={value}" for key, value in values.items())]


def _check_notes(done: Done) -> None:
    notes = [line for line in done.err.splitlines() if line.startswith("note: ")]
    (masked,) = (note for note in notes if "credentials are left out of the record" in note)
    for key in [*IN_SETTINGS, "login"]:
        assert f"pipeline.args.{key}" in masked
    assert "a rerun reads HF_TOKEN again" in masked
    (files,) = (note for note in notes if "left out of the record, since by their names" in note)
    assert ".env, credentials.json, deploy/id_ed25519 and 1 more" in files


def _found(places: list[Path]) -> list[tuple[str, str]]:
    """(secret, file) of every file that holds one, in plain or in JSON."""
    found = []
    for place in places:
        for file in (each for each in place.rglob("*") if each.is_file() and not each.is_symlink()):
            content = file.read_bytes()
            for name, secret in SECRETS.items():
                if secret.encode() in content or json.dumps(secret)[1:-1].encode() in content:
                    found.append((name, str(file)))
    return found
