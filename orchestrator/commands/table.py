"""Every verb by its name, and the page of usage that follows from them."""

from __future__ import annotations

from orchestrator.errors import UsageError
from orchestrator.verbs import (
    compare,
    completion,
    conf,
    doctor,
    ensemble,
    explain_key,
    export,
    jobs,
    look,
    rerun,
    resume,
    runs,
    simulate,
    sweep,
    tune,
    ui,
    watch,
)
from orchestrator.verbs.verb import Verb

VERBS: dict[str, Verb] = {
    "conf": conf.VERB,
    "sweep": sweep.VERB,
    "ensemble": ensemble.VERB,
    "resume": resume.VERB,
    "rerun": rerun.VERB,
    "compare": compare.VERB,
    "export": export.VERB,
    "runs": runs.VERB,
    "watch": watch.VERB,
    "look": look.VERB,
    "simulate": simulate.VERB,
    "tune": tune.VERB,
    "submit": jobs.SUBMIT,
    "status": jobs.STATUS,
    "logs": jobs.LOGS,
    "stop": jobs.STOP,
    "once": jobs.ONCE,
    "doctor": doctor.VERB,
    "ui": ui.VERB,
    "help": explain_key.VERB,
}
VERBS["completion"] = completion.verb(VERBS)
_COMMON = (
    (
        "key=value",
        "change a setting, such as cluster.workers=2 or optimizer.lr=0.01; topology=ring is\nshort for topology.name=ring",
    ),
    ("output=json", "the last line of stdout is one JSON object"),
    ("--help", "this page"),
)
_END = """\
examples
  python -m orchestrator conf=digits
  python -m orchestrator conf=digits topology=tree cluster.workers=3 run.seed=7 output=json
  python -m orchestrator resume=last cluster.workers=2
  python -m orchestrator sweep=sweep parallel=3

All settings: docs/settings.md. Runs are recorded in .orchestrator/ of the working directory.
Exit codes: 0 fine, 1 the run failed, 2 bad usage or configuration, 3 a rerun diverged or doctor found a difference,
4 it cannot be rerun exactly, 130 interrupted."""
_WIDTH = 19


def usage() -> str:
    forms = [f"python -m orchestrator {form}" for verb in VERBS.values() for form in verb.forms]
    lines = [f"{'usage:' if number == 0 else '      '} {form}" for number, form in enumerate(forms)]
    told = [entry for verb in VERBS.values() for entry in verb.about]
    for word, text in (*told, *_COMMON):
        first, *rest = text.splitlines()
        lines += ["", *_head(word, first)] if word == "conf=NAME" else _head(word, first)
        lines += [" " * (_WIDTH + 2) + line for line in rest]
    return "\n".join([*lines, "", _END])


def _head(word: str, first: str) -> list[str]:
    if len(word) < _WIDTH - 1:
        return [f"  {word:<{_WIDTH}}{first}"]
    return [f"  {word}", " " * (_WIDTH + 2) + first]


def the_verb(arguments: list[str]) -> tuple[str, str]:
    """(name, argument): the one argument that says what to do; conf= beside a verb that takes it is none. Raises UsageError."""
    found = [argument for argument in arguments if argument.partition("=")[0] in VERBS]
    if any(VERBS[argument.partition("=")[0]].with_conf for argument in found):
        found = [argument for argument in found if not argument.startswith("conf=")]
    if len(found) != 1:
        typed = f"found {' and '.join(found)}" if found else "there is none"
        known = [verb.forms[0].split()[0] for verb in VERBS.values()]
        listed = f"{', '.join(known[:-1])} and {known[-1]}"
        raise UsageError(f"exactly one of {listed} is needed; {typed}", usage())
    return found[0].partition("=")[0], found[0]
