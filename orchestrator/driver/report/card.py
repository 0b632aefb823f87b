"""The run card: one page in Markdown that says what ran, on what, how it ended, and how to repeat it.

It is made only of the files that hold the same for programs, so the card of an old run can be made again. Nothing reads
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LISTED = 20
_PACKAGES = ("torch", "ray", "numpy", "mlflow", "dvc")


@dataclass(frozen=True)
class CardContents:
    """What stands on a run card.

    code, data, nodes, identity: the contents of the run's files, empty where there is none; settings: flat, those that
    determine the result; execution: the others. outcome: the rows of the table of results; said: what the comparison
    with other runs found; obstacles: to an exact rerun.
    """

    run_id: str
    name: str
    status: str
    started: str
    command: str
    outcome: Mapping[str, Any]
    code: Mapping[str, Any]
    data: Mapping[str, Any]
    nodes: Mapping[str, Any]
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    execution: Mapping[str, Any]
    said: Sequence[str]
    obstacles: Sequence[str]


def card(contents: CardContents) -> str:
    """The page, in Markdown."""
    parts = [
        f"# {contents.name}: {contents.status}",
        _bullets({"run": contents.run_id, "started": contents.started, "command": contents.command}),
        *_section("Result", _bullets(contents.outcome), _list(contents.said)),
        *_section("Code", _code(contents.code)),
        *_section("Data", _data(contents.data)),
        *_section("Settings that determine the result", _table(contents.settings)),
        *_section("Environment", *(_node(name, node) for name, node in contents.nodes.items())),
        *_section("Execution (another run may change these, and keeps the bits)", _table(contents.execution)),
        *_section("Again", _again(contents)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _again(contents: CardContents) -> str:
    command = f"    python -m orchestrator rerun={contents.run_id}"
    if not contents.obstacles:
        return f"This repeats it and says whether it came out the same:\n\n{command}"
    return f"It may be that it cannot be repeated exactly:\n\n{_list(contents.obstacles)}\n\nTo try:\n\n{command}"


def _code(code: Mapping[str, Any]) -> str:
    if "tree" not in code:
        return "It is not recorded."
    changed = code.get("changed", [])
    rows = {
        "commit": code.get("origin") or "none yet",
        "tree": code.get("tree"),
        "folder": code.get("project") or "the top of the repository",
        "not committed": _some(changed) if changed else "nothing",
    }
    return f"{_bullets(rows)}\n\n`code.bundle` restores it into any repository; `code.patch` is what differs from the commit."


def _data(data: Mapping[str, Any]) -> str:
    inputs = data.get("inputs", [])
    if not inputs:
        return "`data.inputs` names none."
    rows = [("path", "md5", "files", "bytes", "DVC")]
    rows += [
        (item["path"], item["md5"], str(item["files"]), str(item["size"]), item.get("stage") or _keeper(item))
        for item in inputs
    ]
    return _grid(rows)


def _keeper(item: Mapping[str, Any]) -> str:
    return "yes" if item.get("as_recorded") else "not as DVC has recorded it" if item.get("outs") else "no"


def _node(name: str, node: Mapping[str, Any]) -> str:
    bits, host, packages = node.get("bits", {}), node.get("host", {}), node.get("packages", {})
    rows = {
        "Python": str(bits.get("python", "")).split(" ")[0],
        "packages": ", ".join(f"{package} {packages[package]}" for package in _PACKAGES if package in packages),
        "all packages": f"{len(packages)}, SHA-256 {bits.get('packages_sha256')}",
        "system": f"{host.get('os')}, {bits.get('system')} {host.get('kernel')}, {bits.get('libc')}",
        "processor": f"{bits.get('cpu')}, {host.get('cores')} cores, kernels for {bits.get('capability')}",
        "GPU": _gpu(bits.get("gpu") or {}),
        "variables": ", ".join(f"{key}={value}" for key, value in bits.get("variables", {}).items()) or None,
    }
    return f"Node `{name}`\n\n{_bullets({key: value for key, value in rows.items() if value})}"


def _gpu(found: Mapping[str, Any]) -> str:
    """Empty where none computes."""
    libraries = (f"{name} {version}" for name, version in found.items() if name != "models")
    return "; ".join([*found.get("models", ()), ", ".join(libraries)]) if found else ""


def _section(title: str, *parts: str) -> list[str]:
    kept = [part for part in parts if part]
    return [f"## {title}", *kept] if kept else []


def _bullets(rows: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name}: `{_flat(value)}`" for name, value in rows.items() if value is not None)


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {_flat(sentence)}" for sentence in sentences)


def _table(values: Mapping[str, Any]) -> str:
    return _grid([("key", "value"), *((f"`{name}`", f"`{_flat(value)}`") for name, value in values.items())])


def _grid(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def _flat(value: Any) -> str:
    """On one line, and unable to end the code that it is shown as."""
    return " ".join(("null" if value is None else str(value)).replace("`", "'").split())


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_LISTED]) + (f" and {len(paths) - _LISTED} more" if paths[_LISTED:] else "")
