"""A page as a value, written as Markdown or as HTML: the same words and the same numbers, because both come from one list.

The HTML is one file (`page.html.jinja`): its style is in it, and so are its pictures. Everything that is not ours is escaped:
names of files, settings and what a pipeline says of itself.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from orchestrator.records.decimals import digits

if TYPE_CHECKING:
    import jinja2

_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}
_TEMPLATE = "page.html.jinja"


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
    """A picture on a page. file: a PNG or an SVG; caption: what it shows."""

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
    """A page: a title and its sections. head: what stands below the title."""

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
    parts = [f"# {_words(page.title)}", *map(_markdown, page.head)]
    for section in page.sections:
        found = [text for text in map(_markdown, section.blocks) if text]
        parts += [f"## {section.title}", *found] if found else []
    return "\n\n".join(part for part in parts if part) + "\n"


def as_html(page: Page) -> str:
    """Raises OSError for a picture that cannot be read."""
    sections = [replace(section, blocks=_filled(section.blocks)) for section in page.sections]
    return _template().render(page=replace(page, head=_filled(page.head), sections=sections))


def _filled(blocks: Sequence[Block]) -> list[Block]:
    """Without those that show nothing, so that no section is a title alone."""
    return [block for block in blocks if not _is_empty(block)]


def _is_empty(block: Block) -> bool:
    match block:
        case Facts(rows):
            return all(value is None for value in rows.values())
        case Listing(sentences):
            return not sentences
        case Grid(rows=rows):
            return not rows
    return False


@functools.cache
def _template() -> jinja2.Template:
    """jinja2 is imported here, since a run writes its page when it is over."""
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    found = jinja2.Environment(
        loader=folder,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"flat": flat, "data_url": _data_url}
    found.tests |= {kind.__name__.lower(): functools.partial(_is, kind) for kind in get_args(Block)}
    return found.get_template(_TEMPLATE)


def _is(kind: type[Block], block: Block) -> bool:
    return isinstance(block, kind)


def _data_url(picture: Path) -> str:
    return f"data:{_TYPES[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"


_BEGINNINGS = re.compile(r"^( {0,3})(#|=+\s*$|-+\s*$)", re.MULTILINE)  # of a heading, or the line below one
_CODE_OR_MARK = re.compile(r"`[^`]*`|[<\[\\]")  # of a tag of HTML, or of a link or picture, which a reader would fetch
_ESCAPED = {"<": "&lt;", "[": "\\[", "\\": "\\\\"}


def flat(value: Any) -> str:
    """The value on one line, and unable to end the code that it is shown as."""
    text = "null" if value is None else digits(value) if isinstance(value, float) else str(value)
    return " ".join(text.replace("`", "'").split())


def _words(value: Any) -> str:
    """The value on one line outside of code, where Markdown would take `<b>` for a tag of HTML."""
    return _as_words(flat(value))


def _as_words(text: str) -> str:
    """A text that may have code in it, and nothing else that Markdown would take for a mark."""
    return _CODE_OR_MARK.sub(lambda found: _ESCAPED.get(found[0], found[0]), text)


def _markdown(block: Block) -> str:
    match block:
        case Text(text):
            return _BEGINNINGS.sub(r"\1\\\2", _as_words(text))
        case Heading(text):
            return f"### {_words(text)}"
        case Facts(rows):
            return "\n".join(f"- {_words(name)}: `{flat(value)}`" for name, value in rows.items() if value is not None)
        case Listing(sentences):
            return "\n".join(f"- {_words(sentence)}" for sentence in sentences)
        case Grid(header, rows, as_code):
            return _grid([header, *rows], as_code) if rows else ""
        case Code(text):
            return "\n".join(f"    {line}" for line in text.splitlines())
        case Picture(file, caption):
            return f"![{_words(caption)}]({file.parent.name}/{file.name})"


def _grid(rows: Iterable[Sequence[str]], as_code: bool) -> str:
    header, *others = rows
    cells = [
        [*map(_words, header)],
        *([f"`{flat(cell)}`" if as_code else _words(cell) for cell in row] for row in others),
    ]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]])
