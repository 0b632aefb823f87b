"""The source of a user's class, read for what its methods do. Nothing is called."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence

_FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "builtins")
_SEEDS = ("generator", "random_state", "seed")  # what a call that draws from one of its own says
_DEMOS = ("lightning.pytorch.demos.", "pytorch_lightning.demos.")  # modules that people try a tool with


class Reading:
    """The methods of a class that are not its framework's. A method whose source cannot be read says nothing."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def overrides(self, name: str) -> bool:
        """Whether the user has written a method or an attribute of this name."""
        owner = self._owner(name)
        return owner is not None and vars(owner)[name] is not None  # None takes a method of a base class away

    def through(self, *names: str) -> list[ast.FunctionDef]:
        """These methods, and those that they call on `self`, each once."""
        found: dict[str, ast.FunctionDef] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop(0)
            function = None if name in found else self._function(name)
            if function is not None:
                found[name] = function
                waiting += [each.attr for each in uses_of_self(function)]
        return list(found.values())

    def returned(self, name: str) -> Iterator[ast.expr]:
        """The results of a method, as its source says them: also those of a method on `self` whose result it returns."""
        found, waiting = set[str](), [name]
        while waiting:
            function = self._function(waiting.pop())
            if function is None or function.name in found:
                continue
            found.add(function.name)
            for result in _returned(function):
                called = result.func if isinstance(result, ast.Call) else None
                waiting += [] if called is None else [each.attr for each in uses_of_self(called) if each is called]
                yield result

    def parameters(self, name: str) -> list[str]:
        return list(inspect.signature(getattr(self._kind, name)).parameters)[1:]

    def numbers(self, step: str) -> list[str]:
        """The parameters of a step that the number of a batch may come by: all but the batch, and `*args`."""
        found = list(inspect.signature(getattr(self._kind, step)).parameters.values())[1:]
        return [each.name for place, each in enumerate(found) if place or each.kind == each.VAR_POSITIONAL]

    def _owner(self, name: str) -> type | None:
        owner = next((kind for kind in self._kind.__mro__ if name in vars(kind)), None)
        return None if owner is None or is_frameworks(owner.__module__) else owner

    def _function(self, name: str) -> ast.FunctionDef | None:
        owner = self._owner(name)
        try:
            written = None if owner is None else vars(owner)[name]
            written = written.fget if isinstance(written, property) else written
            tree = None if written is None else ast.parse(textwrap.dedent(inspect.getsource(written)))
        except (OSError, TypeError, SyntaxError):
            return None
        return next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None) if tree else None


def is_frameworks(module: str) -> bool:
    """Whether what a module of this name defines is the framework's, and not to be read."""
    return module.partition(".")[0] in _FRAMEWORKS and not module.startswith(_DEMOS)


def _returned(part: ast.AST) -> Iterator[ast.expr]:
    """Not those of functions within it."""
    for node in ast.iter_child_nodes(part):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _returned(node)


def uses_of_self(function: ast.AST) -> Iterator[ast.Attribute]:
    """Each `self.name` in it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node


def hands_on_self(function: ast.AST) -> bool:
    """Whether it gives `self` as a whole to code that is not read here, or calls a base class."""
    parts = list(ast.walk(function))
    read = {each.value for each in uses_of_self(function)} | {part.func for part in parts if isinstance(part, ast.Call)}
    names = [part.id for part in parts if isinstance(part, ast.Name) and (part.id == "super" or part not in read)]
    return "self" in names or "super" in names


def names_in(functions: list[ast.FunctionDef]) -> set[str]:
    """Every name, attribute and text in them."""
    found = set()
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def logged(functions: list[ast.FunctionDef]) -> Iterator[tuple[str, ast.Call]]:
    """(name, call) of everything given to `self.log` and `self.log_dict`; a name that is computed as it is written."""
    for function in functions:
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in ("log", "log_dict") or ast.unparse(node.func.value) != "self" or not node.args:
                continue
            first = node.args[0]
            keys = first.keys if isinstance(first, ast.Dict) else [first]
            for key in keys:
                if key is not None:
                    yield (str(key.value) if isinstance(key, ast.Constant) else ast.unparse(key)), node


def is_shown(call: ast.Call) -> bool:
    """Whether a call of `self.log` or `self.log_dict` has its names in the source."""
    first = call.args[0]
    keys = first.keys if isinstance(first, ast.Dict) else [first]
    return all(isinstance(key, ast.Constant) for key in keys)


def computed(functions: list[ast.FunctionDef]) -> list[str]:
    """Each `self.name` whose `compute()` they take for more than a call of `self.log` or `self.log_dict`."""
    shown = {part for _, call in logged(functions) for part in ast.walk(call)}
    found = [
        ast.unparse(node.func.value)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "compute"
        and not (node.args or node.keywords or node in shown)
    ]
    return [each for each in dict.fromkeys(found) if each.startswith("self.")]


def drawn_by(names: Sequence[str], functions: list[ast.FunctionDef]) -> Iterator[str]:
    """Each call of a function of one of these names to which they give no generator and no seed."""
    for function in functions:
        for node in ast.walk(function):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if called in names and not any(seed in ast.unparse(node).lower() for seed in _SEEDS):
                yield called
