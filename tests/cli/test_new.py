"""The project that `new NAME` makes trains at once, passes its own test, and is told to writers; a callback changes no bit."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
import yaml

from orchestrator.cli import new
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_table import the_command
from orchestrator.cli.origins import Found, with_defaults
from orchestrator.cli.template import FILES
from orchestrator.config.settings import load
from orchestrator.pipeline import Pipeline
from tests.projects import Project
from tests.refusals import refused

pytestmark = pytest.mark.ray
WRITER = """
import json


class Lines:
    def __init__(self, run):
        self.file = open("told.jsonl", "a")
        self.tell([run.name, run.note, run.tags])

    def tell(self, value):
        print(json.dumps(value), file=self.file, flush=True)

    def metrics(self, step, values):
        self.tell([step, values])

    def end(self, status, results):
        self.tell([status, results])


class Failing:
    def __init__(self, run):
        raise OSError("not today")
"""
CALLED = """
import torch

import pipeline


class Called(pipeline.Spirals):
    def on_evaluation(self, step, metrics, model):
        torch.manual_seed(0)
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        for parameter in model.parameters():
            parameter.zero_()
        print("called after step", step + 1)
        return {"half": metrics["validation/accuracy"] / 2}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    outer = Project(tmp_path)
    outer.variables = {
        f"GIT_{who}_{what}": "t@t.invalid" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = outer.run("new", "arms")
    assert done.code == 0, done.err
    return Project(tmp_path / "arms", variables=outer.variables)


def the_digest(said: str) -> str:
    found = re.search(r"digest +(\w{64})", said)
    assert found, said
    return found[1]


@pytest.mark.long
def test_it_trains_at_once_and_passes_its_own_test(project: Project) -> None:
    done = project.shell("python -m orchestrator conf=arms strict=true")
    assert done.code == 0, done.err
    assert "note:" not in done.err
    assert project.shell("git status --porcelain").out == ""
    tested = project.shell("python -m unittest")
    assert (tested.code, tested.err.splitlines()[-1]) == (0, "OK"), tested.err
    again = project.shell("python -m orchestrator rerun=last cluster.workers=1 output=json")
    assert again.report["verdict"] == "exact", again.err
    assert project.leftovers() == []


@pytest.mark.long
def test_writers_and_callbacks_change_no_bit_and_are_told(project: Project) -> None:
    plain = project.shell("python -m orchestrator conf=arms")
    (project.path / "tell.py").write_text(WRITER)
    (project.path / "called.py").write_text(CALLED)
    words = 'run.note="Why not" run.tags=[a,team=vision]'
    also = "tracking.also=[tell:Lines,tell:Failing] pipeline.target=called:Called"
    told = project.shell(f"python -m orchestrator conf=arms {words} {also} output=json")
    assert told.code == 0, told.err
    assert told.report["digest"] == the_digest(plain.err)
    assert told.report["not_told"] == ["tracking.also: tell:Failing is told nothing any more: OSError: not today"]
    assert [f"called after step {step}" in told.err for step in (50, 100, 150, 200)] == [True] * 4
    first, *points, last = (json.loads(line) for line in (project.path / "told.jsonl").read_text().splitlines())
    assert first == ["arms", "Why not", {"a": None, "team": "vision"}]
    assert [step for step, values in points if "train/loss" in values] == list(range(200))
    assert [step for step, values in points if "callback/half" in values] == [49, 99, 149, 199]
    assert last[0] == "finished"
    assert last[1]["digest"] == told.report["digest"]
    card = (project.folder(told.report["run_id"]) / "card.md").read_text()
    assert "Why not" in card
    found = project.shell("python -m orchestrator runs where=tag.team=vision columns=run,tag.a,callback/half")
    assert found.out.splitlines()[1].split()[:2] == [told.report["run_id"][:8], "true"]
    assert project.leftovers() == []


@pytest.mark.long
def test_within_a_repository_it_is_a_folder_of_it(tmp_path: Path) -> None:
    outer = Project(tmp_path)
    outer.git("init", "--quiet")
    done = outer.run("new", "arms")
    assert done.code == 0, done.err
    assert "git add --all && git commit" in done.out
    assert not (tmp_path / "arms" / ".git").exists()
    assert (tmp_path / "arms" / "data" / "points.csv").exists()


@pytest.mark.parametrize("words", [[], ["two", "words"], ["no.dots"], ["../up"], [""]])
def test_a_name_is_one_word(words: list[str]) -> None:
    with refused("project.name"):
        new._name(words)


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with refused("project.not-made"):
        new.make(tmp_path / "there", "there")


def test_another_name_is_advised_only_where_the_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "conf").write_text("a file")
    with refused("project.not-made") as told:
        new.make(tmp_path / "there", "there")
    assert told.value.remedy == "choose another name"
    with refused("project.not-written") as told:
        new.write(tmp_path / "conf" / "arms.yaml", with_defaults(Found({})))
    assert told.value.remedy == f"{tmp_path / 'conf'} is no folder; move it away"

    def denied(*_arguments: object, **_more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    with refused("project.not-made", "Permission denied") as told:
        new.make(tmp_path / "arms", "arms")
    assert str(told.value.remedy).startswith(f"make {tmp_path} a folder in which you may write")
    with refused("project.not-written", "Permission denied") as told:
        new.write(tmp_path / "other" / "arms.yaml", with_defaults(Found({})))
    assert str(told.value.remedy).startswith(f"make {tmp_path / 'other'} a folder in which you may write")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with refused("project.not-filled", "No space left on device"):
        new.make(tmp_path / "arms", "arms")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "dvc.yaml", "stages: {wrong: {cmd: 'exit 3'}}\n")
    with refused("project.command-failed"):
        new.make(tmp_path / "arms", "arms")
    assert list(tmp_path.iterdir()) == []


