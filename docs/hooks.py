"""What the site needs beside the pages of this folder; MkDocs calls these functions (mkdocs.yml names this file).

README.md is the first page, and CONTRIBUTING.md and CHANGELOG.md are pages, too, so that nothing is said twice. Links that lead
out of docs/, to source files, become the names of these files. Diagrams are drawn in the browser by a Mermaid that lies in the
site: the file of the npm package mermaid 11.16.0, which the Python package mermaidx carries.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from importlib import resources
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
MERMAID = "assets/mermaid.js"
MERMAID_SHA256 = "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b"
LINK = re.compile(r"(!?\[[^\]]*\])\(([\w./-]+)(#[\w.-]+)?\)")  # or a picture
FILE = re.compile(r"^```(\w+) ([\w./-]+)$", re.MULTILINE)  # of a block of code that is a file: its name

log = get_plugin_logger("docs/hooks.py")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside docs/, and Mermaid."""
    for page, file in FROM_ROOT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    script = resources.files("mermaidx").joinpath("assets/mermaid.js").read_bytes()
    if hashlib.sha256(script).hexdigest() != MERMAID_SHA256:
        log.warning("mermaidx has another Mermaid than the one that was looked at")
    files.append(File.generated(config, MERMAID, content=script))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Lead every link to a page of the site, or name the file that it leads to; give named files of code their titles."""
    source = page.file.src_uri
    here = posixpath.dirname(_place(source))
    pages = {_place(each.src_uri): each.src_uri for each in files}

    def led(link: re.Match[str]) -> str:
        text, path, anchor = link.group(1), posixpath.normpath(posixpath.join(here, link.group(2))), link.group(3) or ""
        if path in pages:
            return f"{text}({posixpath.relpath(pages[path], posixpath.dirname(source) or '.')}{anchor})"
        if not (ROOT / path).exists():
            log.warning(f"{source} links to {path}, which does not exist")
        return f"`{path}`"

    return FILE.sub(r'```\1 title="\2"', LINK.sub(led, markdown))


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Load Mermaid where there is a diagram."""
    if 'class="mermaid"' not in output:
        return output
    script = posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def _place(page: str) -> str:
    """Where a page of the site lies in the repository."""
    return FROM_ROOT.get(page, f"docs/{page}")
