"""Everything that a user types is one command, and every command is on the page of usage."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import __main__ as entry
from orchestrator.cli import command_table, completion, export, main
from orchestrator.cli.arguments import Arguments
from orchestrator.cli.command_table import COMMANDS, Command, the_command
from orchestrator.cli.help import run as helped
from orchestrator.cli.usage import commands, of, usage
from orchestrator.config.settings import choices, described, names
from orchestrator.driver.folders import RunFolder
from orchestrator.driver.recording import unsent
from orchestrator.driver.recording.recorded import Recorded
from orchestrator.errors import UsageError
from orchestrator.optim.optimizers import OPTIMIZERS
from orchestrator.provenance.tracking import Past, Store
from tests.refusals import refused

FOLDER = Path(command_table.__file__).parent
LIGHT = """
import sys
import orchestrator.__main__
import orchestrator.cli.main
from orchestrator.cli import completion
assert not {"torch", "numpy", "ray", "mlflow", "matplotlib", "requests"} & sys.modules.keys()
"""


def test_every_verb_is_on_the_page() -> None:
    page = commands()
    for name, command in COMMANDS.items():
        assert of(name).splitlines()[0] == f"usage: python -m orchestrator {command.form}"
        assert command.form.startswith(name), name
        assert f"python -m orchestrator {command.form}" in page
        assert next(iter(command.about)).partition("=")[0] == name
    assert max(map(len, page.splitlines())) <= 130


def test_the_first_page_has_ten_and_says_where_the_others_are() -> None:
    lines = usage().splitlines()
    assert sum(bool(command.brief) for command in COMMANDS.values()) == 10
    assert len(lines) < 26
    assert max(map(len, lines)) <= 130
    for name, command in COMMANDS.items():
        assert any(line.startswith(f"  {name}") for line in lines) is bool(command.brief), name
        assert name in usage()
    assert "help=commands tells of all" in usage()
    assert helped(Arguments("commands", (), 0.0)).stdout == commands()
    assert helped(Arguments("", (), 0.0)).stdout == usage()
    assert helped(Arguments("settings", (), 0.0)).stdout == described("")
    assert str(helped(Arguments("sweep", (), 0.0)).stdout).startswith("usage: python -m orchestrator sweep=NAME")


def test_help_lists_the_optimizers_with_their_keys() -> None:
    told = str(helped(Arguments("optimizer", (), 0.0)).stdout)
    assert told.startswith(described("optimizer"))
    assert "\n  sgd: lr (0.001), momentum (0), dampening (0), weight_decay (0)" in told
    assert "\n  lamb: lr (0.001), betas ([0.9, 0.999])" in told


def test_an_interrupt_of_the_first_imports_is_an_error_like_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.cli.process_setup.prepare", interrupted)
    assert entry.main() == 130
    assert capsys.readouterr().err == "error: interrupted by SIGINT\n"


@pytest.mark.parametrize(
    "module",
    [
        "yaml.py",  # `orchestrator` imports it
        "sqlite3.py",  # the command does
    ],
)
def test_so_is_one_out_of_text_that_python_executes(module: str, tmp_path: Path) -> None:
    """As that of a named tuple; Python would end by the signal, and not with our exit code."""
    (tmp_path / module).write_text("exec('raise KeyboardInterrupt')")
    command = [sys.executable, "-m", "orchestrator", "runs"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted by SIGINT\n"


@pytest.mark.parametrize(
    "module",
    [
        "yaml.py",  # `orchestrator` imports it
        "sqlite3.py",  # the command does
    ],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_so_is_another_signal_that_comes_as_early(module: str, number: signal.Signals, tmp_path: Path) -> None:
    """The command ended by the signal, without a word."""
    (tmp_path / module).write_text(f"import os, time; os.kill(os.getpid(), {number:d}); time.sleep(60)")
    command = [sys.executable, "-m", "orchestrator", "runs"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, f"error: interrupted by {number.name}\n")


SWALLOWS = """
import os, signal
from orchestrator.cli.main import _interruptible
from orchestrator.driver.terminal import signals
from orchestrator.errors import Interrupted
signals.interrupt()
try:
    with _interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pass
        raise ImportError("cannot load module more than once per process")
except Interrupted as error:
    print(error.message)