def test_its_configuration_is_a_valid_one() -> None:

    found = load([yaml.safe_load(FILES["conf/NAME.yaml"])], [])
    assert found.data.inputs == ("data/points.csv",)


def test_a_configuration_is_written_of_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place, name in (("bert", "config.json"), ("bert", "tokenizer_config.json"), ("rows", "state.json")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / name).write_text("{}")
    given = {"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": True}
    (tmp_path / "args.json").write_text(json.dumps(given))
    written = command("new", "tagger", "from=args.json,bert,rows", "devices=3")
    assert "conf=tagger plan=true" in written
    text = (tmp_path / "conf" / "tagger.yaml").read_text()
    assert "batch_size: 24  # 4 rows on each of 3 devices, 2 times before an update: here all rows of a step" in text
    found = load(["tagger"], [])
    assert (found.run.epochs, found.data.batch_size.at(0), found.data.inputs) == (3, 24, ("bert", "rows"))
    assert {found.pipeline.args[name] for name in ("model", "tokenizer")} == {"bert"}
    assert found.pipeline.args["training"]["num_train_epochs"] == 3
    with refused("project.not-written", "tagger.yaml"):
        command("new", "tagger", "from=args.json")
    assert "it lacks pipeline.args.data" in command("new", "other", "from=bert")
    assert load(["other"], []).gradient.clip == 1.0


class LightningModule:
    """Stands for the base of the framework, which is known by its name."""


class LightningDataModule:
    """Likewise."""


LightningModule.__module__ = LightningDataModule.__module__ = "lightning.pytorch.core"


class Tagger(LightningModule):
    def __init__(
        self, depth: int, width: int = 32, rates: tuple[float, ...] = (0.1, 0.2), act: object = print
    ) -> None: ...


class Sentences(LightningDataModule):
    def __init__(self, folder: str = "data", batch_size: int = 16) -> None: ...


class Letters(LightningDataModule):
    def __init__(self, alphabet: str = "abc", batch_size: int = 8) -> None: ...


class Own(Pipeline):
    def __init__(self, width: int = 8) -> None: ...


def test_a_class_is_written_with_its_defaults_and_the_data_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command("new", "tagger", f"from={__name__}:Tagger", "devices=2")
    text = (tmp_path / "conf" / "tagger.yaml").read_text()
    found = yaml.safe_load(text)
    assert found["pipeline"] == {
        "target": f"{__name__}:Tagger",
        "args": {"depth": None, "width": 32, "rates": [0.1, 0.2]},
        "data": f"{__name__}:Sentences",
        "data_args": {"folder": "data", "batch_size": 16},
    }
    assert found["data"]["batch_size"] == 32
    assert "depth: null  # required" in text
    assert "16 rows on each of 2 devices" in text
    assert "# Does not fit: pipeline.target: Tagger has no training_step" in text
    assert "# Does not fit: pipeline.data: Sentences has no train_dataloader" in text
    command("new", "others", f"from={__name__}:Tagger,{__name__}:Letters")
    text = (tmp_path / "conf" / "others.yaml").read_text()
    assert text.count("# The arguments are the defaults of the class.") == 1
    assert "Sentences" not in text
    assert "also there" not in text
    found = yaml.safe_load(text)
    assert found["pipeline"] == {
        "target": f"{__name__}:Tagger",
        "args": {"depth": None, "width": 32, "rates": [0.1, 0.2]},
        "data": f"{__name__}:Letters",
        "data_args": {"alphabet": "abc", "batch_size": 8},
    }
    assert found["data"]["batch_size"] == 8
    assert "it lacks pipeline.target" in command("new", "alone", f"from={__name__}:Letters")
    command("new", "own", f"from={__name__}:Own")
    assert load(["own"], []).optimizer.name == "adamw"
    assert load(["own"], []).pipeline.args == {"width": 8}


def test_what_is_no_origin_is_refused_and_so_is_what_means_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "args.json").write_text('{"output_dir": "out", "fp16": true, "deepspeed": "ds.json"}')
    with refused("transformers.argument", "fp16") as caught:
        command("new", "tagger", "from=args.json")
    assert "deepspeed" in str(caught.value)
    with refused("project.origin", "from=bert: there is no such file or folder"):
        command("new", "tagger", "from=bert")
    with refused("project.origin", "from=conftest.py: it is no class"):
        (tmp_path / "conftest.py").touch()
        command("new", "tagger", "from=conftest.py")
    with refused("project.two-targets", "a run has one target"):
        command("new", "tagger", f"from={__name__}:Tagger,{__name__}:Own")
    assert not (tmp_path / "conf").exists()


def command(*words: str) -> str:
    """The answer of a command in this process."""
    found, typed = the_command(list(words))
    rest = tuple(word for word in words if word != typed)
    return found.run(Arguments(typed.partition("=")[2], rest, 0.0)).stdout or ""
