"""Mistakes of users: one clear message, the documented exit code, no traceback, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.products import thinned
from tests.projects import Done, Project

# Arguments -> exit code and what the message must say. None of these starts Ray.
REFUSED = {
    "": (2, "there is no command\n  such as: python -m orchestrator conf=NAME; --help lists the commands"),
    "good": (2, "good: no command; did you mean conf=good?\n  --help lists the commands"),
    "conf=goood": (2, "did you mean good?"),
    "conf=good run.sed=3": (2, "run.sed: no such key; did you mean run.seed?"),
    "conf=good lr=0.1": (2, "did you mean optimizer.lr?"),
    "conf=good run.steps=many": (2, "run.steps: expected a whole number, got 'many'"),
    "conf=good cluster.workers=5": (2, "5 workers for 4 shards"),
    "conf=good cluster.stages=3 cluster.workers=2": (
        2,
        "2 workers for 3 stages; a worker hosts one stage: raise it to 3",
    ),
    "conf=good cluster.pipeline=1f2b": (2, "cluster.pipeline.name: '1f2b' is not on offer; did you mean 1f1b?"),
    "conf=good topology=star": (2, "ring, tree, parameter_server, peer_to_peer"),
    "conf=good topology.arity=3": (2, "arity"),
    "conf=good compression=quantise": (2, "did you mean quantize?"),
    "conf=good compression=topk compression.ratio=2": (
        2,
        "compression.ratio: must be greater than 0 and at most 1, got 2",
    ),
    "conf=good pipeline.target=faults:Goood": (2, "did you mean faults:Good?"),
    "conf=good pipeline.target=faults:Sized": (2, "missing a required argument: 'size'"),
    "conf=good optimizer=adamx": (2, "did you mean adamax?"),
    "conf=good optimizer.lr=-1": (2, "Invalid learning rate"),
    "conf=good data.inputs=[data/x]": (2, "there is no data/x"),
    "doctor cluster.workers=2": (2, "doctor takes only output=json, not cluster.workers=2"),
    "help=run cluster.workers=2": (2, "help takes nothing else, not cluster.workers=2"),
    "conf=good runs": (2, "conf=good and runs: one command at a time"),
    "resume=nothing": (2, "there is no run nothing"),
    "rerun=nope": (2, "there is no run nope"),
    "rerun=x environment=maybe": (2, "environment=maybe: it is check, ignore or rebuild"),
    "rerun=x wheels=conf": (2, "wheels= names a folder of wheels for environment=rebuild, which is not asked for"),
    "export=last to=a.zip wheels=none": (2, "wheels=none: there is no such folder"),
    "rerun=x explain=yes": (2, "explain=yes: it is false or true"),
    "conf=good explain=true": (2, "explain: no such key"),
    "rerun=x trust=yes": (2, "trust=yes: it is false or true"),
    "rerun=nothing.zip": (2, "rerun=nothing.zip: there is no such crate"),
    "rerun=x key=conf/good.yaml": (2, "key= checks the signature of a crate, and this is a run"),
    "rerun=conf/good.yaml": (4, "conf/good.yaml"),
    "export=last": (2, "export needs a place: to=FOLDER or to=FILE.zip"),
    "export=nope to=x.zip": (2, "there is no run nope"),
    "export=nope to=conf": (2, "to=conf: it exists"),
    "export=nope to=nowhere/x.zip": (2, "there is no folder"),
    "export=nope to=x.zip data=maybe": (2, "data=maybe: it is false or true"),
    "export=nope to=x.zip key=conf/good.yaml": (2, "key=conf/good.yaml: it is no private key"),
    "export=nope to=x.zip cluster.workers=2": (
        2,
        "export takes only output=json, to=PATH, data=true, checkpoints=true, model=true, steps=A-B, wheels=FOLDER, key=PATH, "
        "license=URL, trust=true and tracking.uri=URI",
    ),
    "compare=one": (2, "compare=one: two runs are needed"),
    "compare=nope,never": (2, "there is no run nope"),
    "compare=a,b cluster.workers=2": (2, "compare takes only output=json and tracking.uri=URI"),
    "look=nope": (2, "there is no run nope"),
    "look=nope cluster.workers=2": (
        2,
        "look takes only output=json, parameter=NAME, first=N, count=N and tracking.uri=URI",
    ),
    "look=nope count=none": (2, "count=none: expected a whole number, at least 1"),
    "conf=good cluster.workers={min:2}": (2, "or a range such as {min: 2, max: 4}"),
    "conf=good privacy.clipping_norm=1 sync=ssp": (2, "privacy.clipping_norm: with sync=ssp there is no sum of a step"),
    "conf=good checkpoint.uri=nowhere://x": (2, "checkpoint.uri: nowhere://x cannot be used"),
    "conf=": (2, "conf="),
    "conf=broken": (2, "conf/broken.yaml:3:1: not valid YAML"),
    "conf=empty": (2, "conf/empty.yaml: is empty"),
    "conf=good,goood": (2, "did you mean good?"),
    "conf=good novalue": (2, "novalue"),
    "conf=good cluster.workers=0": (2, "cluster.workers: expected a number of workers such as 4, at least 1"),
    "conf=good data.batch_size=2": (2, "2 rows for 4 shards"),
    "conf=good run.device=cuda cluster.gpus_per_worker=1": (2, "is built without CUDA; install a build with CUDA"),
    "conf=good schedule.gamma=0.5": (2, "constant has no gamma"),
    "conf=good optimizer=lbfgs": (2, "'lbfgs' is not on offer"),
    "conf=good pipeline.target=faults:TensorDataset": (2, "not a subclass of orchestrator.Pipeline"),
    "conf=good pipeline.target=unimportable:X": (2, "no module named 'not_installed'"),
    "conf=good pipeline.target=exploding:X": (2, "importing exploding raised ZeroDivisionError"),
    "conf=good pipeline.target=faults:Double": (2, "parameter 'weight' is torch.float64"),
    "conf=good pipeline.target=faults:Rated schedule=cosine": (2, "schedule: the pipeline has a rate() of its own"),
    "conf=good schedule=steps schedule.every=30s": (2, "of epochs such as 5epochs"),
    "conf=own pipeline.target=faults:Lbfgs": (2, "LBFGS: it calls the model again within its step"),
    "conf=own pipeline.target=faults:TwoOptimizers": (2, "optimizer() returned a list"),
    "runs cluster.workers=2": (2, "runs takes only output=json"),
    "ui run.steps=2": (2, "ui takes only port=N and tracking.uri=URI, not run.steps=2"),
    "conf=good show=maybe": (2, "show=maybe: it is false or true"),
    "conf=good plan=true cluster.workers=9": (2, "9 workers for 4 shards"),
    "help=optimiser": (2, "help=optimiser: no such key"),
    "watch=nothing": (2, "there is no run nothing"),
    "completion=tcsh": (2, "completion=tcsh: there is none for it"),
    "runs where=status": (2, "where=status: it is no condition"),
    "simulate cluster.workers=9": (2, "simulate: it needs a configuration"),
    "submit conf=good": (2, "submit: it needs conf=NAME and to="),
    "submit conf=good to=http://127.0.0.1:1": (1, "the Ray at http://127.0.0.1:1 does not take jobs"),
    "status=unknown": (2, "no job unknown was submitted to a Ray from here"),
    "sweep=goood": (2, "sweep=goood: there is no file conf/goood.yaml"),
    "ensemble=good ensemble.members=1": (2, "ensemble.members: must be at least 2"),
    "ensemble=good data.subset.shared_seed=3": (2, "ensemble.data says which samples a member has"),
    "ensemble=good ensemble.combine=vote ensemble.output=values": (2, "members vote for classes"),
    "ensemble=good ensemble.combine=faults:few": (2, "ensemble.combine: faults:few "),
    "ensemble=good ensemble.combin=vote": (2, "ensemble.combin: no such key"),
    "sweep=good ensemble.members=3": (2, "launch it with ensemble=NAME"),
    "sweep=good": (2, "space: required; it names the settings to search"),
    "sweep=good conf=good": (2, "sweep=good and conf=good: one command at a time"),
    "sweep=good space.run.seed=[1,2] search=grid pipeline.target=faults:Goood": (2, "did you mean faults:Good?"),
    "sweep=good space.run.seed=[1,2] search=faults:few search.trials=4": (2, "gives 1 points where 4 are asked for"),
    "ui port=http": (2, "port=http: expected a number from 1 to 65535"),
    "conf=good data.inputs=[ignored.bin] strict=true": (4, "ignored.bin is not under DVC"),
    "ui tracking.uri=http://127.0.0.1:1": (2, "http://127.0.0.1:1 is an MLflow server, which shows its runs itself"),
}


TRUE_COMMANDS = ("", "conf=good pipeline.target=exploding:X")  # the others are forked
JSON = ("conf=good run.sed=1 cluster.workers=many output=json", "rerun=nope output=json")


@pytest.fixture(scope="module")
def answers(faulty: Project, request: pytest.FixtureRequest) -> dict[str, Done]:
    """The outcome of each command line that is asked for here, and of those in `JSON`."""
    asked = [item.callspec.params.get("arguments") for item in request.session.items if hasattr(item, "callspec")]
    forked = [arguments for arguments in REFUSED if arguments in asked and arguments not in TRUE_COMMANDS] + [*JSON]
    before = faulty.runs()
    process = subprocess.run(
        [sys.executable, "-m", "tests.cli.forking"],
        cwd=faulty.path,
        env=faulty.environment(),
        input=json.dumps([arguments.split() for arguments in forked]),
        capture_output=True,
        text=True,
        check=True,
    )
    found = {arguments: Done(**each) for arguments, each in zip(forked, json.loads(process.stdout), strict=True)}
    assert faulty.runs() == before
    return found


@pytest.mark.ray
@pytest.mark.parametrize("arguments", thinned(REFUSED, 12))
def test_refused_before_anything_is_started(faulty: Project, answers: dict[str, Done], arguments: str) -> None:
    code, message = REFUSED[arguments]
    before = faulty.runs()
    done = faulty.run(*arguments.split()) if arguments in TRUE_COMMANDS else answers[arguments]
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert "Traceback" not in done.err
    assert faulty.runs() == before


@pytest.mark.ray
def test_every_problem_is_told_at_once_and_to_programs_too(answers: dict[str, Done]) -> None:
    done = answers[JSON[0]]
    assert done.code == 2
    assert "run.sed" in done.err
    assert "cluster.workers" in done.err
    assert (done.report["status"], done.report["run_id"]) == ("failed", None)
    assert done.report["error"]["kind"] == "ConfigurationError"


@pytest.mark.ray
def test_a_refused_rerun_has_the_fields_of_its_contract(answers: dict[str, Done]) -> None:
    done = answers[JSON[1]]
    error = done.report["error"]
    assert (done.code, error["kind"]) == (2, "UsageError")
    nothing = {"run_id": None, "rerun_of": "nope", "status": "failed", "verdict": None, "first_divergence": None}
    assert done.report == {
        **nothing,
        "differences": [],
        "explanation": None,
        "stages": None,
        "audit": None,
        "error": error,
    }


# Pipelines that fail in the run: exit code 1, and the message.
FAILING = {
    "Raises": ("PipelineRaised", "loss() (step 0, shard 0) raised KeyError: 'no such column'"),
    "NotANumber": ("NonFinite", "the loss is nan at step 0, shard 0"),
    "NoFile": ("PipelineRaised", "datasets() raised FileNotFoundError"),
    "Dies": ("WorkerLost", "died: its process (pid "),
}


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize("pipeline", FAILING)
def test_a_failing_run_says_why_and_is_recorded_as_failed(faulty: Project, pipeline: str) -> None:
    kind, message = FAILING[pipeline]
    done = faulty.run("conf=good", f"pipeline.target=faults:{pipeline}", "cluster.workers=1", "output=json")
    assert done.code == 1
    assert done.report["error"]["kind"] == kind
    assert message in done.report["error"]["message"]
    assert message in done.err
    assert "Traceback" not in done.err
    run_id = done.report["run_id"]
    assert faulty.runs()[run_id] == "FAILED"
    assert message in (faulty.folder(run_id) / "error.txt").read_text()
    if pipeline == "Raises":
        assert "] about to fail" in done.err
        assert "faults.py:" in done.err
        assert "Traceback" in (faulty.folder(run_id) / "error.txt").read_text()


@pytest.mark.ray
@pytest.mark.long
def test_no_git_repository_is_said_and_no_obstacle(faulty: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    bare = Project(tmp_path_factory.mktemp("bare"))
    (bare.path / "conf").mkdir()
    for name in ("faults.py", "conf/good.yaml"):
        (bare.path / name).write_text((faulty.path / name).read_text())
    done = bare.run("conf=good", "cluster.workers=1")
    assert done.code == 0
    assert "in no git repository" in done.err
    refused = bare.run("conf=good", "strict=true")
    assert (refused.code, len(bare.runs())) == (4, 1)
    assert bare.leftovers() == []
