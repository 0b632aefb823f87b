"""Stage `prepare_characters`: the help texts that every Python carries (`help("topics")`), as characters, in data/characters.

    train.npy, validation.npy      uint8: the text as indices into the vocabulary, the last tenth held out
    vocabulary.json                the characters, sorted

The texts change a little between releases of Python; then the files do too, and DVC records another version.
"""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics

import numpy

FOLDER = Path("data/characters")
HELD_OUT = 0.1


def main() -> None:
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = sorted(set(text))
    if len(vocabulary) > 256:
        raise SystemExit(f"{len(vocabulary)} different characters do not fit into a byte")
    index = {character: i for i, character in enumerate(vocabulary)}
    tokens = numpy.array([index[character] for character in text], dtype=numpy.uint8)
    border = int(len(tokens) * (1 - HELD_OUT))
    FOLDER.mkdir(parents=True, exist_ok=True)
    numpy.save(FOLDER / "train.npy", tokens[:border])
    numpy.save(FOLDER / "validation.npy", tokens[border:])
    (FOLDER / "vocabulary.json").write_text(json.dumps(vocabulary) + "\n")


if __name__ == "__main__":
    main()
