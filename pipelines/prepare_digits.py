"""Stage `prepare_digits`: the 1,797 handwritten digits that come with scikit-learn, as four .npy files in data/digits.

    train_images.npy       uint8 (1437, 1, 8, 8), values 0 to 16        test_images.npy       (360, 1, 8, 8)
    train_labels.npy       uint8 (1437,), 0 to 9                        test_labels.npy       (360,)

The digits come grouped by writer, so they are shuffled before they are split. The generator is numpy's legacy one, whose
sequence is frozen: the files are byte-identical wherever they are made.
"""

from __future__ import annotations

from pathlib import Path

import numpy
from sklearn.datasets import load_digits

FOLDER = Path("data/digits")
HELD_OUT = 360


def main() -> None:
    digits = load_digits()
    order = numpy.random.RandomState(0).permutation(len(digits.target))
    images = digits.images[order].astype(numpy.uint8)[:, None]
    labels = digits.target[order].astype(numpy.uint8)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, part in (("test", slice(0, HELD_OUT)), ("train", slice(HELD_OUT, None))):
        numpy.save(FOLDER / f"{name}_images.npy", images[part])
        numpy.save(FOLDER / f"{name}_labels.npy", labels[part])


if __name__ == "__main__":
    main()