"""


def test_an_interrupt_that_an_import_has_swallowed_is_what_fails_by_it_later() -> None:
    """As torch does while it imports numpy, of which no part can be imported a second time: that ended with a traceback."""
    done = subprocess.run([sys.executable, "-c", SWALLOWS], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted by SIGTERM\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_of_the_users_keeps_its_signals(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"import os, signal, orchestrator\nsignal.signal({signal.SIGINT:d}, signal.SIG_DFL)\nos.kill(os.getpid(), {number:d})"
    )
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-number, "")


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_the_table_names_a_function_that_there_is(command: Command) -> None:
    """Looked up in the text, since to import them all takes seconds."""
    module, _, function = (command.at or command.name).partition(":")
    text = (FOLDER / f"{module.replace('.', '/')}.py").read_text()
    assert f"def {function or 'run'}(arguments: Arguments) -> CommandResult:" in text


@pytest.mark.slow
def test_the_table_is_light() -> None:
    """Every start reads it, the completion of a word too."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "there is no command\n  such as: python -m orchestrator conf=NAME; --help lists the commands"),
        (["spam"], "spam: no command; did you mean conf=spam?\n  --help lists the commands"),
        (["run.seed=1", "conf/spam.yaml"], "conf/spam.yaml: no command; did you mean conf=conf/spam.yaml?\n  --help"),
        (["reruns=last"], "reruns=last: no command; did you mean rerun=RUN_ID|CRATE?\n  --help lists the commands"),
        (["cluster.workers=2"], "cluster.workers=2: no command\n  a setting stands beside one: conf=NAME cluster.wo"),
        (["\x1b]52;c;"], "'\\x1b]52;c;': no command; did you mean conf='\\x1b]52;c;'?\n  --help lists the commands"),
        (["conf=a", "runs"], "conf=a and runs: one command at a time\n  type them one after the other; see --help"),
        (["resume=a", "rerun=b"], "resume=a and rerun=b: one command at a time\n  type them"),
    ],
)
def test_there_is_exactly_one_and_else_three_lines_say_what_to_type(typed: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        the_command(typed)
    assert str(refused.value).startswith(said)
    assert len(str(refused.value).splitlines()) < 3


def test_a_verb_may_take_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command("guess", "guess conf=NAME", {"guess": "at it"}, with_conf=True)
    monkeypatch.setitem(COMMANDS, "guess", command)
    assert the_command(["conf=digits", "guess"]) == (command, "guess")
    assert the_command(["run.seed=1", "conf=digits"]) == (COMMANDS["conf"], "conf=digits")
    with refused("command.needs-conf", "guess conf=NAME"):
        command.run(Arguments("", (), 0.0))


def test_what_stands_beside_a_verb() -> None:
    given = Arguments("x", ("a=1", "b=2", "a=3", "output=json", "c="), 0.0)
    assert (given.get("a"), given.get("c"), given.get("d"), given.as_json) == ("3", None, None, True)
    assert given.without("a", "output") == ["b=2", "c="]
    assert given.choice("d", "no", "yes") == "no"
    with refused("command.choice"):
        given.choice("a", "no", "yes")
    with refused("command.options"):
        given.only("v", ("output=json", "a=A", "b=B"))


@pytest.mark.parametrize("verb", ["once", "rerun", "resume", "sweep"])
@pytest.mark.parametrize("look", ["plan=true", "show=true"])
def test_what_only_looks_at_a_configuration_is_typed_with_conf_alone(verb: str, look: str) -> None:
    """It was told to be no key."""
    with refused("command.only-conf", f"{look} stands beside conf= alone, not beside {verb}"):
        COMMANDS[verb].run(Arguments("x", ("conf=digits", look), 0.0))


def test_settings_that_are_loaded_say_how_to_answer(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("pipeline: {target: a:B}\nrun: {steps: 1}\noutput: json\n")
    given = Arguments("", ("output=text",), 0.0, conf=str(tmp_path / "mine.yaml"))
    given.load([])
    assert given.as_json
    given.load(["output=text"])
    assert not given.as_json


def test_settings_are_shown_to_programs_as_an_object_which_is_a_configuration_again(tmp_path: Path) -> None:
    """With output=json YAML was printed, whose last line is no object."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"pipeline": {"target": "a:B"}, "run": {"steps": 1}, "optimizer": {"lr": 1e-7}}))
    asked = ("show=true", "output=json")
    shown = COMMANDS["conf"].run(Arguments(str(file), asked, 0.0)).stdout
    assert shown is not None
    assert json.loads(shown)["optimizer"]["lr"] == 1e-7
    file.write_text(shown)
    assert COMMANDS["conf"].run(Arguments(str(file), asked, 0.0)).stdout == shown


def test_a_verb_that_measures_takes_its_seconds_where_a_launch_would_not_measure(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("pipeline: {target: a:B}\nrun: {steps: 1}\n")
    given = Arguments("", (), 0.0, conf=str(tmp_path / "mine.yaml"))
    given.load(["tuning.seconds=0.3"], COMMANDS["tune"].uses)
    assert given.settings.tuning.seconds == 0.3
    with refused("idle.tuning-seconds"):
        given.load(["tuning.seconds=0.3"])


def test_help_tells_of_keys_sections_and_what_was_meant() -> None:
    assert described("run.seed") == (
        "run.seed\n  The seed of all randomness.\n  whole number, at least 0 and below 2**63; default 0\n"
        "  part of what determines the result"
    )
    assert "topology.arity" in described("topology")
    assert "\n    topk: Each shard sends the largest elements of each tensor only." in described("compression.name")
    assert "\n    sgd: Gradient descent, with momentum if momentum is given." in described("local.optimizer")
    assert "run.seed" in described("")
    with refused("settings.no-such-key-shown", "run.seed"):
        described("run.sed")


@pytest.mark.slow
def test_every_key_completes_to_itself_and_choices_are_the_tables(tmp_path: Path) -> None:
    for name in names():
        assert f"{name}=" in completion.words(f"{name}", tmp_path), name
    assert completion.words("topol", tmp_path) == ["topology.", "topology="]
    assert completion.words("topology=r", tmp_path) == ["topology=ring"]
    assert completion.words("tun", tmp_path) == ["tune", "tuning."]
    assert choices("reduction") == ["exact", "fast"]
    assert choices("local.optimizer") == choices("optimizer.name") == list(OPTIMIZERS)
    assert choices("strict") == ["true", "false"]
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").touch()
    assert completion.words("conf=", tmp_path) == ["conf=mine"]
    (tmp_path / ".orchestrator" / "abc").mkdir(parents=True)
    (tmp_path / ".orchestrator" / "abc" / "settings.yaml").touch()
    assert completion.words("resume=", tmp_path) == ["resume=last", "resume=abc"]
    assert completion.words("export=a", tmp_path) == ["export=abc"]
    with refused("command.completion"):
        completion.script("tcsh")


def test_bash_completes_what_stands_behind_the_last_sign() -> None:
    """A shell replaces only what follows the last `=` or `:`."""
    asked = (
        f"{completion.script('bash')}\n"
        "orchestrator() { printf '%s\\n' topology=ring topology=tree; }\n"
        "compopt() { :; }\n"
        "COMP_LINE='orchestrator topology=' COMP_POINT=22 _orchestrator\n"
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "ring tree\n"


@pytest.mark.parametrize(
    ("given", "code"),
    [("environment=rebuild", "rerun.rebuild-of-sweep"), ("explain=true", "rerun.explain-of-sweep")],
)
def test_what_is_of_one_run_is_refused_of_a_sweep(given: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_store(monkeypatch)
    monkeypatch.setattr("orchestrator.experiments.rerun.repetition.find_sweep", lambda _name, _store: object())
    with refused(code):
        COMMANDS["rerun"].run(Arguments("0123", (given,), 0.0))


def _without_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waiting to be sent there."""
    monkeypatch.setattr(Store, "with_run", lambda *_: None)
    monkeypatch.setattr(unsent, "send_first", lambda *_: [])


def test_a_model_is_exported_alone() -> None:
    with refused("export.model-alone", "data=true"):
        export.run(Arguments("last", ("to=x", "model=true", "data=true"), 0.0))


@pytest.mark.parametrize("given", ["data=true", "checkpoints=true", "key=key.pem", "wheels=there"])
def test_a_checkpoint_of_lightning_is_exported_alone(given: str) -> None:
    with refused("export.checkpoint-alone", given):
        export.run(Arguments("last", ("to=x.ckpt", given), 0.0))


def test_a_file_with_commas_in_its_path_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "a,b" / "settings.yaml"
    file.parent.mkdir()
    file.touch()
    given = {str(file): [str(file)], "a,b": ["a", "b"], ",".join("abc" * 2000): [*("abc" * 2000)]}
    for conf, files in given.items():
        assert Arguments("", (), 0.0, conf).files == files


@pytest.mark.parametrize(
    ("is_orphan", "has_begun", "code", "remedy"),
    [
        (True, True, "export.run-unfinished", "its driver is gone: go on with resume="),
        (True, False, "record.no-code", "launch it again"),
        (False, False, "export.run-unfinished", "wait for it"),
    ],
)
def test_who_exports_a_run_that_has_not_ended_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, remedy: str, *, is_orphan: bool, has_begun: bool
) -> None:
    """Nobody has to wait for the end of a run whose driver was killed, or is sent to a resume that is refused."""
    past = Past("a" * 32, "n", "e", "RUNNING", 0, 1, {}, None, is_orphan=is_orphan)
    monkeypatch.chdir(tmp_path)
    _without_store(monkeypatch)
    files = RunFolder(tmp_path, past.run_id)
    if has_begun:
        files.journal.touch()
    monkeypatch.setattr(Recorded, "find", lambda *_: Recorded(past, files))
    with refused(code, remedy):
        export.run(Arguments("last", ("to=x",), 0.0))


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "data/x"),
            "command.system-refused",
            "Permission denied (data/x)",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "command.system-refused", "No space left on device"),
        (OSError("ClientError: SlowDown"), "command.system-refused", "ClientError: SlowDown"),  # of a store of objects
        (OSError(errno.EMFILE, "Too many open files"), "command.system-refused", "ulimit -n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "command.no-folder", "working directory"),
    ],
)
def test_what_the_system_refuses_a_command_is_one_message(error: OSError, code: str, said: str) -> None:
    with refused(code, said), main.foreseen():
        raise error


def test_a_file_that_should_be_there_and_is_not_is_a_fault_of_ours() -> None:
    with pytest.raises(FileNotFoundError), main.foreseen():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")
