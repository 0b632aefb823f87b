"""The page as this processor computes it, and `known.json` out of what several came to. Users have `orchestrator doctor`.

    python -m orchestrator.numerics.portable > here.json            # the variables of determinism.PORTABLE set before
    python -m orchestrator.numerics.portable here.json there.json   # write known.json

A case whose hash is not the same in all files is written as not portable. The operators that a case uses are looked at here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from orchestrator.numerics import determinism
from orchestrator.numerics.portable import checking
from orchestrator.numerics.portable.conformance import PAGE


def computed() -> dict[str, Any]:
    return {"torch": torch.__version__, "hashes": {name: checking.computed(name) for name in PAGE}}


def merged(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Raises ValueError where they are not of one torch."""
    (version,) = {file["torch"] for file in files}
    cases = {}
    for name in PAGE:
        hashes = {file["hashes"][name] for file in files}
        cases[name] = {"hash": hashes.pop() if len(hashes) == 1 else None, "operators": checking.operators_of(name)}
    return {"torch": version, "cases": cases}


if __name__ == "__main__":
    determinism.prepare_thread(1, arithmetic="portable")
    if len(sys.argv) == 1:
        print(json.dumps(computed()))
    else:
        known = merged([json.loads(Path(name).read_text()) for name in sys.argv[1:]])
        rows = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in known["cases"].items()]
        head = f'{{"torch": {json.dumps(known["torch"])}, "cases": {{\n'
        checking.FILE.write_text(head + ",\n".join(rows) + "\n}}\n")
