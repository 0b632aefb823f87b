"""The page of all errors, docs/errors.md, made of the source: `python -m tests.error_codes` writes it.

A site is a call that says a sentence and its code: of an error (`code=`), of `coded`, or of a rule. The sentence is read from
the call as a person reads it, with a placeholder for each value.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator import errors
from tests.sources import PACKAGE, ROOT, Source, package

PAGE = ROOT / "docs" / "errors.md"
SUBJECTS = (
    *(
        "command",
        "settings",
        "import",
        "lock",
        "project",
        "record",
        "run",
        "worker",
        "replica",
        "resume",
        "begin",
        "initial",
    ),
    *(
        "data",
        "batch",
        "streams",
        "site",
        "pipeline",
        "cells",
        "lightning",
        "model",
        "loss",
        "evaluation",
        "optimizer",
        "schedule",
        "contribution",
    ),
    *(
        "compression",
        "local",
        "topology",
        "sync",
        "transport",
        "claims",
        "check",
        "chaos",
        "stages",
        "privacy",
        "portable",
    ),
    *(
        "gpu",
        "checkpoint",
        "ray",
        "slurm",
        "job",
        "look",
        "rerun",
        "audit",
        "replay",
        "verify",
        "crate",
        "export",
        "git",
    ),
    *("dvc", "mlflow", "environment", "tracking", "sweep", "ensemble", "serving", "tuning", "simulation", "idle"),
    "transformers",
)
CODE = re.compile(rf"({'|'.join(SUBJECTS)})(\.[a-z0-9]+(-[a-z0-9]+)*){{1,2}}")
_RULES = ("Rule", "Idle", "requires", "is_required_by")
_HEAD = """# Errors

Every error that a command can end with, by its code. With `output=json` the last line has it:

```bash
python -m orchestrator conf=digits topology=hierarchical reduction=fast output=json
```

says `"code": "topology.fast-layout"` in `error`, and `codes` beside it where several settings are wrong. Codes stay when
sentences change. What your own code raises has the code `pipeline.raised`; an error that an older version recorded has none.
Braces stand for values. Each error says what can be done about it; [fault-tolerance.md](fault-tolerance.md) has what is none.

