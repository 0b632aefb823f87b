"""A training set that lies in many files: read in place, or fetched into a cache of limited size.

    manifest.py    which files, and what each holds: samples, bytes, hash
    readers/       samples of one file, by format: a table
    places.py      folders, and what fsspec reads
    cache.py       files from elsewhere, by content, on the disk of a node
    index.py       making a manifest
    dataset.py     `Files`, which a pipeline returns from `datasets()`
    packed.py      `Packed`: documents of tokens in sequences of one length
    stream.py      `Stream`, where samples have no numbers

It knows no steps, shards or workers. In which order samples are asked for is `data/sampling/orders.py`.
"""

from orchestrator.data.files.dataset import Files

__all__ = ["Files"]
