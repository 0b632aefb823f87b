"""Execute cells in a true Jupyter kernel, with their texts as a list on stdin.

`python -m tests.cli.notebook TEXT`: a cell with this text launches a run that gets what the stop button of a notebook sends,
once it has done some steps. The last line of stdout are the outputs of each cell, as JSON. It needs nbclient and ipykernel.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_STEPS = 5
_LOOK_S = 0.1


def stop(kernel: int, known: set[Path], done: threading.Event) -> None:
    """As Jupyter's server does. known: traces of runs that were there before."""
    while not done.wait(_LOOK_S):
        new = {*Path(".orchestrator").glob("*/trace.jsonl")} - known
        if any(trace.read_bytes().count(b"\n") > _STEPS for trace in new):
            os.killpg(os.getpgid(kernel), signal.SIGINT)
            return


def outputs(cell: Any) -> dict[str, str]:
    """By type of content; what was printed is "text"."""
    found = {"text": ""}
    for each in cell.outputs:
        found["text"] += each.get("text", "")
        found |= {kind: str(content) for kind, content in each.get("data", {}).items()}
    return found


def main() -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": "."}})
    with client.setup_kernel():
        kernel = client.km.provisioner.pid
        for number, cell in enumerate(cells):
            ended = threading.Event()
            known = {*Path(".orchestrator").glob("*/trace.jsonl")}
            if sys.argv[1] in cell.source:
                threading.Thread(target=stop, args=(kernel, known, ended)).start()
            try:
                client.execute_cell(cell, number)
            finally:
                ended.set()
    print(json.dumps([outputs(cell) for cell in cells]))


if __name__ == "__main__":
    main()
