"""`simulate conf=NAME cluster.workers=N ...`: a run on a cluster that is not there, in virtual time."""

from __future__ import annotations

import json
import sys

from orchestrator.errors import UsageError
from orchestrator.verbs.verb import Answer, Arguments, Verb


def _run(given: Arguments) -> Answer:
    from orchestrator.commands.simulate import draw, simulate
    from orchestrator.simulation.conditions import KEYS, conditions

    conf = given.get("conf")
    if conf is None:
        raise UsageError("simulate: it needs a configuration", "such as: simulate conf=digits cluster.workers=1000")
    keys = {key.partition(".")[0] for key in KEYS if "." in key}
    asked = {
        key: value
        for key, _, value in (each.partition("=") for each in given.rest)
        if key in KEYS or key.partition(".")[0] in keys
    }
    own = ("conf", "output", "cluster.workers", "parameters", "picture", "trace", "seed", *asked)
    found = simulate(
        conf.split(","),
        given.without(*own),
        given.get("cluster.workers"),
        given.get("parameters"),
        conditions(asked),
    )
    for sentence in draw(found, given.get("picture"), given.get("trace")):
        print(sentence, file=sys.stderr)
    return Answer(stdout=json.dumps(found.as_dict()) if given.as_json else found.as_text())


VERB = Verb(
    forms=("simulate conf=NAME cluster.workers=N [network.latency=50us] [compute=20ms] [failures=24h] ...",),
    about=(
        (
            "simulate",
            "step time, bytes and time lost by topology and mode on a cluster that is not there, up to 100,000\n"
            "workers; docs/simulation.md has all conditions; picture=FILE.png, trace=FILE.json",
        ),
    ),
    run=_run,
    with_conf=True,
)
