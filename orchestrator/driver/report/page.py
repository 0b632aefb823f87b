"""A page as a value, written as Markdown or as HTML: the same words and the same numbers, because both come from one list.

The HTML is one file: its style is in it, and so are its pictures. Everything that is not ours is escaped: names of files,
settings and what a pipeline says of itself.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.records.decimals import digits

_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --faint: #52606d; --line: #d9e2ec; --soft: #f5f7fa; --accent: #2f6fb2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --faint: #9aa5b1; --line: #3e4c59; --soft: #27323d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .5rem; }
h2 { font-size: 1.2rem; margin-top: 2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin-bottom: .3rem; } h1, h2, h3, p, li, figcaption { overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 600; } .facts th { white-space: nowrap; border: 0; } .facts td { border: 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } td code { overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .7rem .9rem; overflow-x: auto; border-left: 3px solid var(--accent); }
img { max-width: 100%; height: auto; background: white; } figure { margin: 1rem 0; } figcaption { color: var(--faint); }
""".strip()


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Values by name; those that are None are left out."""

    rows: Mapping[str, Any]


@dataclass(frozen=True)
class Listing:
    sentences: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table. as_code: whether its cells are names and values, not words."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    as_code: bool = False


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Picture:
    """file: a PNG or an SVG; caption: what it shows."""

    file: Path
    caption: str


@dataclass(frozen=True)
class Heading:
    text: str


Block = Text | Facts | Listing | Grid | Code | Picture | Heading


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """head: what stands below the title."""

    title: str
    head: Sequence[Block]
    sections: Sequence[Section]


def cleaned(page: Page, clean: Callable[[str], str]) -> Page:
    """The same page with every text as `clean` gives it: to be called before anything is escaped."""

    def of(value: Any) -> Any:
        if isinstance(value, str):
            return clean(value)
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: of(getattr(value, each.name)) for each in fields(value)})
        if isinstance(value, Mapping):
            return {of(key): of(each) for key, each in value.items()}
        return [of(each) for each in value] if isinstance(value, (list, tuple)) else value

    found: Page = of(page)
    return found


def markdown(page: Page) -> str:
    """Pictures are named by their folder and their name."""
    parts = [f"# {flat(page.title)}", *map(_markdown, page.head)]
    for section in page.sections:
        found = [text for text in map(_markdown, section.blocks) if text]
        parts += [f"## {section.title}", *found] if found else []
    return "\n\n".join(part for part in parts if part) + "\n"


def as_html(page: Page) -> str:
    """Raises OSError for a picture that cannot be read."""
    parts = [f"<h1>{_escaped(page.title)}</h1>", *map(_html, page.head)]
    for section in page.sections:
        found = [text for text in map(_html, section.blocks) if text]
        parts += [f"<h2>{_escaped(section.title)}</h2>", *found] if found else []
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(page.title)}</title><style>\n{_STYLE}\n</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


_BEGINNINGS = re.compile(r"^( {0,3})(#|=+\s*$|-+\s*$)", re.MULTILINE)  # of a heading, or the line below one


def flat(value: Any) -> str:
    """On one line, and unable to end the code that it is shown as."""
    text = "null" if value is None else digits(value) if isinstance(value, float) else str(value)
    return " ".join(text.replace("`", "'").split())


def _markdown(block: Block) -> str:
    match block:
        case Text(text):
            return _BEGINNINGS.sub(r"\1\\\2", text)
        case Heading(text):
            return f"### {flat(text)}"
        case Facts(rows):
            return "\n".join(f"- {flat(name)}: `{flat(value)}`" for name, value in rows.items() if value is not None)
        case Listing(sentences):
            return "\n".join(f"- {flat(sentence)}" for sentence in sentences)
        case Grid(header, rows, as_code):
            return _grid([header, *rows], as_code) if rows else ""
        case Code(text):
            return "\n".join(f"    {line}" for line in text.splitlines())
        case Picture(file, caption):
            return f"![{flat(caption)}]({file.parent.name}/{file.name})"


def _grid(rows: Iterable[Sequence[str]], as_code: bool) -> str:
    header, *others = rows
    mark = "`" if as_code else ""
    cells = [[*map(flat, header)], *([f"{mark}{flat(cell)}{mark}" for cell in row] for row in others)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]])


def _html(block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{_escaped(text).replace('`', '')}</p>"
        case Heading(text):
            return f"<h3>{_escaped(text)}</h3>"
        case Facts(rows):
            lines = [
                f"<tr><th>{_escaped(name)}</th><td><code>{_escaped(flat(value))}</code></td></tr>"
                for name, value in rows.items()
                if value is not None
            ]
            return f'<table class="facts">{"".join(lines)}</table>' if lines else ""
        case Listing(sentences):
            if not sentences:
                return ""
            return "<ul>" + "".join(f"<li>{_escaped(flat(sentence))}</li>" for sentence in sentences) + "</ul>"
        case Grid(header, rows, as_code):
            return _table(header, rows, as_code) if rows else ""
        case Code(text):
            return f"<pre>{_escaped(text)}</pre>"
        case Picture(file, caption):
            shown = base64.b64encode(file.read_bytes()).decode()
            source = f"data:{_TYPES[file.suffix]};base64,{shown}"
            words = _escaped(caption)
            return f'<figure><img src="{source}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], as_code: bool) -> str:
    head = "".join(f"<th>{_escaped(name)}</th>" for name in header)
    cells = ((_escaped(flat(cell)) for cell in row) for row in rows)
    kind = "<td><code>{}</code></td>" if as_code else "<td>{}</td>"
    body = "".join("<tr>" + "".join(kind.format(cell) for cell in row) + "</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)
