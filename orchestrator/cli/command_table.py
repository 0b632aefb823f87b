"""Every command of the command line: what is typed, what it means, what it takes, and where it is done.

Each start reads this, so it imports nothing heavy. `orchestrator.cli.` + `at` is imported once the command is typed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from orchestrator.cli.arguments import Arguments, listed
from orchestrator.cli.command_result import CommandResult
from orchestrator.cluster.sessions.environment import prepare_environment
from orchestrator.common.checked_values import show
from orchestrator.driver.report.outcome import RunOutcome
from orchestrator.errors import UsageError
from orchestrator.numerics import determinism
from orchestrator.numerics.determinism import Arithmetic
from orchestrator.records import phases

_LOOKS = ("plan=true", "show=true")  # at a configuration, in place of a launch
Refused = Callable[[Arguments], Mapping[str, Any]]


@dataclass(frozen=True)
class Command:
    """One thing that the command line does."""

    name: str  # as it is typed before "="
    form: str  # line of the usage
    about: Mapping[str, str]  # what is typed -> what it means
    brief: str = ""  # the same in a line, of those that a user needs first; "" of the others
    at: str = ""  # "module:function" that does it; the module of its name where empty, and `run` without a function
    takes: tuple[str, ...] | None = None  # arguments beside it; None where they are settings
    # gives the overrides of the settings of conf=, which are loaded before; None where none are loaded
    settings: Callable[[Arguments], list[str]] | None = None
    uses: tuple[str, ...] = ()  # settings that have an effect whatever the others say
    with_conf: bool = False  # whether conf= stands beside it
    # gives the Ray that it joins, None for a private one, where it loads its settings itself; None where it starts none
    joins: Callable[[Arguments], str | None] | None = None
    arithmetic: Arithmetic = "native"  # for which torch is loaded
    # gives the JSON object where it comes to nothing, to which the error is added
    refused: Refused = field(default=lambda _: {})
    speaks: bool = False  # whether it writes to stdout while it runs, where others keep it for their answer

    @property
    def is_bare(self) -> bool:
        """Whether it is typed without a value."""
        return "=" not in self.form.split()[0]

    def run(self, arguments: Arguments) -> CommandResult:
        """Raises OrchestratorError for what it refuses."""
        looks = [each for each in arguments.rest if each in _LOOKS]
        if looks and self.name != "conf":
            raise UsageError(
                f"{looks[0]} stands beside conf= alone, not beside {self.name}",
                f"such as: python -m orchestrator conf=NAME {looks[0]}",
                code="command.only-conf",
            )
        if self.takes is not None:
            arguments.only(self.name, self.takes)
        arguments.conf = self._conf(arguments) if self.with_conf else arguments.value
        if self.settings is not None:
            with phases.of("settings"):
                arguments.load(self.settings(arguments), self.uses)
            prepare_environment(arguments.settings.cluster.address)
        elif self.joins is not None:
            prepare_environment(self.joins(arguments))
        module, _, function = (self.at or self.name).partition(":")
        with determinism.environment_of(self.arithmetic):
            found = import_module(f"orchestrator.cli.{module}")
            answer: CommandResult = getattr(found, function or "run")(arguments)
            return answer

    def _conf(self, arguments: Arguments) -> str:
        """Raises UsageError."""
        conf = arguments.get("conf")
        if conf is None:
            raise UsageError(
                f"{self.name}: it needs a configuration", f"such as: {self.form}", code="command.needs-conf"
            )
        return conf


_JSON, _URI = "output=json", "tracking.uri=URI"


def _of_sweep(arguments: Arguments, kind: Literal["sweep", "ensemble"]) -> str | None:
    from orchestrator.experiments import addresses

    return addresses.of_sweep(arguments.value, arguments.rest, kind)


def _of_record(arguments: Arguments) -> str | None:
    from orchestrator.experiments import addresses

    return addresses.of_record(arguments.value, arguments.rest, arguments.uri)


_NO_RUN = RunOutcome().as_dict(None, 0.0)
# In the order of the fields of an answer.
_NO_SWEEP: dict[str, Any] = {"sweep_id": None, "status": None, "trials": [], "best": None}
_NO_RERUN = dict.fromkeys(("run_id", "rerun_of", "status", "verdict", "first_divergence")) | {
    "differences": [],
    "explanation": None,
    "stages": None,
    "audit": None,
}
_NO_COMPARISON = {"runs": [], "differences": [], "first_divergence": None, "files": []} | dict.fromkeys(
    ("ancestor", "drift", "picture")
)
_NO_LOOK = dict.fromkeys(("run_id", "parameter", "values")) | {"slices": []}

_ALL = (
    Command(
        "conf",
        "conf=NAME|PATH [key=value ...] [show=true | plan=true]",
        {
            "conf=NAME": (
                "launch the run that conf/NAME.yaml describes; a path works too, and several, comma-separated, are "
                "merged left to right; show=true: only print its settings, as YAML; plan=true: only check it, and say "
                "what would run where and what keeps it from being rerun"
            ),
            "begin=RUN_ID@STEP": (
                "with conf=: a new run that trains on from that checkpoint of another one, with its optimizer; @best: from "
                "its best, and without either from its newest; conf=.orchestrator/RUN_ID/settings.yaml: with its settings; "
                "trust=true: also from one of somebody else, after saying what that would open; initial= likewise"
            ),
        },
        brief="launch the run that conf/NAME.yaml describes; plan=true: only say what would happen",
        settings=lambda arguments: arguments.without(
            "replay", "segments", "streams", "sat_out", "show", "plan", "trust"
        ),
        refused=lambda _: _NO_RUN,
    ),
    Command(
        "sweep",
        "sweep=NAME|PATH [parallel=K] [search=NAME] [key=value ...]",
        {
            "sweep=NAME": (
                "search for settings, as conf/NAME.yaml describes; each trial is a run, parallel=K of them side by "
                "side; resume= and rerun= take the id of a sweep, too"
            )
        },
        brief="search for settings, as conf/NAME.yaml describes; each trial is a run",
        joins=lambda arguments: _of_sweep(arguments, "sweep"),
        refused=lambda _: _NO_SWEEP,
    ),
    Command(
        "ensemble",
        "ensemble=NAME|PATH [parallel=K] [ensemble.members=N] [key=value ...]",
        {
            "ensemble=NAME": (
                "train the members of an ensemble, each a run, parallel=K of them side by side, and make them one "
                "model; conf/NAME.yaml is any configuration, its section ensemble says the rest"
            )
        },
        at="sweep:ensemble",
        joins=lambda arguments: _of_sweep(arguments, "ensemble"),
        refused=lambda _: _NO_SWEEP,
    ),
    Command(
        "resume",
        "resume=RUN_ID [trust=true] [key=value ...]",
        {
            "resume=RUN_ID": (
                "go on with that run from its last checkpoint, in the same MLflow run; the beginning of an id is "
                "enough, and `last` is the newest run; how it is executed may change (cluster.*, topology.*); trust=true: "
                "also one of somebody else, after saying what that would execute"
            )
        },
        brief="go on with a run, a sweep or an ensemble from where it stands; `last` is the newest",
        joins=_of_record,
        refused=lambda _: _NO_RUN,
    ),
    Command(
        "rerun",
        "rerun=RUN_ID|CRATE [audit=N] [environment=ignore|rebuild] [stages|explain|trust=true] [key=value]",
        {
            "rerun=RUN_ID": (
                "repeat that run exactly, in a clean checkout of its code with its data, and compare: exact, diverged "
                "(with the first step that differs), or inputs-differ (with what differs); explain=true: where it has "
                "diverged, run that step once more, to tell chance within it from other causes; environment=rebuild: "
                "in a new virtual environment with the recorded packages and interpreter, which pip installs; "
                "wheels=FOLDER: wheels for it, besides pip's index; stages=true: execute the DVC stages that made its data, "
                "too, and name the first that makes other data; audit=N: repeat N segments between kept checkpoints, drawn "
                "by a fresh seed (audit.seed=TEXT: by that one), in place of the whole"
            ),
            "rerun=CRATE": (
                "the same with a record that was sent, a zip or folder of export=; key=PATH: the public key that has "
                "to have signed it; trust=true: execute a record of somebody else, after saying what that would be"
            ),
            "replay=FILE": (
                "with conf=: an asynchronous run takes the order of its updates from there, the rests.jsonl of "
                "another run; rerun= does so by itself"
            ),
            "streams=FILE": (
                "with conf=: live streams give what they gave in another run, whose streams.jsonl that is; rerun= does so by "
                "itself"
            ),
            "sat_out=FILE": (
                "with conf=: the shards of sites that were away in another run, whose trace.jsonl that is, sit out as they did "
                "then; rerun= does so by itself"
            ),
        },
        brief="repeat a run exactly and compare the two",
        refused=lambda arguments: {**_NO_RERUN, "rerun_of": arguments.value},
    ),
    Command(
        "compare",
        "compare=RUN_A,RUN_B[,...]",
        {
            "compare=A,B": (
                "what differs between two runs: code, data and their drift, settings, environment, the first step; of more "
                "runs, between the first and each of the others"
            )
        },
        brief="what differs between runs",
        takes=(_JSON, _URI),
        refused=lambda arguments: {**_NO_COMPARISON, "runs": arguments.value.split(",")},
    ),
    Command(
        "export",
        "export=RUN_ID to=PATH [data|checkpoints|model|trust=true] [steps=A-B] [wheels=FOLDER] [key=PATH]",
        {
            "export=RUN_ID": (
                "write the record into the folder or zip `to`: code, settings, environment, trace, journal, verdicts, "
                "the weights that the run began with, and with data=true the data; wheels=FOLDER: the wheels of its "
                "packages that are in there, too; checkpoints=true: those that it has kept, with which it can be audited; "
                "signed with the ed25519 key of key=PATH; steps=A-B: instead only those lines of its trace, with their "
                "Merkle path; model=true: instead the trained model, in the form of its own framework, such as a folder for "
                "from_pretrained; to=FILE.ckpt: instead the trained model, for Lightning; trust=true: also of a run of "
                "somebody else, after saying which places that would open"
            )
        },
        takes=(
            *(
                _JSON,
                "to=PATH",
                "data=true",
                "checkpoints=true",
                "model=true",
                "steps=A-B",
                "wheels=FOLDER",
                "key=PATH",
            ),
            *("license=URL", "trust=true", _URI),
        ),
        refused=lambda arguments: {"run_id": None, "to": arguments.get("to")},
    ),
    Command(
        "verify",
        "verify=FILE root=LINES:ROOT [output=json]",
        {
            "verify=FILE": (
                "whether the lines that export=RUN_ID steps=A-B wrote are those of the trace with this root, which is on the "
                "run's card and in the statement of its crate"
            )
        },
        takes=(_JSON, "root=LINES:ROOT"),
        refused=lambda _: dict.fromkeys(("run_id", "begin", "last", "root")),
    ),
    Command(
        "runs",
        "runs [where=CONDITION,...] [columns=NAME,...] [output=json] [tracking.uri=URI]",
        {
            "runs": (
                "list the runs of this project, newest first; where=status=finished,optimizer.lr<0.01: those of which "
                "that is true; columns=run,optimizer.lr,validation/loss: what is shown; tracking.uri: of that MLflow "
                "store"
            )
        },
        brief="list the runs of this project",
        takes=(_JSON, _URI, "where=CONDITION", "columns=NAME"),
        refused=lambda _: _NO_RUN,
    ),
    Command(
        "watch",
        "watch=RUN_ID",
        {
            "watch=RUN_ID": (
                "show the progress of a run that goes on in another terminal, until it ends or Ctrl-C, which leaves "
                "the run alone"
            )
        },
        brief="show the progress of a run that goes on in another terminal",
        takes=(_JSON, _URI),
        refused=lambda _: _NO_RUN,
    ),
    Command(
        "look",
        "look=RUN_ID [parameter=NAME] [first=N] [count=N]",
        {
            "look=RUN_ID": (
                "while that run goes on with topology=parameter_server and sync=ssp, asp or bap: what its servers "
                "hold of a parameter, exactly, and the updates that are in it; without parameter= which there are"
            )
        },
        takes=(_JSON, "parameter=NAME", "first=N", "count=N", _URI),
        refused=lambda _: _NO_LOOK,
    ),
    Command(
        "simulate",
        "simulate conf=NAME cluster.workers=N [network.latency=50us] [compute=20ms] [failures=24h] ...",
        {
            "simulate": (
                "step time, bytes and time lost by topology and mode on a cluster that is not there, up to 100,000 "
                "workers; docs/simulation.md has all conditions; picture=FILE.png, trace=FILE.json"
            )
        },
        with_conf=True,
    ),
    Command(
        "tune",
        "tune conf=NAME|PATH [key=value ...]",
        {
            "tune": (
                "run short pieces of that run, and say which topology, how many workers and how many loaders make its "
                "steps the shortest here; topology=auto, cluster.workers=auto and data.loaders=auto let a launch "
                "choose"
            )
        },
        settings=lambda arguments: arguments.without("conf", "trust"),
        uses=("tuning.seconds",),
        with_conf=True,
    ),
    Command(
        "submit",
        "submit conf=NAME to=http://HOST:8265|kubernetes|slurm [id=ID] [key=value ...]",
        {
            "submit": (
                "have a Ray run it as a job, or print the manifest or script for Kubernetes or Slurm; a job that is "
                "started again goes on with its run; submitting an id twice changes nothing"
            )
        },
        at="jobs.submit",
        with_conf=True,
    ),
    Command(
        "status",
        "status=ID",
        {"status=ID": "how a submitted job is"},
        at="jobs.asking:status",
        takes=(_JSON, "to=URL"),
    ),
    Command("logs", "logs=ID", {"logs=ID": "what it has printed"}, at="jobs.asking:logs", takes=("to=URL",)),
    Command(
        "stop",
        "stop=ID",
        {"stop=ID": "end it in order; submitting it again goes on"},
        at="jobs.asking:stop",
        takes=(_JSON, "to=URL"),
    ),
    Command(
        "once",
        "once=ID conf=NAME [key=value ...]",
        {"once=ID": "launch under an id, or go on with the run that has it: what a job runs"},
        at="jobs.once",
        settings=lambda arguments: [*arguments.without("conf", "trust"), f"run.submission={arguments.value}"],
        with_conf=True,
        refused=lambda _: _NO_RUN,
    ),
    Command(
        "index",
        "index=FOLDER|URL|FILE.dvc [reader=NAME] [to=FILE] [output=json]",
        {
            "index=FOLDER": (
                "write files.json into a folder, here or in an object store, with the samples, bytes and hash of each "
                "file in it, for Files of a pipeline; reader=NAME: how they are read, where their names do not tell, or "
                "'{name: NAME, option: value}'; to=FILE: write that .json instead, which data.inputs may name"
            ),
            "index=FILE.dvc": (
                "the same of a folder that DVC has in a remote, or imports from a URL, in the versions that it has noted"
            ),
        },
        takes=(_JSON, "reader=NAME", "to=FILE.json"),
        refused=lambda arguments: {"index": arguments.value},
    ),
    Command(
        "doctor",
        "doctor [output=json]",
        {
            "doctor": (
                "compute the page of operators here, and name each one that this processor computes otherwise than "
                "others (see run.arithmetic=portable); exit code 3 when there is one"
            )
        },
        takes=(_JSON,),
        arithmetic="portable",
    ),
    Command(
        "ui",
        "ui [port=N] [tracking.uri=URI]",
        {"ui": "show them in a browser, with MLflow's pages, until Ctrl-C; on a free port unless port=N"},
        brief="show the runs in a browser, with MLflow's pages",
        takes=("port=N", _URI),
        refused=lambda _: _NO_RUN,
        speaks=True,
    ),
    Command(
        "new",
        "new NAME [from=ORIGIN,... [devices=N]]",
        {
            "new": (
                "new NAME: make a project to start from in the folder NAME, with data by a DVC stage, a pipeline, "
                "conf/NAME.yaml and a test; it trains at once"
            ),
            "from=ORIGIN,...": (
                "with new: only write conf/NAME.yaml, of what there is: a class (my_module:LitModel; its data module "
                "stands beside it, or is named after it), a JSON file of transformers' TrainingArguments, the folder of a "
                "model, the folder of a saved data set; devices=N: on how many that was used"
            ),
        },
        brief="make a project to start from, in the folder NAME",
    ),
    Command(
        "help",
        "help=KEY",
        {
            "help=KEY": (
                "what a setting is, what it may be and its default; of a section, such as optimizer: all in it; "
                "help=settings: all there are; help=VERB: what is typed with it; help=commands: this page"
            )
        },
        brief="what a setting is, such as optimizer.lr; of a section, such as optimizer: all in it",
        takes=(),
    ),
    Command(
        "completion",
        "completion=bash|zsh|fish",
        {
            "completion=SHELL": (
                "a script for that shell, which then completes commands, settings and runs:\n"
                'eval "$(python -m orchestrator completion=bash)"'
            )
        },
    ),
)
COMMANDS = {command.name: command for command in _ALL}


def the_command(arguments: list[str]) -> tuple[Command, str]:
    """The command, and the one argument that names it; conf= beside a command that takes it is none. Raises UsageError."""
    found = [argument for argument in arguments if argument.partition("=")[0] in COMMANDS]
    if any(COMMANDS[argument.partition("=")[0]].with_conf for argument in found):
        found = [argument for argument in found if not argument.startswith("conf=")]
    if not found:
        raise _no_command(arguments)
    if len(found) > 1:
        raise UsageError(
            f"{listed(found, 'and')}: one command at a time",
            "type them one after the other; see --help",
            code="command.several",
        )
    return COMMANDS[found[0].partition("=")[0]], found[0]


def _no_command(arguments: list[str]) -> UsageError:
    """Nothing that was typed is a command."""
    typed = next((each for each in arguments if "=" not in each), arguments[0] if arguments else "")
    shown, word = typed if typed.isprintable() else show(typed), typed.partition("=")[0]
    see = "--help lists the commands"
    if not arguments:
        return UsageError(
            "there is no command", f"such as: python -m orchestrator conf=NAME; {see}", code="command.none"
        )
    near = difflib.get_close_matches(word, COMMANDS, 1)
    if typed.endswith((".yaml", ".yml")) or Path("conf", f"{typed}.yaml").is_file():
        return UsageError(f"{shown}: no command; did you mean conf={shown}?", see, code="command.conf-meant")
    if near:
        return UsageError(
            f"{shown}: no command; did you mean {COMMANDS[near[0]].form.split()[0]}?", see, code="command.other-meant"
        )
    if "=" in typed:
        return UsageError(
            f"{shown}: no command", f"a setting stands beside one: conf=NAME {shown}; {see}", code="command.unknown"
        )
    return UsageError(f"{shown}: no command; did you mean conf={shown}?", see, code="command.conf-meant")