<!-- made by python -m tests.error_codes -->
"""


@dataclass(frozen=True)
class Site:
    """A place in the program at which a sentence is said."""

    code: str
    sentence: str  # a placeholder for each value
    exit_code: int
    file: str  # within orchestrator/


class _Module:
    """A file with its functions, by which sentences are put together."""

    def __init__(self, file: str, read: Source) -> None:
        self.file = file
        self._read = read
        self.functions: dict[str, ast.FunctionDef] = {node.name: node for node in read.of(ast.FunctionDef)}
        self.classes: dict[str, ast.ClassDef] = {node.name: node for node in read.of(ast.ClassDef)}

    def calls(self) -> Iterator[tuple[ast.Call, str | None]]:
        """Each with the class that it stands in."""
        inside = {id(call): name for name, node in self.classes.items() for call in ast.walk(node)}
        return ((node, inside.get(id(node))) for node in self._read.of(ast.Call))

    def borrow(self, modules: Mapping[str, _Module]) -> None:
        """The functions that it imports. modules: by their dotted names."""
        for node in self._read.tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "") in modules:
                there = modules[node.module or ""].functions
                self.functions |= {each.name: there[each.name] for each in node.names if each.name in there}

    def makes_rules(self, name: str) -> bool:
        """Whether this is a function that takes the code of a rule."""
        function = self.functions.get(name)
        if function is None or getattr(function.returns, "id", "") not in _RULES:
            return False
        return [each.arg for each in function.args.args][:1] == ["code"]


@functools.cache
def modules() -> list[_Module]:
    found = [_Module(str(file.relative_to(PACKAGE)), read) for file, read in package().items()]
    named = {"orchestrator." + each.file.removesuffix(".py").replace("/", "."): each for each in found}
    for module in found:
        module.borrow(named)
    return found


@functools.cache
def kinds() -> dict[str, type[errors.OrchestratorError]]:
    """The kinds of errors, by their names; those of other modules as the ones that they refine."""
    found = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.OrchestratorError)
    }
    for module in modules():
        for name, node in module.classes.items():
            for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
                if base in found:
                    found.setdefault(name, found[base])
    return found


@functools.cache
def calls() -> list[tuple[_Module, ast.Call, str | None]]:
    """Each with the module and the class that it stands in."""
    return [(module, call, inside) for module in modules() for call, inside in module.calls()]


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def without_code() -> list[str]:
    """The places of errors that nobody gave a code. A ConfigurationError may get problems that have theirs."""
    return [
        f"orchestrator/{module.file}:{call.lineno}"
        for module, call, _ in calls()
        if name_of(call) in kinds() and keyword(call, "code") is None and not _is_coded_within(call)
    ]


def _is_coded_within(call: ast.Call) -> bool:
    name = name_of(call)
    if name != "ConfigurationError":
        return name not in vars(errors) and not _leaves_init(name)
    (problems,) = call.args[:1]
    while isinstance(problems, ast.List | ast.ListComp):
        problems = problems.elts[0] if isinstance(problems, ast.List) else problems.elt
    return not isinstance(problems, ast.Constant | ast.JoinedStr)


def _leaves_init(name: str) -> bool:
    """Whether a class makes its errors as the one that it refines does."""
    (node,) = (module.classes[name] for module in modules() if name in module.classes)
    return not any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body)


@functools.cache
def sites() -> list[Site]:
    """All of the package, in the order of their codes."""
    found = [site for each in calls() if (site := _site(*each))]
    return sorted(found, key=lambda site: (SUBJECTS.index(site.code.partition(".")[0]), site.code, site.file))


def _site(module: _Module, call: ast.Call, inside: str | None) -> Site | None:
    name, code = name_of(call), keyword(call, "code")
    if isinstance(code, ast.Constant):
        kind = kinds()[inside if name == "__init__" and inside is not None else name]
        return Site(str(code.value), _said(call.args[0], module, {}), kind.exit_code, module.file)
    if not call.args or not isinstance(call.args[0], ast.Constant):
        return None
    if name == "coded":
        return Site(str(call.args[0].value), _said(call.args[1], module, {}), 2, module.file)
    if (name in _RULES and call.args[3:]) or module.makes_rules(name):
        return Site(str(call.args[0].value), _of_rule(call, module), 2, module.file)
    return None


def _of_rule(call: ast.Call, module: _Module) -> str:
    """The sentence of a rule, also if a function makes the rule of its arguments."""
    name = name_of(call)
    if name in _RULES:
        return _said(call.args[3], module, {}).replace("{{", "{").replace("}}", "}")
    function = module.functions[name]
    given = _arguments(function, call, module, {})
    (made,) = (
        node for node in ast.walk(function) if isinstance(node, ast.Call) and name_of(node) in _RULES and node.args[3:]
    )
    said = _said(made.args[3], module, given | _assigned(function, module, given))
    return said.replace("{{", "{").replace("}}", "}")


def _arguments(function: ast.FunctionDef, call: ast.Call, module: _Module, known: Mapping[str, str]) -> dict[str, str]:
    """The texts that the parameters stand for; those that are no text are placeholders."""
    names = [each.arg for each in function.args.args]
    defaults = dict(zip(names[len(names) - len(function.args.defaults) :], function.args.defaults, strict=True))
    given: dict[str, ast.expr] = defaults | dict(zip(names, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg is not None}
    texts = (ast.Constant, ast.JoinedStr)
    return {
        each: _said(value, module, known)
        for each, value in given.items()
        if isinstance(value, texts) and isinstance(getattr(value, "value", ""), str)
    }


def _assigned(function: ast.FunctionDef, module: _Module, known: Mapping[str, str]) -> dict[str, str]:
    """The texts that a function puts together before its sentence."""
    found: dict[str, str] = {}
    for node in function.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.JoinedStr):
            found |= {each.id: _said(node.value, module, known) for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.FunctionDef):  # one that makes the sentence
            found[node.name] = _returned(node, module, known)
    return found


def _returned(function: ast.FunctionDef, module: _Module, known: Mapping[str, str]) -> str:
    ends = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    return _said(ends[-1], module, {**known, **_assigned(function, module, known)})


def _said(node: ast.expr, module: _Module, known: Mapping[str, str]) -> str:
    """known: what names stand for."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_said(part, module, known) for part in parts)
        case ast.FormattedValue(value=value):
            return _said(value, module, known)
        case ast.List(elts=[each, *_]) | ast.ListComp(elt=each) | ast.Lambda(body=each):
            return _said(each, module, known)
        case ast.Call(func=ast.Name(id="coded"), args=[_, sentence]):
            return _said(sentence, module, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _said(left, module, known) + _said(right, module, known)
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Name(id=name) if name in module.functions:
            return _returned(module.functions[name], module, known)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name), keywords=[]) if (
            name in module.functions
        ):
            function = module.functions[name]
            if all(_is_text(end.value) for end in ast.walk(function) if isinstance(end, ast.Return)):
                return _returned(function, module, _arguments(function, node, module, known))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute)) if name in known:
            return known[name].removesuffix(".name") if attribute == "removesuffix" else known[name]
    return f"{{{_placeholder(node)}}}"


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and name_of(node) == "coded")


def _placeholder(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_")
        case ast.Call(args=[first, *_]) | ast.Subscript(value=first) | ast.Starred(value=first):
            return _placeholder(first)
        case ast.Call(func=ast.Attribute(value=first)) | ast.BoolOp(values=[first, *_]) | ast.IfExp(body=first):
            return _placeholder(first)
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return _placeholder(first.iter)
        case ast.BinOp(left=left, right=right):
            return _placeholder(right if isinstance(left, ast.Constant) else left)
    return "..."


def page() -> str:
    """The text of docs/errors.md."""
    rows: dict[str, dict[str, list[Site]]] = {}
    for site in sites():
        rows.setdefault(site.code.partition(".")[0], {}).setdefault(site.code, []).append(site)
    return _HEAD + "".join(_section(subject, found) for subject, found in rows.items())


def _section(subject: str, rows: Mapping[str, list[Site]]) -> str:
    head = f"\n## {subject}\n\n| code | exit code | sentence | said in |\n|---|---|---|---|\n"
    return head + "".join(_row(code, found) for code, found in rows.items())


def _row(code: str, found: list[Site]) -> str:
    exits = ", ".join(sorted({str(site.exit_code) for site in found}))
    files = ", ".join(f"`{file}`" for file in dict.fromkeys(site.file for site in found))
    sentence = re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(found[0].sentence.split()))
    return f'| <span id="{code}">`{code}`</span> | {exits} | {sentence} | {files} |\n'


if __name__ == "__main__":
    PAGE.write_text(page())
